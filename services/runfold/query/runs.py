"""Finding a run and waiting for an offset in it. Every route that reads one run begins here."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from runfold.encryption.hiding import hide_run
from runfold.log.reader import LogGoneError, end_offset
from runfold.log.settings import LogSettings
from runfold.query.cache_room import CacheRoom
from runfold.query.catalog import RunCatalog
from runfold.query.folded_run import FoldedRun, folded_run, run_as_of
from runfold.query.history import History, LogHistory, SkippedIn, SnapshotHistory, Source
from runfold.query.log_ends import ConnectedEnds
from runfold.query.recent import EVENTS_MAX, RecentRun, RecentRuns
from runfold.query.stored_runs import StoredRun, StoredRuns
from runfold.store.damage import damaged
from runfold.store.page import page_id
from runfold.store.quarantine import Quarantined, run_id_of
from runfold.store.runs import RunState
from runfold_projections.admission import Admission, Admitted
from runfold_projections.run import RunRecord
from runfold_schemas.catalog import Life
from runfold_schemas.errors import (
    DamagedError,
    NotYetVisibleError,
    QuarantinedError,
    RunNotFoundError,
    UnavailableError,
)
from runfold_schemas.topics import OFFSET_MAX, Partition, check_id

_POLL_SECONDS_MIN = 0.002
_POLL_SECONDS_MAX = 0.020

_PATIENCE_SECONDS = 0.5
"""How long a read waits for the projections before it reads the whole log instead."""

_PATIENCE_NEW_SECONDS = 0.005

_QUICK_SECONDS = 0.25
"""How long a read waits for the newest records of the log before it waits for the projections."""


class FollowStart(NamedTuple):
    """Where following a run begins: the rule of outcomes after the first `next_offset` records."""

    topic: str
    admission: Admission
    next_offset: int


class RunReader:
    def __init__(
        self,
        stored_runs: StoredRuns,
        catalog: RunCatalog,
        log: LogSettings,
        log_ends: ConnectedEnds,
        *,
        wait_timeout_seconds: float,
        room: CacheRoom | None = None,
    ) -> None:
        self._stored_runs = stored_runs
        self._catalog = catalog
        self._log = log
        self._log_ends = log_ends
        self.recent = RecentRuns(room)
        self._topics = log.topics
        self._wait_timeout_seconds = wait_timeout_seconds

    async def life(self, run_id: str) -> Life | None:
        """The life of a run, or None. Raises `UnavailableError`, `InvalidIdError`."""
        check_id(run_id, name="run_id")
        try:
            stored = await self._stored_runs.find(run_id)
        except DamagedError:
            stored = None
        if stored is not None:
            return stored.state.life
        with contextlib.suppress(RunNotFoundError):
            return await self._catalog.find(run_id)
        return None

    async def history(
        self, run_id: str, *, min_offset: int | None = None, source: Source = "snapshot"
    ) -> History:
        """The run as it is now. With `min_offset`, the call waits until the run holds that offset.

        A run that is not projected yet, or not up to the offset, is read from the log after a short
        wait.

        A run in quarantine is read up to the quarantine's offset, and never from the log.

        Raises `RunNotFoundError`, `NotYetVisibleError`, `QuarantinedError`, `UnavailableError`,
        `InvalidIdError`.
        """
        check_id(run_id, name="run_id")
        if source == "log":
            life = await self._catalog.find(run_id)
            await self._refuse_quarantined(life, OFFSET_MAX)
            return await self._from_log(life, self._catalog.skipped)
        ahead = asyncio.create_task(self._look_ahead(run_id, min_offset))
        try:
            stored = await self._stored_runs.find(run_id)
            if stored is not None and (min_offset is None or stored.end > min_offset):
                return await self._snapshot(stored)
            is_ahead = await ahead
        except DamagedError:
            return await self._sound_history(run_id, -1 if min_offset is None else min_offset)
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
        life = stored.state.life if stored is not None else await self._catalog.find(run_id)
        return await self._wait_for(min_offset or 0, life, stored, is_ahead=is_ahead)

    async def _snapshot(self, stored: StoredRun) -> SnapshotHistory:
        """The stored run, with what was read behind it already: a reader sees nothing older than it
        saw before, unless the run is in quarantine or a record was skipped.
        """
        recent = self.recent.get(stored.state.run_id, stored.state.log_id)
        if recent is None or (recent.next_offset > stored.end and not await self._is_valid(recent)):
            return SnapshotHistory(self._stored_runs, stored)
        return self._with_recent(stored, recent)

    async def _is_valid(self, recent: RecentRun) -> bool:
        entry_id = run_id_of(recent.admission.run_id)
        if not await self._has_skips(recent):
            return False
        may_be = self._stored_runs.may_be_quarantined(entry_id)
        return not may_be or await self._stored_runs.quarantined(entry_id) is None

    def _with_recent(self, stored: StoredRun, recent: RecentRun) -> SnapshotHistory:
        """The stored run and the records behind it. Records that its pages hold are dropped."""
        recent.drop_stored(stored.end)
        self.recent.keep(stored.state.run_id, recent)
        stored = stored._replace(end=max(stored.end, recent.begin))
        return SnapshotHistory(self._stored_runs, stored, recent.unstored(stored.end))

    async def up_to(self, life: Life, end: int, *, patience_seconds: float) -> History:
        """The run of a life whose log reaches `end`, at least up to there.

        Waits `patience_seconds` for the projector, then reads the log. Raises `UnavailableError`,
        `QuarantinedError`.
        """
        try:
            stored = await self._stored_runs.find(life.run_id)
        except DamagedError:
            return self.log_history(life, end=end)
        if stored is not None and stored.end >= end:
            return SnapshotHistory(self._stored_runs, stored)
        await self._refuse_quarantined(life, end - 1)
        if recent := await self._recent_history(life, stored, end - 1):
            return recent
        if stored is None:
            # The run is new. Projecting a new run takes longer than reading its log.
            patience_seconds = min(patience_seconds, _PATIENCE_NEW_SECONDS)
        history = await self._poll(life.run_id, end - 1, until=time.monotonic() + patience_seconds)
        return history or self.log_history(life, end=end)

    async def sound(self, states: Sequence[RunState]) -> list[RunState]:
        """The states of a list. Damaged ones are folded from their logs; those of runs that the
        catalog or Kafka does not have are left out.
        """
        sound = []
        for state in states:
            if state.is_damaged:
                try:
                    life = await self._catalog.find(state.run_id)
                    folded = await self.record(await self._from_log(life, self._catalog.skipped))
                except (RunNotFoundError, LogGoneError):
                    continue
                sound.append(replace(state, is_damaged=False, **folded._asdict()))
            else:
                record = await self.revealed(state.record)
                sound.append(state if record is state.record else replace(state, record=record))
        return sound

    async def record(self, history: History, *, end: int | None = None) -> FoldedRun:
        """The run record, the usage by model and the activity at `end`, by default that of the
        history. The saved record may lag behind the pages, so later records are folded here,
        revealed already.
        """
        if end is None or end == history.end:
            folded = await folded_run(history, await self.revealed(history.base))
        else:
            folded = await run_as_of(history, end=end)
        if self._stored_runs.sealing is None:
            return folded._replace(record=hide_run(folded.record))
        return folded

    async def revealed(self, record: RunRecord) -> RunRecord:
        """The record with its labels and its error in clear; hidden without the key."""
        sealing = self._stored_runs.sealing
        return hide_run(record) if sealing is None else await sealing.reveal_run(record)

    async def follow_start(self, run_id: str) -> FollowStart:
        """Where to begin to follow a run: at the end of its stored pages. Raises as `history`
        does.
        """
        try:
            stored = await self._stored_runs.find(check_id(run_id, name="run_id"))
            seen, end = await self._event_ids(stored) if stored is not None else ([], 0)
        except DamagedError:
            stored = None
        if stored is None:
            topic = self._topics.run(run_id, (await self._catalog.find(run_id)).log_id)
            return FollowStart(topic, Admission(run_id, skipped=await self._catalog.skipped(topic)), 0)
        return await self._start_behind(stored._replace(end=end), seen)

    async def _start_behind(self, stored: StoredRun, seen: Sequence[str]) -> FollowStart:
        state, topic = stored.state, self._topics.run(stored.state.run_id, stored.state.log_id)
        admission = Admission(
            state.run_id,
            seen=seen,
            opened=state.opened,
            ended=state.ended,
            last_offset=state.last_offset,
            skipped=await self._stored_runs.skipped(topic),
        )
        history = SnapshotHistory(self._stored_runs, stored)
        async for slice_ in history.slices(first_offset=state.record.next_offset):
            for admitted in slice_.admitted():
                admission.replay(admitted)
        return FollowStart(topic, admission, stored.end)

    async def _event_ids(self, stored: StoredRun) -> tuple[list[str], int]:
        """The ids of all events that count, and the end of the pages that hold them."""
        seen: list[str] = []
        end = 0
        async for page in stored.edition.pages.read(stored.state.log_id, bodies=False):
            seen += page.event_ids()
            end = page.next_offset
            await asyncio.sleep(0)
        if end < stored.end:
            if await self._stored_runs.has_changed(stored.edition):
                run_id = stored.state.run_id
                raise UnavailableError("MongoDB", reason=f"the pages of run {run_id!r} are being replaced")
            raise damaged("pages", page_id(stored.state.log_id, end), "no page covers this offset")
        return seen, end

    async def _sound_history(self, run_id: str, min_offset: int) -> History:
        """The run from its log, because what is stored of it is damaged."""
        life = await self._catalog.find(run_id)
        until = time.monotonic() + self._wait_timeout_seconds
        while True:
            quarantined = await self._quarantined(life, min_offset)
            history = await self._from_log(life, self._catalog.skipped)
            if quarantined is not None:
                history.end = min(history.end, quarantined.offset)
            if history.end > min_offset:
                return history
            if time.monotonic() > until:
                raise NotYetVisibleError(
                    run_id, min_offset=min_offset, timeout_seconds=self._wait_timeout_seconds
                )
            await asyncio.sleep(_POLL_SECONDS_MAX)

    async def _wait_for(
        self, min_offset: int, life: Life, stored: StoredRun | None, *, is_ahead: bool
    ) -> History:
        """The history that holds `min_offset`: with the newest records from the log, if that is
        quick; else from the projections if they reach it soon, else from the log.
        """
        skipped_in = self._stored_runs.skipped if stored is not None else self._catalog.skipped
        await self._refuse_quarantined(life, min_offset)
        if recent := await self._recent_history(life, stored, min_offset, is_ahead=is_ahead):
            return recent
        began = time.monotonic()
        patient_until = began + min(_PATIENCE_SECONDS, self._wait_timeout_seconds)
        if history := await self._poll(life.run_id, min_offset, until=patient_until):
            return history
        quarantined = await self._quarantined(life, min_offset)
        from_log = await self._from_log(life, skipped_in)
        if quarantined is not None:
            from_log.end = min(from_log.end, quarantined.offset)
        if from_log.end > min_offset:
            return from_log
        # The event is still on its way into the log, or there is none at this offset.
        if history := await self._poll(life.run_id, min_offset, until=began + self._wait_timeout_seconds):
            return history
        await self._quarantined(life, min_offset)
        raise NotYetVisibleError(
            life.run_id, min_offset=min_offset, timeout_seconds=self._wait_timeout_seconds
        )

    async def _look_ahead(self, run_id: str, offset: int | None) -> bool:
        """Reads the newest records of a run that was read so before, up to `offset`. Returns
        whether they are read and can be shown.
        """
        recent = self.recent.get(run_id)
        if recent is None or offset is None:
            return False
        has_skips, is_ahead = await asyncio.gather(self._has_skips(recent), self._advance(recent, offset))
        return has_skips and is_ahead

    async def _has_skips(self, recent: RecentRun) -> bool:
        """Whether the run was read with the skips of today, as far as is known."""
        if recent.wants_skips:
            with contextlib.suppress(UnavailableError):
                return recent.has_skips(await self._stored_runs.skipped(recent.at.topic))
        return not recent.wants_skips

    async def _advance(self, recent: RecentRun, offset: int) -> bool:
        """The same for any run. It is False too if that would take long. The run is kept for later
        readers, unless its next record cannot be read so.
        """
        run_id = recent.admission.run_id
        can_go_on = True
        try:
            async with asyncio.timeout(_QUICK_SECONDS):
                quarantined, can_go_on = await asyncio.gather(
                    self._stored_runs.quarantined(run_id_of(run_id)), recent.advance(self._log_ends, offset)
                )
        except TimeoutError:
            self._log_ends.forget_leader(recent.at)
            return False
        except UnavailableError:
            return False
        finally:
            if can_go_on:
                self.recent.keep(run_id, recent)
            else:
                self.recent.drop(run_id)
        return quarantined is None and recent.next_offset > offset

    async def _recent_history(
        self, life: Life, stored: StoredRun | None, offset: int, *, is_ahead: bool = False
    ) -> History | None:
        """The history up to `offset` at least, with its newest records from the log. None if that
        is not possible, or would take long. `is_ahead` says that they are read already.
        """
        try:
            recent = await self._recent_run(life, stored)
        except (UnavailableError, DamagedError):
            return None
        if recent is None:
            return None
        is_read = is_ahead and recent is self.recent.get(life.run_id) and recent.next_offset > offset
        if not is_read and not await self._advance(recent, offset):
            return None
        if stored is not None:
            history = self._with_recent(stored, recent)
            return history if history.end > offset else None
        self.recent.keep(life.run_id, recent)
        unstored = recent.unstored(0)
        if unstored is None:
            return None
        end = unstored.next_offset
        return self.log_history(life, end=end, kept=unstored.between(0, end))

    async def _recent_run(self, life: Life, stored: StoredRun | None) -> RecentRun | None:
        """The rule of outcomes behind the stored pages. None if the run is too long to load it."""
        topic = self._topics.run(life.run_id, life.log_id)
        recent = self.recent.get(life.run_id, life.log_id)
        stored_end = stored.end if stored is not None else 0
        # What the pages have is not read from the log.
        if recent is not None and recent.next_offset >= stored_end and await self._has_skips(recent):
            return recent
        if stored is None:
            # As the projector knows them, and as `_has_skips` asks for them.
            admission = Admission(life.run_id, skipped=await self._stored_runs.skipped(topic))
            return RecentRun(Partition(topic, 0), admission, 0)
        if stored.end > EVENTS_MAX:
            return None
        seen, end = await self._event_ids(stored)
        start = await self._start_behind(stored._replace(end=end), seen)
        return RecentRun(Partition(topic, 0), start.admission, start.next_offset)

    async def _poll(self, run_id: str, min_offset: int, *, until: float) -> History | None:
        """The run from the projections when they hold `min_offset`. Few reads come here: of long
        runs, and of offsets that the log does not have yet.
        """
        pause = _POLL_SECONDS_MIN
        stored: StoredRun | None = None
        while True:
            try:
                stored = await stored.refresh() if stored else await self._stored_runs.find(run_id)
            except DamagedError:
                return None
            if stored is not None and stored.end > min_offset:
                return SnapshotHistory(self._stored_runs, stored)
            if time.monotonic() > until:
                return None
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _POLL_SECONDS_MAX)

    async def _refuse_quarantined(self, life: Life, offset: int) -> None:
        """Raises `QuarantinedError` if the last look at the quarantine, and a look now, show that
        `offset` cannot be folded. The log can be read while MongoDB is away.
        """
        if self._stored_runs.may_be_quarantined(run_id_of(life.run_id)):
            with contextlib.suppress(UnavailableError):
                await self._quarantined(life, offset)

    async def _quarantined(self, life: Life, offset: int) -> Quarantined | None:
        """The run's entry in the quarantine. Raises `QuarantinedError` if `offset` is not before
        the entry's offset.
        """
        entry = await self._stored_runs.quarantined(run_id_of(life.run_id))
        if entry is None or entry.topic != self._topics.run(life.run_id, life.log_id):
            return None
        if entry.offset <= offset:
            raise QuarantinedError(entry.id, offset=entry.offset, reason=entry.reason)
        return entry

    async def log_end(self, at: Partition, end: int | None) -> int:
        """The end of a run's log. `end` is that of its last topic, as far as this process knows:
        only a log that is missing, or was sealed once, is looked up. Raises `LogGoneError`.
        """
        if end is not None and self._stored_runs.segment_book.of_topic(at.topic) is None:
            return end
        return await end_offset(self._log, at.topic, segments=await self._catalog.connected_segments())

    async def _from_log(self, life: Life, skipped_in: SkippedIn) -> History:
        topic = self._topics.run(life.run_id, life.log_id)
        end = await end_offset(self._log, topic, segments=self._catalog.segments)
        return self.log_history(life, end=end, skipped_in=skipped_in)

    def log_history(
        self,
        life: Life,
        *,
        end: int,
        skipped_in: SkippedIn | None = None,
        kept: Sequence[Admitted] = (),
    ) -> History:
        """The run from its log, up to `end`. By default the skipped offsets are read from MongoDB.
        `kept` are its records, if they were read already.
        """
        topic = self._topics.run(life.run_id, life.log_id)
        unfolded = RunRecord(run_id=life.run_id, agent_id=life.agent_id, session_id=life.session_id)
        return LogHistory(
            self._log,
            topic,
            unfolded,
            end=end,
            skipped_in=skipped_in or self._stored_runs.skipped,
            kept=kept,
            sealing=self._stored_runs.sealing,
            segments=self._catalog.segments,
        )
