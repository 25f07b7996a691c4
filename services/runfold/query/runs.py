"""Finding a run and waiting for an offset in it. Every route that reads one run begins here."""

import asyncio
import time
from typing import NamedTuple

from runfold.log.reader import end_offset
from runfold.log.settings import LogSettings
from runfold.query.catalog import RunCatalog
from runfold.query.history import History, LogHistory, SnapshotHistory, Source
from runfold.query.stored_runs import StoredRun, StoredRuns
from runfold_projections.admission import Admission
from runfold_projections.run import RunRecord, fold
from runfold_schemas.catalog import Life
from runfold_schemas.errors import NotYetVisibleError, UnavailableError
from runfold_schemas.topics import Topics, check_id

_POLL_SECONDS_MIN = 0.002
_POLL_SECONDS_MAX = 0.020

_PATIENCE_SECONDS = 0.5
"""How long a read waits for the projections before it reads the whole log instead."""

_PATIENCE_NEW_SECONDS = 0.005


class FollowStart(NamedTuple):
    """Where following a run begins: the rule of outcomes after the first `next_offset` records."""

    topic: str
    admission: Admission
    next_offset: int


class RunReader:
    def __init__(
        self, stored_runs: StoredRuns, catalog: RunCatalog, log: LogSettings, *, wait_timeout_seconds: float
    ) -> None:
        self._stored_runs = stored_runs
        self._catalog = catalog
        self._log = log
        self._topics = Topics(log.prefix)
        self._wait_timeout_seconds = wait_timeout_seconds

    async def history(
        self, run_id: str, *, min_offset: int | None = None, source: Source = "snapshot"
    ) -> History:
        """The run as it is now. With `min_offset`, the call waits until the run holds that offset.

        A run that is not projected yet, or not up to the offset, is read from the log after a short
        wait.

        Raises `RunNotFoundError`, `NotYetVisibleError`, `UnavailableError`, `InvalidIdError`.
        """
        check_id(run_id, name="run_id")
        if source == "log":
            return await self._from_log(await self._catalog.find(run_id))
        stored = await self._stored_runs.find(run_id)
        if stored is None:
            return await self._wait_for(min_offset or 0, await self._catalog.find(run_id))
        if min_offset is None or stored.end > min_offset:
            return SnapshotHistory(self._stored_runs, stored)
        return await self._wait_for(min_offset, stored.state.life)

    async def up_to(self, life: Life, end: int, *, patience_seconds: float) -> History:
        """The run of a life whose log reaches `end`, at least up to there.

        Waits `patience_seconds` for the projector, then reads the log. Raises `UnavailableError`.
        """
        stored = await self._stored_runs.find(life.run_id)
        if stored is not None and stored.end >= end:
            return SnapshotHistory(self._stored_runs, stored)
        if stored is None:
            # The run is new. Projecting a new run takes longer than reading its log.
            patience_seconds = min(patience_seconds, _PATIENCE_NEW_SECONDS)
        history = await self._poll(life.run_id, end - 1, until=time.monotonic() + patience_seconds)
        return history or self.log_history(life, end=end)

    async def record(self, history: History) -> RunRecord:
        """The run record at the history's end. The saved record may lag behind the pages, so later
        records are folded here.
        """
        record = history.base
        async for slice_ in history.slices(first_offset=record.next_offset):
            record = fold(record, slice_.admitted()).model_copy(update={"next_offset": slice_.next_offset})
            await asyncio.sleep(0)
        return record

    async def follow_start(self, run_id: str) -> FollowStart:
        """Where to begin to follow a run: at the end of its stored pages. Raises as `history`
        does.
        """
        stored = await self._stored_runs.find(check_id(run_id, name="run_id"))
        if stored is None:
            life = await self._catalog.find(run_id)
            return FollowStart(self._topics.run(run_id, life.log_id), Admission(run_id), 0)
        state = stored.state
        seen, end = await self._event_ids(stored)
        stored = stored._replace(end=end)
        admission = Admission(
            run_id, seen=seen, opened=state.opened, ended=state.ended, last_offset=state.last_offset
        )
        history = SnapshotHistory(self._stored_runs, stored)
        async for slice_ in history.slices(first_offset=state.record.next_offset):
            for admitted in slice_.admitted():
                admission.replay(admitted)
        return FollowStart(self._topics.run(run_id, state.log_id), admission, end)

    async def _event_ids(self, stored: StoredRun) -> tuple[list[str], int]:
        """The ids of all events that count, and the end of the pages that hold them."""
        seen: list[str] = []
        end = 0
        async for page in stored.edition.pages.read(stored.state.log_id, bodies=False):
            seen += page.event_ids()
            end = page.next_offset
            await asyncio.sleep(0)
        if end < stored.end:
            raise UnavailableError(
                "MongoDB", reason=f"the pages of run {stored.state.run_id!r} are being replaced"
            )
        return seen, end

    async def _wait_for(self, min_offset: int, life: Life) -> History:
        """The history that holds `min_offset`: from the projections if they reach it soon, else
        from the log if it is there.
        """
        began = time.monotonic()
        patient_until = began + min(_PATIENCE_SECONDS, self._wait_timeout_seconds)
        if history := await self._poll(life.run_id, min_offset, until=patient_until):
            return history
        from_log = await self._from_log(life)
        if from_log.end > min_offset:
            return from_log
        # The event is still on its way into the log, or there is none at this offset.
        if history := await self._poll(life.run_id, min_offset, until=began + self._wait_timeout_seconds):
            return history
        raise NotYetVisibleError(
            life.run_id, min_offset=min_offset, timeout_seconds=self._wait_timeout_seconds
        )

    async def _poll(self, run_id: str, min_offset: int, *, until: float) -> History | None:
        pause = _POLL_SECONDS_MIN
        stored: StoredRun | None = None
        while True:
            stored = await stored.refresh() if stored else await self._stored_runs.find(run_id)
            if stored is not None and stored.end > min_offset:
                return SnapshotHistory(self._stored_runs, stored)
            if time.monotonic() > until:
                return None
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _POLL_SECONDS_MAX)

    async def _from_log(self, life: Life) -> History:
        topic = self._topics.run(life.run_id, life.log_id)
        return self.log_history(life, end=await end_offset(self._log, topic))

    def log_history(self, life: Life, *, end: int) -> History:
        """The run from its log, up to `end`."""
        topic = self._topics.run(life.run_id, life.log_id)
        unfolded = RunRecord(run_id=life.run_id, agent_id=life.agent_id, session_id=life.session_id)
        return LogHistory(self._log, topic, unfolded, end=end)
