"""Folders of this machine that the archive has for a while."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.archived import FENCE, archive_in, segment_of

from runfold.archive.checking import damaged_runs
from runfold.archive.folders import work_folder

DIES = """
import os
from runfold.archive.folders import work_folder
with work_folder() as folder:
    (folder / "copy").write_text("s3cr3t")
    os._exit(1)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_folder_of_a_process_that_died_is_removed_by_the_next(temporary: Path):
    subprocess.run([sys.executable, "-c", DIES], check=False)
    assert [path.name for path in temporary.rglob("*") if path.is_file()] == ["copy"]

    with work_folder() as first, work_folder() as second:
        assert sorted(temporary.iterdir()) == sorted([first, second])

    assert list(temporary.iterdir()) == []


async def test_runs_are_checked_in_the_files_that_may_have_them(tmp_path: Path):
    archive = archive_in(tmp_path)
    for run_id in ("run-1", "run-3"):
        await archive.append([segment_of(run_id, "a")], fences=[FENCE])
    snapshot = archive.events.opened()
    assert snapshot is not None

    counts = {run_id: len(snapshot.files([run_id])) for run_id in ("run-1", "run-2", "run-3")}

    assert counts == {"run-1": 1, "run-2": 0, "run-3": 1}
    assert len(snapshot.files()) == 2
    next(Path(tmp_path).rglob(snapshot.files(["run-3"])[0])).unlink()
    assert await damaged_runs(archive, ["run-1"]) == []
