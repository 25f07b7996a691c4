"""Finding a run and waiting for an offset of it: what every route that reads one run begins
with.
"""

import asyncio
import time
from typing import NamedTuple

from runfold.log.reader import end_offset
from runfold.log.settings import LogSettings
from runfold.query.history import History, LogHistory, SnapshotHistory, Source
from runfold.query.lives import Lives
from runfold.query.snapshots import Snapshot, Snapshots
from runfold_projections.admission import Admission
from runfold_projections.run import RunRecord, fold
from runfold_schemas.catalog import Life
from runfold_schemas.errors import NotYetVisibleError, UnavailableError
from runfold_schemas.topics import Topics, check_id

_POLL_SECONDS_MIN = 0.002
_POLL_SECONDS_MAX = 0.020

_PATIENCE_SECONDS = 0.5
"""How long a read waits for the snapshot before it takes the trouble to read the whole log
instead.
"""

_PATIENCE_NEW_SECONDS = 0.005


class Standing(NamedTuple):
    """The rule of outcomes after the first `next_offset` records of a log, to go on from with what
    is appended.
    """

    topic: str
    admission: Admission
    next_offset: int


class RunReader:
    def __init__(
        self, snapshots: Snapshots, lives: Lives, log: LogSettings, *, wait_timeout_seconds: float
    ) -> None:
        self._snapshots = snapshots
        self._lives = lives
        self._log = log
        self._topics = Topics(log.prefix)
        self._wait_timeout_seconds = wait_timeout_seconds

    async def history(
        self, run_id: str, *, min_offset: int | None = None, source: Source = "snapshot"
    ) -> History:
        """The run as it is now; with `min_offset`, not before it holds that offset.

        A run that is not projected yet, or not that far, is read from the log instead, after a
        short wait.

        Raises `RunNotFoundError`, `NotYetVisibleError`, `UnavailableError`, `InvalidIdError`.
        """
        check_id(run_id, name="run_id")
        if source == "log":
            return await self._from_log(await self._lives.find(run_id))
        snapshot = await self._snapshots.find(run_id)
        if snapshot is None:
            return await self._holding(min_offset or 0, await self._lives.find(run_id))
        if min_offset is None or snapshot.end > min_offset:
            return SnapshotHistory(self._snapshots, snapshot)
        return await self._holding(min_offset, snapshot.state.life)

    async def up_to(self, life: Life, end: int, *, patience_seconds: float) -> History:
        """The run of a life that is known already, whose log is known to reach `end`, at least up
        to there.

        Waits so long for the projector, then reads the log. Raises `UnavailableError`.
        """
        snapshot = await self._snapshots.find(life.run_id)
        if snapshot is not None and snapshot.end >= end:
            return SnapshotHistory(self._snapshots, snapshot)
        if snapshot is None:
            # The run is new, and a new run takes its time to be projected: longer than it takes to
            # read the log.
            patience_seconds = min(patience_seconds, _PATIENCE_NEW_SECONDS)
        history = await self._poll(life.run_id, end - 1, until=time.monotonic() + patience_seconds)
        return history or self.log_history(life, end=end)

    async def record(self, history: History) -> RunRecord:
        """The run record at the history's end. The saved one may lag behind the pages, so the rest
        is folded here.
        """
        record = history.base
        async for part in history.slices(first_offset=record.next_offset):
            record = fold(record, part.admitted()).model_copy(update={"next_offset": part.next_offset})
            await asyncio.sleep(0)
        return record

    async def standing(self, run_id: str) -> Standing:
        """Where to begin to follow a run: at the end of what is stored. Raises as `history`
        does.
        """
        snapshot = await self._snapshots.find(check_id(run_id, name="run_id"))
        if snapshot is None:
            life = await self._lives.find(run_id)
            return Standing(self._topics.run(run_id, life.log_id), Admission(run_id), 0)
        state = snapshot.state
        seen, end = await self._event_ids(snapshot)
        snapshot = snapshot._replace(end=end)
        admission = Admission(
            run_id, seen=seen, opened=state.opened, ended=state.ended, last_offset=state.last_offset
        )
        history = SnapshotHistory(self._snapshots, snapshot)
        async for part in history.slices(first_offset=state.record.next_offset):
            for one in part.admitted():
                admission.replay(one)
        return Standing(self._topics.run(run_id, state.log_id), admission, end)

    async def _event_ids(self, snapshot: Snapshot) -> tuple[list[str], int]:
        """The ids of all events that count, and the end of the pages that say so."""
        seen: list[str] = []
        end = 0
        async for page in snapshot.edition.pages.read(snapshot.state.log_id, bodies=False):
            seen += page.event_ids()
            end = page.next_offset
            await asyncio.sleep(0)
        if end < snapshot.end:
            raise UnavailableError(
                "MongoDB", reason=f"the pages of run {snapshot.state.run_id!r} are being replaced"
            )
        return seen, end

    async def _holding(self, min_offset: int, life: Life) -> History:
        """The history that holds `min_offset`: the snapshot's if it does so soon, else the log's if
        it does at all.
        """
        began = time.monotonic()
        patient_until = began + min(_PATIENCE_SECONDS, self._wait_timeout_seconds)
        if history := await self._poll(life.run_id, min_offset, until=patient_until):
            return history
        from_log = await self._from_log(life)
        if from_log.end > min_offset:
            return from_log
        # The offset is of an event that is still on its way into the log, or of none.
        if history := await self._poll(life.run_id, min_offset, until=began + self._wait_timeout_seconds):
            return history
        raise NotYetVisibleError(
            life.run_id, min_offset=min_offset, timeout_seconds=self._wait_timeout_seconds
        )

    async def _poll(self, run_id: str, min_offset: int, *, until: float) -> History | None:
        pause = _POLL_SECONDS_MIN
        snapshot: Snapshot | None = None
        while True:
            snapshot = await snapshot.again() if snapshot else await self._snapshots.find(run_id)
            if snapshot is not None and snapshot.end > min_offset:
                return SnapshotHistory(self._snapshots, snapshot)
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
