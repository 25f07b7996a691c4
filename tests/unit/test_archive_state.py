"""How much the archive has, as operators see it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.archived import FENCE, archive_in, segment_of

from runfold.archive.state import ArchiveState, read_state
from runfold_schemas.errors import UnavailableError


async def test_the_state_is_that_of_the_newest_version(tmp_path: Path) -> None:
    archive = archive_in(tmp_path)
    assert await read_state(archive) == ArchiveState(None, 0, 0)

    await archive.append([segment_of("r-1", "a", "b"), segment_of("r-2", "c")], fences=[FENCE])
    await archive.append([segment_of("r-3", "d")], fences=[FENCE])
    state = await read_state(archive_in(tmp_path))

    files = (tmp_path / "runfold" / "events").glob("*.parquet")
    assert (state.records, state.stored_bytes) == (4, sum(path.stat().st_size for path in files))
    assert state.committed_at is not None
    assert abs(state.committed_at - datetime.now(UTC)) < timedelta(minutes=10)


async def test_an_archive_that_cannot_be_read_is_away(tmp_path: Path) -> None:
    await archive_in(tmp_path).append([segment_of("r-1", "a")], fences=[FENCE])
    for path in (tmp_path / "runfold" / "events" / "_delta_log").iterdir():
        path.write_text("no log")

    with pytest.raises(UnavailableError, match="the archive"):
        await read_state(archive_in(tmp_path))
