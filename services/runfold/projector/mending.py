"""Loads the runs of a worker. A run with damaged documents is folded anew from its log."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from runfold.log.catalog_view import CatalogView
from runfold.log.reader import LogGoneError
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold.projector.active import ActiveRun, load
from runfold.projector.quarantine import defect
from runfold.projector.refold import ShortenedLogError, UnreadableLogError, refold
from runfold.projector.safeguards import Safeguards
from runfold.projector.stuck import Steps
from runfold.projector.writer import Writer
from runfold.store.edition import Edition
from runfold.store.run_state import RunState
from runfold_schemas.errors import DamagedError, RunNotFoundError
from runfold_schemas.topics import Partition, RunTopic

_LOOK_SECONDS = 1.0

UNMENDABLE = (DamagedError, LogGoneError, ShortenedLogError, UnreadableLogError, RunNotFoundError)
"""The errors that concern one damaged run, because its log cannot mend it."""

_log = logging.getLogger(__name__)


async def find_log(log: LogSettings, run_id: str) -> RunTopic:
    """The log of the run's life that counts, by the catalog. Raises `RunNotFoundError`,
    `UnavailableError`.
    """
    async with CatalogView.connect(log) as view:
        life = await view.lookup(run_id)
    if life is None or life.deleted:
        raise RunNotFoundError(run_id)
    return RunTopic(run_id, life.log_id)


class Mending:
    """Loads and mends the runs of one worker."""

    def __init__(
        self,
        stores: Edition,
        log: LogSettings,
        writer: Writer,
        segments: SegmentBook,
        *,
        safeguards: Safeguards,
        taken: Callable[[str], Awaitable[None]],
    ) -> None:
        self._stores = stores
        self._log = log
        self._writer = writer
        self._safeguards = safeguards
        self._segments = segments
        self._taken = taken
        self.mending = Steps()

    async def load(self, state: RunState) -> ActiveRun | None:
        """The stored run. If a page of it is damaged, the run is folded anew first. None if the log
        cannot mend it: then the run is set aside. None also for a run that is kept without a log.
        """
        if state.without_log:
            return None
        at = Partition(self._log.topics.run(state.run_id, state.log_id), 0)
        try:
            run = await self._load(state, at)
        except UNMENDABLE as error:
            position = state.record.next_offset
            offsets = error.offsets if isinstance(error, UnreadableLogError) else range(position, position)
            await self._safeguards.quarantine.set_aside_run(
                state.run_id, at, offsets, str(error), owner=state.partition
            )
            return None
        if run.next_offset > state.record.next_offset:
            # The last worker died after the pages and before the state. The run may get no further
            # event that would save it.
            self._writer.save_soon(run.folded())
        if run.admission.ended and not state.ended:
            await self._writer.announce_ended([run])
        return run

    async def _load(self, state: RunState, at: Partition) -> ActiveRun:
        load_run = partial(
            load,
            self._stores.pages,
            topic=at.topic,
            skipped=self._safeguards.skips.of(at),
            effect_keys=self._log.effect_keys,
            holding=self._safeguards.holding,
        )
        try:
            return await load_run(state=state)
        except DamagedError:
            await self._refold(RunTopic(state.run_id, state.log_id))
            return await load_run(state=await self._stores.runs.get(state.run_id) or state)

    async def work(self) -> None:
        """Endless: mends the runs with damaged documents that this worker has met elsewhere."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for run_id in sorted(self._stores.runs.take_damaged() | self._writer.take_damaged()):
                await self.mending.run(self._mend(run_id))

    async def _mend(self, run_id: str) -> None:
        try:
            await self._refold(await find_log(self._log, run_id))
        except UNMENDABLE as error:
            _log.warning("run %s is damaged in MongoDB, and its log cannot mend it: %s", run_id, error)
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            _log.error("run %s is damaged in MongoDB, and mending it failed", run_id, exc_info=defect(error))
        else:
            await self._taken(run_id)

    async def _refold(self, run: RunTopic) -> None:
        mended = await refold(self._stores, self._log, run, segments=self._segments)
        _log.warning(
            "run %s was damaged in MongoDB; folded it anew: %s documents", run.run_id, mended.documents
        )
