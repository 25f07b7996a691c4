"""A catalog that does not have its archived runs any more: who reads it asks the archive."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.archived import segment_of
from tests.archiving import archive_of
from tests.processes import projections, reaches, until
from tests.segmenting import append
from tests.servers import OwnSettings

from runfold import Runfold, RunNotFoundError, UserMessage
from runfold.archive.table import Fence
from runfold.log.archived_logs import UnknownIdError
from runfold.log.catalog import archive_record
from runfold.projector.rebuild import rebuild
from runfold.settings import Settings
from runfold_schemas.catalog import ArchivedRun, Life, Segments
from runfold_schemas.errors import InvalidIdError, RunConflictError

BASE = 2**20
FENCE = Fence("by-hand", 1)


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return own_settings(archive_url=f"file://{tmp_path}/archive", partitions=2)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    """A client of an installation that has archived two runs, and has deleted one of them."""
    archive = archive_of(settings)
    segments = [segment_of(name, "one", "two") for name in ("old", "deleted")]
    await archive.append(segments, fences=[FENCE])
    lives = [
        Life(run_id=each.run_id, log_id=each.log_id, agent_id="desk", session_id="s", ended=True)
        for each in segments
    ]
    await archive.note_runs(
        [
            ArchivedRun(life, Segments(run_id=life.run_id, log_id=life.log_id, base=BASE, end=2))
            for life in lives
        ],
        fence=FENCE,
    )
    await archive.delete(["deleted"])
    async with Runfold.of(settings.log()) as runfold:
        for number in range(2):
            await append(runfold, runfold.connection.topics.catalog, archive_record(), partition=number)
        yield runfold


async def messages(run_of: Runfold, run_id: str) -> list[tuple[int, str]]:
    run = await run_of.get_run(run_id)
    return [
        (one.record.offset, one.event.data.message)
        async for one in run.history()
        if one.event is not None and isinstance(one.event.data, UserMessage)
    ]


async def test_an_archived_run_is_there_and_its_id_stays_taken(settings: Settings, runfold: Runfold):
    assert await messages(runfold, "old") == [(0, "one"), (1, "two")]
    assert [run.run_id async for run in runfold.runs()] == ["old"]
    assert [run.run_id async for run in runfold.session_runs("s")] == ["old"]
    assert await runfold.connection.catalog.archived_among(["old", "deleted", "other"]) == ["old"]
    with pytest.raises(RunConflictError):
        await runfold.open_run(agent_id="another", run_id="old")
    with pytest.raises(InvalidIdError, match="was deleted"):
        await runfold.open_run(agent_id="desk", run_id="deleted")
    with pytest.raises(RunNotFoundError):
        await runfold.get_run("other")
    new = await runfold.open_run(agent_id="desk", run_id="other")
    assert {run.run_id async for run in runfold.runs()} == {"old", "other"}

    same = await runfold.open_run(agent_id="desk", run_id="old")
    assert (await same.publish(UserMessage(message="three"))).offset == BASE
    assert await messages(runfold, "old") == [(0, "one"), (1, "two"), (BASE, "three")]

    without = settings.model_copy(update={"archive_url": None})
    async with Runfold.of(without.log()) as other:
        for run_id in ("old", "deleted", "never"):
            with pytest.raises(UnknownIdError, match="set RUNFOLD_ARCHIVE_URL"):
                await other.open_run(agent_id="desk", run_id=run_id)
        with pytest.raises(UnknownIdError, match="some runs may be"):
            [run async for run in other.runs()]
        assert (await other.get_run(new.run_id)).run_id == "other"
        assert await (await other.open_run(agent_id="desk")).publish(UserMessage(message="Hello"))


async def test_a_rebuild_finds_the_runs_of_the_archive(settings: Settings, runfold: Runfold):
    new = await runfold.open_run(agent_id="desk")
    await new.publish(UserMessage(message="Hello"))

    await rebuild(
        settings.model_copy(update={"retire_seconds": 1.0}), report=lambda _: None, switched=lambda: None
    )

    async with projections(settings) as stored:
        old = await runfold.get_run("old")
        await until(lambda: reaches(stored, old, 1), what="the fold of the archived run")
        assert await stored.differences() == []
        assert await stored.stores.quarantine.all() == []
        assert {run_id async for run_id, _ in stored.stores.runs.progress()} == {"old", new.run_id}
