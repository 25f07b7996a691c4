"""Examines a run that could not be folded or stored, or that was in hand when a process died.

The run's log is folded and stored to its end in small portions. If a portion fails, its halves are
tried. So all records before the one that fails are stored, and the run is set aside there.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, nullcontext

from runfold.log.archived_logs import ARCHIVE
from runfold.log.catalog import partition_of
from runfold.log.driver import TopicRefusedError
from runfold.log.fetch_answer import FetchedRecords
from runfold.log.reader import LogGoneError, end_offset, read_fetches
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold.projector.active import ActiveRun, Folded, begin
from runfold.projector.forwarding import Forwarder
from runfold.projector.holding import alone, portions
from runfold.projector.mending import UNMENDABLE
from runfold.projector.page_mending import StoredPages
from runfold.projector.quarantine import BEGUN_MAX, DIED, defect, reason_of
from runfold.projector.refold import UnreadableLogError, refold
from runfold.projector.safeguards import Safeguards
from runfold.projector.suspects import Suspect
from runfold.projector.writer import Writer
from runfold.store.edition import Edition
from runfold.store.holdings import Held
from runfold.store.quarantine import no_topic, run_id_of, short_log
from runfold.store.runs import RunState
from runfold_schemas.codec import Record
from runfold_schemas.errors import DamagedError, UnavailableError
from runfold_schemas.topics import OFFSET_MAX, Partition, RunTopic

_PORTION_MAX = 500

_VAIN_MAX = 3
"""The number of examinations of one error that find nothing. After that the run is set aside, or it
would be examined for ever.
"""

_ARCHIVE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Examination:
    """Examines the runs of one worker, a few at a time."""

    def __init__(
        self,
        settings: LogSettings,
        stores: Edition,
        writer: Writer,
        forwarder: Forwarder,
        *,
        safeguards: Safeguards,
        segments: SegmentBook,
    ) -> None:
        self._settings = settings
        self._segments = segments
        self._topics = settings.topics
        self._stores = stores
        self._pages = stores.pages
        self._runs = stores.runs
        self._writer = writer
        self._forwarder = forwarder
        self._quarantine = safeguards.quarantine
        self._skips = safeguards.skips
        self._holding = safeguards.holding
        self._suspects = safeguards.suspects
        # Large records are folded one after the other, so that one death blames one of them.
        self._alone = asyncio.Lock()
        self._in_vain: Counter[tuple[str, str]] = Counter()

    async def inherit(self, partitions: Collection[int]) -> dict[Partition, list[Held]]:
        """What other processes had in hand of what the owner of these partitions takes."""

        def concerns(held: Held) -> bool:
            run = self._topics.parse_run(held.topic)
            return (held.partition if run is None else partition_of(self._topics, run.run_id)) in partitions

        return await self._holding.inherit(concerns)

    async def suspects(self, inherited: Mapping[Partition, Sequence[Held]]) -> list[Suspect]:
        """The runs with records that were in hand when a process died, and that are not folded."""
        runs = {at: run for at in inherited if (run := self._topics.parse_run(at.topic)) is not None}
        states = await self._runs.get_many([run.run_id for run in runs.values()])
        suspects = []
        for at, run in runs.items():
            state = states.get(run.run_id)
            position = state.record.next_offset if state and state.log_id == run.log_id else OFFSET_MAX
            if held := [each for each in inherited[at] if each.next_offset > position]:
                suspects.append(Suspect(run.run_id, run.log_id, held=held))
            else:
                await self._holding.settle(at, below=OFFSET_MAX)
        return suspects

    async def examine(self, suspect: Suspect) -> bool:
        """Folds and stores the run's log. Returns whether the run can go on. If it cannot, it is
        set aside.
        """
        if not suspect.is_requested:
            goes_on = await self._examine(suspect)
        else:
            async with self._quarantine.begun(run_id_of(suspect.run_id)) as request:
                is_deadly = request is not None and request.begun > BEGUN_MAX
                goes_on = await self._leave(suspect) if is_deadly else await self._examine(suspect)
        at = Partition(self._topics.run(suspect.run_id, suspect.log_id), 0)
        await self._holding.settle(at, below=OFFSET_MAX)
        return goes_on

    async def _leave(self, suspect: Suspect) -> bool:
        """Sets a run aside, or leaves it aside, because processes died while they examined it.
        Returns whether the run can go on.
        """
        state = (await self._runs.get_many([suspect.run_id])).get(suspect.run_id)
        if state is None or state.log_id != suspect.log_id:
            return True  # it was deleted meanwhile
        if self._quarantine.has_run(suspect.run_id):
            await self._quarantine.forget_request(run_id_of(suspect.run_id))
            return False
        at = Partition(self._topics.run(suspect.run_id, suspect.log_id), 0)
        position = state.record.next_offset
        await self._set_aside(state, at, _FailedError(range(position, position), reason=DIED))
        return False

    async def _examine(self, suspect: Suspect) -> bool:
        at = Partition(self._topics.run(suspect.run_id, suspect.log_id), 0)
        count_max = _PORTION_MAX
        is_damaged, was_refolded = suspect.is_refolded, False
        is_skipped = suspect.is_requested and await self._has_stored_skipped(suspect, at)
        not_refolded: _FailedError | None = None
        while True:
            state = (await self._runs.get_many([suspect.run_id])).get(suspect.run_id)
            if state is None or state.log_id != suspect.log_id:
                return True  # it was deleted meanwhile
            try:
                if suspect.is_requested:
                    await self._check_log(state, at)
                if (is_damaged or is_skipped) and not was_refolded:
                    was_refolded = True
                    not_refolded = await self._refold(state)
                    continue
                await self._fold(state, at, suspect.held, count_max)
                failed = not_refolded or self._failed_in_vain(suspect, state)
            except _FailedError as error:
                failed = error
                is_damaged = isinstance(error.error, DamagedError)
            except _OvertakenError:
                failed = _FailedError(range(0), count=count_max + 1)
            except UnavailableError as error:
                if error.server != ARCHIVE:
                    raise
                # Only runs that lie in the archive wait for it.
                _log.warning("run %s waits: %s", suspect.run_id, error)
                await asyncio.sleep(_ARCHIVE_SECONDS)
                continue
            if failed is None:
                return True
            if is_damaged and not was_refolded:
                continue
            if failed.count <= 1:
                await self._set_aside(state, at, failed)
                return False
            count_max = failed.count // 2

    async def _has_stored_skipped(self, suspect: Suspect, at: Partition) -> bool:
        """Whether a skip begins before the end of what is stored of the run. What is stored of the
        skipped record has another outcome then.
        """
        if not (skipped := self._skips.of(at)):
            return False
        state = (await self._runs.get_many([suspect.run_id])).get(suspect.run_id)
        stored = await StoredPages.find(self._pages, suspect.log_id, end=OFFSET_MAX)
        end = max(state.record.next_offset if state is not None else 0, stored.reached)
        return any(offsets.start < end for offsets in skipped)

    async def _check_log(self, state: RunState, at: Partition) -> None:
        """Raises `_FailedError` if the log is missing or too short. The backlog would find that out
        too, but only after a while, and the operator waits for an answer.
        """
        position = state.record.next_offset
        reason = None
        try:
            end = await end_offset(self._settings, at.topic, segments=self._segments)
            if end < position:
                reason = short_log(at.topic, end=end, position=position)
        except LogGoneError:
            reason = no_topic(at.topic)
        except TopicRefusedError as error:
            raise _FailedError(range(position, position), error=error) from error
        if reason is not None and not state.without_log:
            raise _FailedError(range(position, position), reason=reason)

    async def _refold(self, state: RunState) -> "_FailedError | None":
        """Makes what is stored of the run what its log says. Returns a failure if that is not
        possible.
        """
        position = state.record.next_offset
        try:
            run = RunTopic(state.run_id, state.log_id)
            async with self._alone:
                await refold(self._stores, self._settings, run, only_stored=True, segments=self._segments)
        except UnreadableLogError as error:
            return _FailedError(error.offsets, reason=error.reason)
        except (*UNMENDABLE, TopicRefusedError) as error:
            return _FailedError(range(position, position), error=error)
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            return _FailedError(range(position, position), error=defect(error))
        return None

    async def _fold(self, state: RunState, at: Partition, suspects: Sequence[Held], count_max: int) -> None:
        position = state.record.next_offset
        try:
            keys, skipped = self._settings.effect_keys, self._skips.of(at)
            run, _ = await begin(self._pages, state, at.topic, skipped=skipped, effect_keys=keys)
            parts = self._parts(run)
            async with aclosing(parts):
                async for part, is_stored in parts:
                    position = run.next_offset
                    await self._take_part(run, part, suspects, count_max, is_stored=is_stored)
                    position = run.next_offset
            position = run.merge_from
            await self._writer.merge(run)
        except (_FailedError, _OvertakenError):
            raise
        except LogGoneError:
            return  # the backlog finds out whether the topic is gone for good
        except TopicRefusedError as error:
            if error.topic != at.topic:
                raise
            raise _FailedError(range(position, position), error=error) from error
        except Exception as error:
            raise _FailedError(range(position, position), error=defect(error)) from error

    async def _parts(self, run: ActiveRun) -> AsyncGenerator[tuple[FetchedRecords, bool], None]:
        """What follows in the run's log, and whether it is stored in pages."""
        async with aclosing(self._pages.read(run.log_id, first_offset=run.next_offset)) as pages:
            async for page in pages:
                position = run.next_offset
                records = [record for record in page.records() if record.offset >= position]
                yield FetchedRecords(run.at, records, page.next_offset), True
        fetches = read_fetches(self._settings, run.at, first_offset=run.next_offset, segments=self._segments)
        async with aclosing(fetches):
            async for fetch in fetches:
                yield fetch, False

    async def _take_part(
        self,
        run: ActiveRun,
        part: FetchedRecords,
        suspects: Sequence[Held],
        count_max: int,
        *,
        is_stored: bool,
    ) -> None:
        blocked = next((each for each in part.unreadable if not self._skips.has(run.at, each.offset)), None)
        end = part.next_offset if blocked is None else blocked.offset
        records = [record for record in part.records if record.offset < end]
        divided = portions(records, count_max=count_max)
        for portion in divided[:-1]:
            await self._take(run, portion, suspects, reached=portion[-1].offset + 1, is_stored=is_stored)
        if end > run.next_offset:
            await self._take(run, divided[-1] if divided else [], suspects, reached=end, is_stored=is_stored)
        if blocked is not None:
            raise _FailedError(range(blocked.offset, blocked.next_offset), reason=blocked.reason)

    async def _take(
        self,
        run: ActiveRun,
        portion: Sequence[Record],
        suspects: Sequence[Held],
        *,
        reached: int,
        is_stored: bool,
    ) -> None:
        offset = portion[0].offset if portion else run.next_offset
        offsets = range(offset, offset + 1)
        is_skipped = self._skips.has(run.at, offset)
        if portion and not is_skipped and await self._holding.is_condemned(run.at, portion, suspects):
            raise _FailedError(offsets, reason=DIED)
        held = alone(run.at, portion, suspects) if portion else []
        try:
            async with self._alone if held else nullcontext(), self._holding.noted(held):
                folded = await self._store_pages(run, portion, reached=reached, is_stored=is_stored)
            # The forwards may wait for long, so nothing is in hand then.
            if folded.forwards:
                await self._forwarder.forward_all(folded.forwards)
            await self._writer.save(folded)
        except _OvertakenError:
            raise
        except Exception as error:
            raise _FailedError(offsets, error=defect(error), count=len(portion)) from error
        self._suspects.note_progress(run.run_id)

    async def _store_pages(
        self, run: ActiveRun, portion: Sequence[Record], *, reached: int, is_stored: bool
    ) -> Folded:
        """Folds a portion and stores all of the result but states and values."""
        had_ended = run.admission.ended
        if is_stored:
            run.fold_stored(portion, reached=reached)
            folded = run.folded(ended=run.admission.ended and not had_ended)
        else:
            folded = run.take(portion, next_offset=reached)
        if await self._writer.write_pages([folded]):
            raise _OvertakenError
        return folded

    def _failed_in_vain(self, suspect: Suspect, state: RunState) -> "_FailedError | None":
        """A failure, if the run is suspected again and again and the examination finds nothing."""
        if suspect.error is None:
            return None
        seen = (state.log_id, reason_of(suspect.error))
        self._in_vain[seen] += 1
        if self._in_vain[seen] < _VAIN_MAX:
            return None
        del self._in_vain[seen]
        position = state.record.next_offset
        return _FailedError(range(position, position), error=suspect.error)

    async def _set_aside(self, state: RunState, at: Partition, failed: "_FailedError") -> None:
        if failed.error is not None:
            trace = await self._quarantine.loggable(failed.error)
            _log.error("run %s cannot be folded or stored", state.run_id, exc_info=trace)
        await self._quarantine.set_aside_run(
            state.run_id, at, failed.offsets, failed.reason, owner=state.partition
        )


class _OvertakenError(Exception):
    """Another worker stored records of the run first."""


class _FailedError(Exception):
    """A portion of `count` records that begins with `offsets` could not be folded or stored."""

    def __init__(
        self, offsets: range, *, error: Exception | None = None, reason: str = "", count: int = 1
    ) -> None:
        super().__init__(reason)
        self.offsets = offsets
        self.error = error
        self.reason = reason if error is None else reason_of(error)
        self.count = count
