"""A run's records with their outcomes, slice by slice: from pages in MongoDB, or from the log."""

from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from runfold.encryption.sealing import Sealing
from runfold.log.reader import end_offset, read
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold.query.recent import UnstoredRecords
from runfold.query.stored_runs import StoredRun, StoredRuns
from runfold.query.unforeseen import reading_run
from runfold.store.damage import damaged
from runfold.store.page import Page, page_id
from runfold_projections.activity import NO_ACTIVITY, RunActivity
from runfold_projections.admission import COUNTING, Admission, Admitted, Outcome
from runfold_projections.run import RunRecord
from runfold_projections.usage import RunUsage
from runfold_schemas.codec import Record, decode, decode_again
from runfold_schemas.errors import DamagedError, UnavailableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.ledger_events import LedgerEvent, ToolEvent, decode_for_ledger, tool_event, tool_events

Source = Literal["snapshot", "log"]

SkippedIn = Callable[[str], Awaitable[Collection[range]]]
"""Returns the offsets of a run's topic that an operator skipped."""

_PORTION: Final = 500
_ACCEPTED: Final[tuple[Outcome, str]] = ("accepted", "")


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive records. `max_time`, `types` and `turns` may also cover a few records before
    them: they serve to skip a slice without reading it.
    """

    next_offset: int
    max_time: int
    """The latest append time, milliseconds since 1970."""
    types: Collection[str]
    """The types of the events that count; `turns` likewise."""
    turns: Collection[str]
    admitted: Callable[[], list[Admitted]]
    """Decodes the records. Calling it costs most of the time of a read."""
    ledger_events: Callable[[], list[tuple[Record, LedgerEvent]]]
    """The records whose events count, with the events as a ledger needs them. Calling it costs half
    of `admitted`.
    """
    tool_events: Callable[[], list[ToolEvent]]
    """The calls of tools and their results that count. Calling it costs a fifth of `admitted`."""
    counting: Callable[[], tuple[list[Record], Mapping[int, Outcome]]]
    """The records whose events count, as they are in the log, and the outcomes of records that were
    not simply accepted. Calling it costs a tenth of `admitted`.
    """


class History(Protocol):
    """A run up to `end`. The end is fixed when the reading begins, so reading the run twice gives
    the same.
    """

    source: Source
    """Where the records come from, as far as they were read."""
    run_id: str
    log_id: str
    end: int
    base: RunRecord
    """The run record after the first `base.next_offset` records. Later records are folded onto
    it.
    """
    base_usage: RunUsage | None
    """The usage of these records. None if it is to be folded from the records: see `RunState`."""
    base_activity: RunActivity | None
    """The activity of these records. None if it is not stored: see `RunState`."""
    base_last_offset: int
    """The last of these records whose event counts; -1 if there is none."""

    def slices(self, *, first_offset: int = 0, end: int | None = None) -> AsyncGenerator[Slice, None]:
        """The records of `[first_offset, end)`. Raises `UnavailableError`."""

    async def event(self, offset: int) -> AnyEvent:
        """The event at `offset`, which must count. Raises `UnavailableError`."""


class SnapshotHistory:
    """From pages in MongoDB. If the edition is dropped meanwhile, the reading goes on in the
    current edition. If a page is damaged or missing, the reading goes on in the log.

    `unstored` are records behind the pages that were read from the log already.
    """

    def __init__(
        self, stored_runs: StoredRuns, stored: StoredRun, unstored: UnstoredRecords | None = None
    ) -> None:
        self.edition = stored.edition
        """The edition that is read; the current one if that was dropped."""
        self.source: Source = "snapshot"
        self.log_id = stored.state.log_id
        self.run_id = stored.state.run_id
        self.end = stored.end if unstored is None else unstored.next_offset
        self.base = stored.state.record
        self.base_usage = stored.state.usage
        self.base_activity = stored.state.activity
        self.base_last_offset = stored.state.last_offset
        self._stored_runs = stored_runs
        self.stored_end = stored.end
        """Where the records end that are read from pages."""
        self._unstored = unstored
        self._sealing = stored_runs.sealing
        self._last: dict[int, Record] = {}
        self._from_log: LogHistory | None = None

    @property
    def epoch(self) -> object:
        """Another value when keys were destroyed: what was made of the run before is to be
        dropped.
        """
        return None if self._sealing is None else self._sealing.epoch

    async def slices(self, *, first_offset: int = 0, end: int | None = None) -> AsyncGenerator[Slice, None]:
        end = self.end if end is None else min(end, self.end)
        async with aclosing(self._stored_slices(first_offset, min(end, self.stored_end))) as slices:
            async for slice_ in slices:
                yield slice_
        if self._unstored is not None and end > self.stored_end:
            self.source = "log"
            if records := self._unstored.between(first_offset, end):
                yield _slice_of_records(await revealed(self._sealing, records))

    async def _stored_slices(self, position: int, end: int) -> AsyncGenerator[Slice, None]:
        while position < end:
            try:
                async with aclosing(self.edition.pages.read(self.log_id, first_offset=position)) as pages:
                    async for page in pages:
                        yield await self._slice_of(page, first_offset=position, end=end)
                        position = page.next_offset
                        if position >= end:
                            return
                if await self._has_changed_edition():
                    continue
                self._note_missing(position)
            except UnavailableError:
                if not await self._has_changed_edition():
                    raise
                continue
            except DamagedError:
                pass
            async with aclosing(self._slices_of_log(position, end)) as slices:
                async for slice_ in slices:
                    yield slice_
            return

    async def begin_of_last(self, newest: int, counts: Callable[[Mapping[str, int]], int]) -> int:
        """The offset from which to read for the `newest` last events. `counts` tells, of the
        numbers of events by type, how many of them count.
        """
        unstored = self._unstored.between(self.stored_end, self.end) if self._unstored is not None else ()
        for admitted in reversed(unstored):
            if admitted.counts and admitted.event is not None:
                newest -= counts({admitted.event.type: 1})
            if newest <= 0:
                return admitted.record.offset
        pages = self.edition.pages
        return await pages.begin_of_last(self.log_id, end=self.stored_end, newest=newest, counts=counts)

    async def event(self, offset: int) -> AnyEvent:
        if self._unstored is not None and offset >= self.stored_end:
            (admitted,) = await revealed(self._sealing, self._unstored.between(offset, offset + 1))
            assert admitted.event is not None
            return admitted.event
        # Single events are mostly read near each other, so the last page is kept.
        while offset not in self._last:
            try:
                async with aclosing(self.edition.pages.read(self.log_id, first_offset=offset)) as pages:
                    async for page in pages:
                        if self._sealing is not None:
                            records = await self._sealing.reveal(page.rows())
                        else:
                            records = page.records()
                        self._last = {record.offset: record for record in records}
                        break
                    else:
                        if await self._has_changed_edition():
                            continue
                        self._note_missing(offset)
            except DamagedError:
                self._last = {}
            if offset not in self._last:
                return await (await self._log()).event(offset)
        return decode(self._last[offset].value)

    async def _slice_of(self, page: Page, *, first_offset: int, end: int) -> Slice:
        def records() -> list[Record]:
            with self._noting_damage():
                return page.records()

        if self._sealing is None:
            return _slice_of(page, records, first_offset=first_offset, end=end)
        with self._noting_damage():
            rows = page.rows()
        clear = await self._sealing.reveal(rows)
        return _slice_of(page, lambda: clear, first_offset=first_offset, end=end)

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedError:
            # The checksum is right, so the damage shows while the caller reads the slice. The
            # caller fails, and the next read of the run takes the log.
            self._stored_runs.damaged_logs.add(self.log_id)
            raise

    def _note_missing(self, offset: int) -> None:
        damaged("pages", page_id(self.log_id, offset), "no page covers this offset")

    async def _slices_of_log(self, first_offset: int, end: int) -> AsyncGenerator[Slice, None]:
        log = await self._log()
        if log.end < end:
            reason = f"offset {first_offset} is damaged or missing, and the log ends at {log.end}"
            cure = f"runfold rebuild {self.run_id}"
            raise damaged("pages", page_id(self.log_id, first_offset), reason, cure=cure)
        async with aclosing(log.slices(first_offset=first_offset, end=end)) as slices:
            async for slice_ in slices:
                yield slice_

    async def _log(self) -> "LogHistory":
        self.source = "log"
        if self._from_log is None:
            settings = self._stored_runs.log_settings
            topic = settings.topics.run(self.run_id, self.log_id)
            segments = self._stored_runs.segment_book
            end = await end_offset(settings, topic, segments=segments)
            self._from_log = LogHistory(
                settings,
                topic,
                RunRecord(run_id=self.run_id),
                end=end,
                skipped_in=self._stored_runs.skipped,
                sealing=self._sealing,
                segments=segments,
            )
        return self._from_log

    async def _has_changed_edition(self) -> bool:
        """Goes on in the current edition. Returns False if it is the same edition."""
        await self._stored_runs.look()
        current = await self._stored_runs.current()
        if current is None or current.name == self.edition.name:
            return False
        self.edition = current
        return True


class LogHistory:
    """From the run's topic in Kafka. An outcome depends on earlier records, so the topic is always
    read from its beginning. `kept` are all records up to `end`, if they were read already.
    """

    source: Source = "log"

    def __init__(
        self,
        settings: LogSettings,
        topic: str,
        base: RunRecord,
        *,
        end: int,
        skipped_in: SkippedIn,
        kept: Sequence[Admitted] = (),
        sealing: Sealing | None = None,
        segments: SegmentBook | None = None,
    ) -> None:
        self.run_id = base.run_id
        self.log_id = topic.rpartition(".")[2]
        self.end = end
        self.base = base
        self.base_usage: RunUsage | None = RunUsage()
        self.base_activity: RunActivity | None = NO_ACTIVITY
        self.base_last_offset = -1
        self._kept: list[Admitted] = list(kept)
        self._sealing = sealing
        self._settings = settings
        self._topic = topic
        self._skipped_in = skipped_in
        self._segments = segments

    async def slices(self, *, first_offset: int = 0, end: int | None = None) -> AsyncGenerator[Slice, None]:
        end = self.end if end is None else min(end, self.end)
        if self._kept or self.end <= _PORTION:
            self._kept = self._kept or [admitted async for admitted in self._admit(self.end)]
            kept = [admitted for admitted in self._kept if first_offset <= admitted.record.offset < end]
            if kept:
                yield _slice_of_records(await revealed(self._sealing, kept))
            return
        portion: list[Admitted] = []
        async for admitted in self._admit(end):
            if admitted.record.offset >= first_offset:
                portion.append(admitted)
            # A fetch may contain ten thousand records. Decoding them at once would take too long
            # and too much memory.
            if len(portion) == _PORTION:
                yield _slice_of_records(await revealed(self._sealing, portion))
                portion = []
        if portion:
            yield _slice_of_records(await revealed(self._sealing, portion))

    async def _admit(self, end: int) -> AsyncGenerator[Admitted, None]:
        admission = Admission(self.run_id, skipped=await self._skipped_in(self._topic))
        async with aclosing(self._read(0, end)) as fetches:
            async for records in fetches:
                for record in records:
                    with reading_run(self.run_id, offset=record.offset):
                        admitted = admission.admit(record)
                    yield admitted

    async def event(self, offset: int) -> AnyEvent:
        index = bisect_left(self._kept, offset, key=lambda admitted: admitted.record.offset)
        if index < len(self._kept) and (record := self._kept[index].record).offset == offset:
            return await self._decoded(record)
        async with aclosing(self._read(offset, offset + 1)) as fetches:
            async for records in fetches:
                for record in records:
                    return await self._decoded(record)
        raise UnavailableError("Kafka", reason=f"offset {offset} of {self._topic} is gone")

    async def _decoded(self, record: Record) -> AnyEvent:
        if self._sealing is not None:
            [record] = await self._sealing.reveal([record])
        return decode(record.value)

    def _read(self, first_offset: int, end: int) -> AsyncGenerator[list[Record], None]:
        return read(self._settings, self._topic, first_offset=first_offset, end=end, segments=self._segments)


async def revealed(sealing: Sealing | None, records: list[Admitted]) -> list[Admitted]:
    """The records as they were before they were sealed."""
    return records if sealing is None else await sealing.reveal_admitted(records)


def _slice_of(page: Page, unpacked: Callable[[], list[Record]], *, first_offset: int, end: int) -> Slice:
    outcomes = {offset: (outcome, reason) for offset, outcome, reason in page.exceptions}

    def records() -> list[Record]:
        if first_offset > page.first_offset or end < page.next_offset:
            return [record for record in unpacked() if first_offset <= record.offset < end]
        return unpacked()

    def counting() -> tuple[list[Record], Mapping[int, Outcome]]:
        # One more object for each of thousands of events would cost the garbage collector time.
        if not outcomes:
            return records(), {}
        exceptions = {offset: outcome for offset, (outcome, _) in outcomes.items()}
        counted = [record for record in records() if exceptions.get(record.offset, "accepted") in COUNTING]
        return counted, exceptions

    def admitted() -> list[Admitted]:
        judged = [(record, *outcomes.get(record.offset, _ACCEPTED)) for record in records()]
        # The projector has validated these bytes before, so they are decoded without validation.
        events = iter(
            decode_again([record.value or b"" for record, outcome, _ in judged if outcome != "undecodable"])
        )
        return [
            Admitted(record, outcome, None if outcome == "undecodable" else next(events), reason)
            for record, outcome, reason in judged
        ]

    def ledger_events() -> list[tuple[Record, LedgerEvent]]:
        counted, _ = counting()
        events = decode_for_ledger([record.value or b"" for record in counted])
        return list(zip(counted, events, strict=True))

    return Slice(
        next_offset=min(page.next_offset, end),
        max_time=page.max_time,
        types=page.counts.keys(),
        turns=page.turns,
        admitted=admitted,
        ledger_events=ledger_events,
        tool_events=lambda: tool_events(counting()[0]),
        counting=counting,
    )


def _slice_of_records(records: Sequence[Admitted]) -> Slice:
    events = [admitted.event for admitted in records if admitted.event is not None and admitted.counts]
    return Slice(
        next_offset=records[-1].record.offset + 1,
        max_time=max(admitted.record.log_time for admitted in records),
        types={event.type for event in events},
        turns={event.turn_id for event in events if event.turn_id is not None},
        admitted=lambda: list(records),
        ledger_events=lambda: [
            (admitted.record, admitted.event)
            for admitted in records
            if admitted.event is not None and admitted.counts
        ],
        tool_events=lambda: [
            tool
            for admitted in records
            if admitted.event is not None and admitted.counts
            if (tool := tool_event(admitted.record.offset, admitted.event)) is not None
        ],
        counting=lambda: (
            [admitted.record for admitted in records if admitted.counts],
            {
                admitted.record.offset: admitted.outcome
                for admitted in records
                if admitted.outcome != "accepted"
            },
        ),
    )
