"""How much the archive has, from the log of its table alone."""

import asyncio
from datetime import UTC, datetime
from typing import NamedTuple

from runfold.archive.archive import Archive
from runfold.archive.table import table_errors


class ArchiveState(NamedTuple):
    committed_at: datetime | None
    """The time of the newest version. None if there is no table yet."""
    records: int
    stored_bytes: int


async def read_state(archive: Archive) -> ArchiveState:
    """The newest version of the events. Raises `UnavailableError`."""
    return await asyncio.to_thread(_read, archive)


def _read(archive: Archive) -> ArchiveState:
    snapshot = archive.events.opened()
    if snapshot is None:
        return ArchiveState(None, 0, 0)
    with table_errors():
        [commit] = snapshot.table.history(1)
        files = snapshot.table.get_add_actions(flatten=True)
        records, sizes = (files[name].to_pylist() for name in ("num_records", "size_bytes"))
    return ArchiveState(datetime.fromtimestamp(commit["timestamp"] / 1000, UTC), sum(records), sum(sizes))
