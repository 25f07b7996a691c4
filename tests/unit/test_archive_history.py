"""Which files of an archive stay when those of deleted rows are removed."""

import os
import time
from pathlib import Path

import pytest
from tests.archived import FENCE, archive_in, read, segment_of

from runfold.archive.archive import new_rows
from runfold.archive.files import StoredFile, TableFiles
from runfold.archive.history import remove_history


async def test_young_files_stay_because_a_commit_may_be_under_way(tmp_path: Path):
    archive = archive_in(tmp_path)
    await archive.append([segment_of("run-1", "a")], fences=[FENCE])
    young = tmp_path / "runfold/events/part-0.parquet"
    young.write_bytes(b"x")

    assert await remove_history(archive) == 0
    assert young.exists()
    assert await remove_history(archive, keep_seconds=0) > 0
    assert not young.exists()


async def test_what_others_commit_stays_although_a_removal_of_files_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive, kept = archive_in(tmp_path), segment_of("run-2", "b")
    await archive.append([segment_of("run-1", "a")], fences=[FENCE])
    listed = TableFiles.listed

    def stand_still(files: TableFiles) -> list[StoredFile]:
        if files is archive.event_files:
            before = set(tmp_path.rglob("*.parquet"))
            archive.events.commit([FENCE], lambda snapshot: new_rows(archive, [kept], snapshot))
            for path in set(tmp_path.rglob("*.parquet")) - before:
                os.utime(path, (time.time() + 7200, time.time() + 7200))
            last = tmp_path / "runfold/events/part-0.parquet"
            last.write_bytes(b"x")
            os.utime(last, (time.time() + 14_400, time.time() + 14_400))
        return listed(files)

    monkeypatch.setattr(TableFiles, "listed", stand_still)
    await remove_history(archive)

    assert await read(archive, "run-2") == kept.records


async def test_young_files_stay_when_the_clock_was_set_back(tmp_path: Path):
    archive = archive_in(tmp_path)
    await archive.append([segment_of("run-1", "a")], fences=[FENCE])
    for path in tmp_path.rglob("*.parquet"):
        os.utime(path, (time.time() + 7200, time.time() + 7200))
    young = tmp_path / "runfold/events/part-0.parquet"
    young.write_bytes(b"x")

    assert await remove_history(archive) == 0
    assert young.exists()
