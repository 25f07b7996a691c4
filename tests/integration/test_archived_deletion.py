"""What is deleted leaves the archive: its rows soon, and its files within a stated time."""

import asyncio
import os
import re
import signal
from base64 import b64encode
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
from tests import dying_archiver
from tests.archived import everything_in
from tests.archiving import (
    SECONDS,
    archive_of,
    archive_settings,
    archived_records,
    archiving,
    gone,
    opened_run,
    run_topics,
)
from tests.commands import command
from tests.dying_archiver import CLEARING_STEPS
from tests.forking import forked
from tests.hand_archiving import archive_run
from tests.processes import environment, projections, until
from tests.querying import projected, ready_api
from tests.segmenting import announce, append, seal
from tests.servers import OwnSettings

from runfold import Runfold, UserMessage
from runfold.cli.tenants import drop
from runfold.encryption.cipher import new_key
from runfold.erasure.erasure import erase_user
from runfold.erasure.search import FoundName, search
from runfold.log.catalog import life_record, partition_of
from runfold.projector.rebuild import rebuild
from runfold.settings import Settings
from runfold.tenants import dropping
from runfold_schemas.catalog import Segments

SECRET = "the secret of ann"
USER = "ann@example.org"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def settings(own_settings: OwnSettings, folder: Path) -> Settings:
    return archive_settings(
        own_settings,
        folder,
        archive_quiet_seconds=1.0,
        archive_erase_seconds=8.0,
        sweep_seconds=0.2,
        retire_seconds=1.0,
    )


async def cleared(settings: Settings, run_ids: Sequence[str]) -> None:
    """Returns when the archive's newest version has none of these runs."""

    async def is_cleared() -> bool:
        return not await archive_of(settings).segments(run_ids)

    await until(is_cleared, what="the removal of the rows", seconds=SECONDS)


async def unreadable(folder: Path, text: str) -> None:
    """Returns when no file below the folder has the text."""

    async def is_gone() -> bool:
        try:
            return not any(text.encode() in content for _, content in everything_in(folder))
        except (FileNotFoundError, duckdb.Error):
            return False  # a file was removed meanwhile

    await until(is_gone, what="the removal of the files", seconds=SECONDS)


async def test_deleted_runs_and_sessions_leave_every_file_of_the_archive(settings: Settings, folder: Path):
    async with (
        projected(settings) as stored,
        Runfold.of(settings.log()) as runfold,
        ready_api(settings) as api,
    ):
        run, kept = [await stored.run(UserMessage(message=SECRET)) for _ in range(2)]
        session = await runfold.sessions.create(app="shop", user=USER, state={"note": SECRET})
        own = await runfold.get_run(session.record.run_id)
        runs = [await runfold.get_run(each.run_id) for each in (run, kept, own)]
        async with archiving(settings):
            await gone(settings, runs)
            ids = [each.run_id for each in runs]
            assert {each.run_id for each in await archive_of(settings).segments(ids)} == set(ids)

            assert (await api.delete(f"/v1/runs/{run.run_id}")).status_code == 204
            await runfold.sessions.delete(session.record.session_id)
            await cleared(settings, [run.run_id, own.run_id])

            assert (await api.get(f"/v1/runs/{run.run_id}/ledger")).status_code == 404
            assert await archived_records(settings, kept)
            assert (await api.delete(f"/v1/runs/{kept.run_id}")).status_code == 204
            await unreadable(folder, SECRET)
        assert await run_topics(settings) == set()
        assert await archive_of(settings).known(ids) == set(ids)


async def test_a_deletion_finds_all_topics_of_a_run_that_was_reopened(settings: Settings):
    async with projected(settings) as stored, Runfold.of(settings.log()) as runfold:
        run = await stored.run(UserMessage(message="secret"))
        publishing, base = await runfold.get_run(run.run_id), 0
        for _ in range(3):
            base = (await seal(runfold, publishing.life, base)).base
            await publishing.publish(UserMessage(message="secret"))
        assert len(await run_topics(settings)) == 4

        deleted = publishing.life.model_copy(update={"deleted": True})
        topics = runfold.connection.topics
        number = partition_of(topics, run.run_id)
        await append(runfold, topics.catalog, life_record(deleted), partition=number)

        async def is_gone() -> bool:
            return not await run_topics(settings)

        await until(is_gone, what="the deletion of the topics")


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_an_erasure_waits_for_the_archiver_and_leaves_nothing_readable(
    settings: Settings, folder: Path, tmp_path: Path, is_encrypted: bool
):
    if is_encrypted:
        (tmp_path / "key").write_text(b64encode(new_key()).decode())
        settings = settings.model_copy(update={"encryption_key": f"file:{tmp_path / 'key'}"})
    without_key = settings.model_copy(update={"encryption_key": None})
    async with projected(without_key) as stored, Runfold.of(settings.log()) as runfold:
        session = await runfold.sessions.create(app="shop", user=USER, state={"note": SECRET})
        session_id = session.record.session_id
        others = await runfold.open_run(agent_id="desk")
        runs = [others, await runfold.open_run(agent_id="desk", session_id=session_id)]
        for run, message in zip(runs, ("of others", SECRET), strict=True):
            await run.publish(UserMessage(message=message))
        runs.append(await runfold.get_run(session.record.run_id))
        async with archiving(settings):
            await gone(settings, runs)
        kept = await archived_records(settings, others)
        orphan_of(folder)

        said: list[str] = []
        erasing = asyncio.create_task(erase_user(settings, runfold.connection, USER, report=said.append))

        async def waits() -> bool:
            return any("waiting for an archiver" in each for each in said)

        await until(waits, what="the archiver's turn", seconds=SECONDS)
        assert not erasing.done()
        async with archiving(settings):
            erased = await asyncio.wait_for(erasing, 240)
            through = erased.signed.receipt.through
            assert through.archive == erased.signed.receipt.finished_at + timedelta(seconds=8)
            await unreadable(folder, SECRET)
            await unreadable(folder, USER)

            async def archived_finds() -> list[FoundName]:
                archive = archive_of(settings)
                places = search(
                    runfold.connection, stored.database, user=USER, more=erased.runs, archive=archive
                )
                found = [each async for looked in places for each in looked.found]
                return [each for each in found if each.place.startswith("archive")]

            async def has_ids_of_deleted_runs_alone() -> bool:
                return all(
                    each.place.startswith("archive, deleted_runs/") and not each.is_readable
                    for each in await archived_finds()
                )

            # The log of the table has ids for as long as files have rows.
            await until(has_ids_of_deleted_runs_alone, what="the removal of the log", seconds=120)
            assert await archived_finds()

        await rebuild(without_key, report=lambda _: None, switched=lambda: None)
        async with projections(settings) as rebuilt:
            states = await rebuilt.runs.get_many([run.run_id for run in runs])
        assert set(states) == {others.run_id}
        assert await archived_records(settings, others) == kept


def orphan_of(folder: Path) -> None:
    """Leaves what a commit that failed has left: a file with all rows, which no version names."""
    events = next(folder.glob("*/events"))
    rows = duckdb.sql(f"select * from read_parquet('{events}/*.parquet', union_by_name=true)")
    rows.write_parquet(str(events / "part-orphan.zstd.parquet"))


async def test_an_archiver_that_is_killed_while_it_removes_runs_is_followed_by_one_that_goes_on(
    settings: Settings, folder: Path
):
    async with projected(settings), Runfold.of(settings.log()) as runfold:
        runs = [await opened_run(runfold, f"r{number}", SECRET) for number in range(3)]
        async with archiving(settings):
            await gone(settings, runs)
        ids = [run.run_id for run in runs[:2]]
        for run_id in ids:
            await runfold.delete_run(run_id)

        for step in CLEARING_STEPS:
            assert await runfold.connection.catalog.archived_among(ids) == ids
            variables = {**os.environ, **environment(settings)}
            dying = await forked([str(dying_archiver.__file__), step], env=variables)
            try:
                assert await asyncio.wait_for(dying.wait(), SECONDS) == -signal.SIGKILL
            finally:
                dying.kill()
                await dying.wait()
            assert await archive_of(settings).segments(ids) == []

        # An archiver of earlier says late that a deleted run is archived.
        async with archiving(settings):
            await no_entries(runfold, ids)
            life = runs[0].life
            await announce(
                runfold, Segments(run_id=life.run_id, log_id=life.log_id, base=10, end=5, sealed_base=None)
            )
            await no_entries(runfold, ids)
        assert await archive_of(settings).known(ids) == set(ids)
        assert len(await archived_records(settings, runs[2])) == 2


async def no_entries(runfold: Runfold, run_ids: Sequence[str]) -> None:
    """Returns when an archiver has said that it removed these runs."""

    async def is_said() -> bool:
        return not await runfold.connection.catalog.archived_among(run_ids)

    await until(is_said, what="the archiver's word", seconds=SECONDS)


async def test_a_dropped_tenant_leaves_no_file_in_the_archive(
    settings: Settings,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    name = f"{settings.prefix}-acme"
    assert (await command(settings, "tenants", "add", name))[0] == 0
    own = settings.of_tenant(name, database=name, partitions=None)
    async with Runfold.of(own.log()) as runfold, Runfold.of(settings.log()) as other:
        for each in (runfold, other):
            await archive_run(each, await opened_run(each, "r", SECRET))
    without = settings.model_copy(update={"archive_url": None})
    without.model_fields_set.discard("archive_url")

    code, output = await command(settings, "tenants", "export", name, str(tmp_path / "export"))
    assert (code, "has archived runs, which an export does not have" in output) == (2, True)
    exported = ("tenants", "export", name, str(tmp_path / "export"), "--without-archive")
    assert (await command(settings, *exported))[0] == 0
    code, output = await command(without, "tenants", "drop", name, "--yes")
    assert (code, "set RUNFOLD_ARCHIVE_URL" in output) == (2, True)
    capsys.readouterr()
    # No process has the tenant, so none has to leave it.
    monkeypatch.setattr(dropping, "LEAVE_SECONDS", 0.1)
    await drop(settings, name=name)

    [files] = re.findall(r"([0-9,]+)\s+files\s+of\s+the\s+archive", capsys.readouterr().err)
    assert files != "0"
    assert not (folder / name).exists()
    assert (folder / settings.prefix / "events").exists()
