"""The archive's table `runs`: what the catalog said of archived runs."""

import asyncio
from pathlib import Path

import pytest
from tests.archived import FENCE, LOG_ID, archive_in, everything_in, read, record_of, segment_of
from tests.builders import event

from runfold.archive import runs
from runfold.archive.archive import Archive
from runfold.archive.history import remove_history
from runfold.archive.segments import Segment
from runfold.archive.table import Fence, FencedError
from runfold_schemas.catalog import ArchivedRun, Life, Segments
from runfold_schemas.events import RunCompleted, RunOpened

GAP = 2**20


def run_of(run_id: str, *, end: int = 2, log_id: str = LOG_ID, **fields: object) -> ArchivedRun:
    life = Life(run_id=run_id, log_id=log_id, agent_id="a", ended=True, **fields)
    return ArchivedRun(life, Segments(run_id=run_id, log_id=log_id, base=end + GAP, end=end))


async def everything(archive: Archive) -> list[ArchivedRun]:
    return [run async for run in archive.runs()]


async def test_what_is_noted_of_a_run_only_moves_forward(tmp_path: Path):
    archive = archive_in(tmp_path)
    assert await archive.run("a") is None
    assert await everything(archive) == []
    await archive.append([segment_of("a", "one", "two"), segment_of("b", "one", "two")], fences=[FENCE])
    first = run_of("a", session_id="s", user_id="u", later_field=1)

    await archive.note_runs([first, run_of("b"), run_of("without records")], fence=FENCE)
    await archive.note_runs([run_of("a", end=5)], fence=FENCE)
    await archive.note_runs([run_of("a", end=3), run_of("a", end=9, log_id="1" * 32)], fence=FENCE)
    await archive.note_runs([first], fence=FENCE)

    assert await everything(archive) == [run_of("a", end=5), run_of("b")]
    assert await archive.noted(["a", "b", "c", "without records"]) == {
        "a": run_of("a", end=5),
        "b": run_of("b"),
    }


async def test_an_older_archiver_notes_nothing_any_more(tmp_path: Path):
    archive = archive_in(tmp_path)
    await archive.append([segment_of("a", "one")], fences=[FENCE])
    await archive.note_runs([run_of("a")], fence=Fence("archiver-0", 7))

    with pytest.raises(FencedError):
        await archive.note_runs([run_of("a", end=5)], fence=Fence("archiver-0", 6))

    assert await archive.run("a") == run_of("a")


async def test_the_table_says_when_a_run_was_at_work_and_how_it_ended(tmp_path: Path):
    archive = archive_in(tmp_path)
    opened = event(RunOpened(agent_id="a", log_id=LOG_ID), run_id="a")
    records = [record_of(0, opened), record_of(1, event(RunCompleted(), run_id="a"))]
    await archive.append([Segment("a", LOG_ID, 0, 2, records)], fences=[FENCE])

    await archive.note_runs([run_of("a", session_id="s")], fence=FENCE)

    snapshot = archive.tables["runs"][0].latest()
    assert snapshot is not None
    columns = "agent_id, session_id, user_id, ended, status, opened_at, last_at"
    assert snapshot.rows(f"select {columns} from events") == [
        ("a", "s", None, True, "completed", records[0].log_time, records[1].log_time)
    ]


async def test_a_deleted_run_keeps_its_id_and_nothing_else(tmp_path: Path):
    archive = archive_in(tmp_path)
    await archive.append([segment_of("a", "one"), segment_of("b", "one")], fences=[FENCE])
    await archive.note_runs([run_of("a", user_id="somebody"), run_of("b")], fence=FENCE)

    await archive.delete(["a"])
    await archive.note_runs([run_of("a", end=5, user_id="somebody")], fence=FENCE)
    await remove_history(archive, keep_seconds=0)

    found = await archive.run("a")
    assert found is not None
    assert found.life.deleted
    assert await everything(archive) == [run_of("b")]
    assert await read(archive, "b")
    assert not [path for path, content in everything_in(tmp_path) if b"somebody" in content]


async def test_many_small_notes_become_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "_FILES_MAX", 3)
    archive = archive_in(tmp_path)
    names = [f"run-{number}" for number in range(6)]
    await archive.append([segment_of(name, "one") for name in names], fences=[FENCE])

    for name in names:
        await archive.note_runs([run_of(name)], fence=FENCE)

    snapshot = await asyncio.to_thread(archive.tables["runs"][0].latest)
    assert snapshot is not None
    assert len(snapshot.files()) <= 3
    assert await everything(archive) == [run_of(name) for name in sorted(names)]
