"""An archiver removes archived runs from the catalog, and nothing that others write is lost."""

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.archiving import archive_of, archive_settings, archived_records, archiving, end, gone, opened_run
from tests.processes import until
from tests.servers import OwnSettings

from runfold import Run, Runfold, UserMessage
from runfold.archiver import retiring, rounds
from runfold.archiver.catalog_pass import CatalogPass
from runfold.archiver.retiring import Retiring
from runfold.log.catalog import ARCHIVE_KEY, life_key, segments_key
from runfold.log.reader import read
from runfold.settings import Settings
from runfold_schemas.catalog import ArchivedRun, Life
from runfold_schemas.errors import UnavailableError

SECONDS = 120.0


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return archive_settings(own_settings, tmp_path / "archive", archive_catalog_seconds=0.1)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_LIST_SECONDS", 0.5)
    monkeypatch.setattr(retiring, "_RETIRE_SECONDS", 0.5)


async def kept(runfold: Runfold) -> dict[bytes, bytes]:
    """What compaction keeps of the catalog."""
    last: dict[bytes, bytes | None] = {}
    async for records in read(runfold.connection.settings, runfold.connection.topics.catalog):
        last |= {record.key: record.value for record in records if record.key is not None}
    return {key: value for key, value in last.items() if value is not None}


async def has(runfold: Runfold, *runs: Run, expected: Sequence[Callable[[str], bytes]]) -> bool:
    """Whether compaction keeps exactly these keys of the runs."""
    keys = await kept(runfold)
    return all(
        (key(run.run_id) in keys) is (key in expected) for run in runs for key in (life_key, segments_key)
    )


async def test_an_archived_run_leaves_the_catalog_and_comes_back_when_it_goes_on(
    settings: Settings, runfold: Runfold
):
    runs = [await opened_run(runfold, f"r{number}", "Hello") for number in range(3)]
    still_open = await opened_run(runfold, "open", "Hello")
    for run in runs:
        await end(runfold, run)
    async with archiving(settings):
        await gone(settings, runs)
        await until(
            partial(has, runfold, *runs, expected=()), what="the removal of ended runs", seconds=SECONDS
        )
        assert ARCHIVE_KEY in await kept(runfold)
        assert life_key(still_open.run_id) in await kept(runfold)
        noted = await archive_of(settings).noted([run.run_id for run in runs])
        assert sorted(noted) == ["r0", "r1", "r2"]

        late = await runs[0].publish(UserMessage(message="One more thing."), late=True)

        segments = noted["r0"].segments
        assert segments is not None
        assert late.offset == segments.base

        async def is_noted_again() -> bool:
            """It was archived again, with the segments that the catalog had got back."""
            found = await archive_of(settings).run("r0")
            assert found is not None
            assert found.segments is not None
            return found.segments.base > late.offset

        await until(is_noted_again, what="the second archiving", seconds=SECONDS)
        await until(partial(has, runfold, *runs, expected=()), what="the second removal", seconds=SECONDS)
    history = [one.record.offset async for one in runs[0].history() if one.event is not None]
    assert history[-1] == late.offset


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies before it mends"])
async def test_a_deletion_that_comes_just_before_the_tombstone_stays(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch, *, dies: bool
):
    run = await opened_run(runfold, "r", "Hello")
    await end(runfold, run)
    deleted = run.life.model_copy(update={"ended": True, "deleted": True})
    remove, mend = Retiring._remove, Retiring._mend
    removals = 0

    async def delete_and_remove(
        self: Retiring, number: int, catalog: CatalogPass, due: Sequence[ArchivedRun]
    ) -> None:
        nonlocal removals
        if due:
            removals += 1
            if removals == 1:
                await runfold.connection.announce(deleted)
        await remove(self, number, catalog, due)

    async def die_or_mend(self: Retiring, *arguments: Any) -> None:
        if dies and removals == 1:
            raise UnavailableError("Kafka", reason="it dies here")
        await mend(self, *arguments)

    monkeypatch.setattr(Retiring, "_remove", delete_and_remove)
    monkeypatch.setattr(Retiring, "_mend", die_or_mend)

    async def is_cleared() -> bool:
        """Whether the deletion stands, and the archive has followed it."""
        value = (await kept(runfold)).get(life_key("r"))
        found = await archive_of(settings).run("r")
        return (
            removals > 0
            and value is not None
            and Life.model_validate_json(value).deleted
            and found is not None
            and found.life.deleted
        )

    async with archiving(settings):
        await until(is_cleared, what="the deletion", seconds=SECONDS)
    assert await archived_records(settings, run) == []
    assert removals == 1
