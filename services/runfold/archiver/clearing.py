"""Removes deleted runs from the archive.

    catalog: deleted life --> rows removed, id kept --> catalog: `log:{run}` without a value
                                                    --> within a stated time: files removed

The catalog says what is deleted, so an owner of its partition that begins, or takes over, finds
what an earlier one left. A run of which rows are written meanwhile is found by its next `log:`
entry.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Final, NoReturn

from prometheus_client import Counter

from runfold.archive.archive import Archive
from runfold.archive.history import remove_history
from runfold.archiver.deleted_runs import DeletedRuns
from runfold.log.catalog import segments_key
from runfold.log.publisher import Outgoing
from runfold_schemas.errors import UnavailableError

_AT_ONCE: Final = 500
"""The number of runs that are removed in one go."""

_KEPT_PART: Final = 2
_PASS_PART: Final = 4
"""Files that the table gave up stay for a half of the stated time, and a pass begins in each
quarter of it. A quarter is left for the work.
"""

_RETRY_SECONDS: Final = 5.0

_CLEARED: Final = Counter("runfold_archiver_cleared_runs", "Deleted runs that this archiver has looked for")

_log = logging.getLogger(__name__)

Publish = Callable[[Collection[tuple[int, Outgoing]]], Awaitable[object]]
"""Writes records to partitions of the catalog."""


class Clearing:
    """Removes deleted runs, and what earlier versions of the archive still have."""

    def __init__(self, archive: Archive, publish: Publish) -> None:
        self._archive = archive
        self._publish = publish
        self.failure: str | None = None
        """Why files of deleted rows are not removed."""

    async def clear(self, number: int, deleted: DeletedRuns) -> bool:
        """Removes deleted runs of a partition from the archive. Returns whether there were any. May
        raise `UnavailableError`, and then the same are found again.
        """
        await self._look(deleted)
        runs = dict(islice(deleted.runs.items(), _AT_ONCE))
        if runs:
            own = await self._own(runs)
            await self._archive.delete(own)
            await self._publish([(number, Outgoing(segments_key(run_id), None)) for run_id in own])
            deleted.forget(runs)
            _CLEARED.inc(len(runs))
        return bool(runs or deleted.doubtful)

    async def _look(self, deleted: DeletedRuns) -> None:
        """Takes those of the doubtful runs that have to be removed."""
        await self._sort(deleted, deleted.doubtful, if_known=False)
        await self._sort(deleted, deleted.entries, if_known=True)

    async def _sort(self, deleted: DeletedRuns, runs: dict[str, str], *, if_known: bool) -> None:
        """Takes some of these runs if the archive knows of their deletion, or if it does not."""
        if some := dict(islice(runs.items(), _AT_ONCE)):
            known = await asyncio.to_thread(self._archive.deleted_among, list(some))
            deleted.runs |= {run: log for run, log in some.items() if (run in known) is if_known}
            for run_id in some:
                runs.pop(run_id, None)

    async def _own(self, runs: Mapping[str, str]) -> Sequence[str]:
        """Those of the runs of which the archive has no other log. The first life of a run counts,
        and a deleted second one may have its id.
        """
        others = {
            segment.run_id
            for segment in await self._archive.segments(list(runs))
            if segment.log_id != runs[segment.run_id]
        }
        return [run_id for run_id in runs if run_id not in others]

    async def remove_files(self, *, within_seconds: float, is_due: Callable[[], bool]) -> NoReturn:
        """Endless: while `is_due`, removes files that have deleted rows, so that they are gone
        within the stated time.
        """
        while True:
            pause = min(within_seconds / _PASS_PART, _RETRY_SECONDS)
            try:
                if is_due():
                    await remove_history(self._archive, keep_seconds=within_seconds / _KEPT_PART)
                    pause = within_seconds / _PASS_PART
                self.failure = None
            except UnavailableError as error:
                self.failure = f"files of deleted rows stay in the archive: {error}"
                _log.warning("%s", self.failure)
            await asyncio.sleep(pause)
