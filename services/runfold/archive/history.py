"""Removes what no reader of the newest version needs: files of deleted rows and of commits that
failed, and earlier versions in the log of the table.
"""

import asyncio
import re
from typing import Final

from runfold.archive.archive import Archive
from runfold.archive.files import TableFiles
from runfold.archive.table import ArchiveTable, Snapshot

KEEP_SECONDS: Final = 3600.0
"""How long files stay that the newest version does not have. A commit that is being made has such
files, and so has a version that somebody still reads.
"""

_LOG: Final = "_delta_log/"
_VERSION: Final = re.compile(r"_delta_log/(\d{20})\.")


async def remove_history(archive: Archive, *, keep_seconds: float = KEEP_SECONDS) -> int:
    """Removes files of earlier versions that are older than this, and returns their number. What
    was deleted before is then in no file.
    """

    def remove() -> int:
        return sum(_remove(table, files, keep_seconds) for table, files in archive.tables.values())

    return await asyncio.to_thread(remove)


def _remove(table: ArchiveTable, files: TableFiles, keep_seconds: float) -> int:
    if table.latest() is None:
        return 0
    # The log of a deletion names what is deleted, so the last version is one that says nothing.
    touched = f"{_LOG}{table.touch():020}.json"
    version, needed = table.change(_checkpoint)
    stored = files.listed()
    # The time of the store, whose clock may differ from ours. What is written from here on counts
    # as young, however long this process stands still.
    now = next((each.changed_at for each in stored if each.path == touched), 0.0)
    oldest = now - keep_seconds
    removed = 0
    for each in stored:
        match = _VERSION.match(each.path)
        if each.path.startswith(_LOG):
            is_needed = each.path == f"{_LOG}_last_checkpoint" or (match and int(match[1]) >= version)
        else:
            is_needed = each.path in needed
        if not is_needed and each.changed_at <= oldest:
            files.remove(each.path)
            removed += 1
    return removed


def _checkpoint(snapshot: Snapshot) -> tuple[int, set[str]]:
    """The version that was written as a checkpoint, and the files that it has."""
    snapshot.table.create_checkpoint()
    return snapshot.table.version(), set(snapshot.files())
