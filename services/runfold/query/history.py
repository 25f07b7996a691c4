"""A run's records with their outcomes, slice by slice: from pages in MongoDB, or from the log."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol

from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.query.stored_runs import StoredRun, StoredRuns
from runfold.store.pages import Page
from runfold_projections.admission import COUNTING, Admission, Admitted, Outcome
from runfold_projections.run import RunRecord
from runfold_schemas.codec import Record, decode, decode_again
from runfold_schemas.errors import UnavailableError
from runfold_schemas.events import AnyEvent

Source = Literal["snapshot", "log"]

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
    counting: Callable[[], tuple[list[Record], Mapping[int, Outcome]]]
    """The records whose events count, as they are in the log, and the outcomes of records that were
    not simply accepted. Calling it costs a tenth of `admitted`.
    """


class History(Protocol):
    """A run up to `end`. The end is fixed when the reading begins, so reading the run twice gives
    the same.
    """

    source: ClassVar[Source]
    run_id: str
    end: int
    base: RunRecord
    """The run record after the first `base.next_offset` records. Later records are folded onto
    it.
    """
    base_last_offset: int
    """The last of these records whose event counts; -1 if there is none."""

    def slices(self, *, first_offset: int = 0, end: int | None = None) -> AsyncGenerator[Slice, None]:
        """The records of `[first_offset, end)`. Raises `UnavailableError`."""

    async def event(self, offset: int) -> AnyEvent:
        """The event at `offset`, which must count. Raises `UnavailableError`."""


class SnapshotHistory:
    """From pages in MongoDB. If the edition is dropped meanwhile, the reading goes on in the
    current edition.
    """

    source: ClassVar[Source] = "snapshot"

    def __init__(self, stored_runs: StoredRuns, stored: StoredRun) -> None:
        self.edition = stored.edition
        """The edition that is read; the current one if that was dropped."""
        self.log_id = stored.state.log_id
        self.run_id = stored.state.run_id
        self.end = stored.end
        self.base = stored.state.record
        self.base_last_offset = stored.state.last_offset
        self._stored_runs = stored_runs
        self._last: dict[int, Record] = {}

    async def slices(self, *, first_offset: int = 0, end: int | None = None) -> AsyncGenerator[Slice, None]:
        position, end = first_offset, self.end if end is None else min(end, self.end)
        while position < end:
            reason = f"no page of run {self.run_id!r} holds offset {position}"
            try:
                async with aclosing(self.edition.pages.read(self.log_id, first_offset=position)) as pages:
                    async for page in pages:
                        yield _slice_of(page, first_offset=position, end=end)
                        position = page.next_offset
                        if position >= end:
                            return
            except UnavailableError as error:
                reason = error.reason
            await self._change_edition(reason)

    async def begin_of_last(self, newest: int, counts: Callable[[Mapping[str, int]], int]) -> int:
        """The offset from which to read for the `newest` last events. `counts` tells, of the
        numbers of events by type, how many of them count.
        """
        pages = self.edition.pages
        return await pages.begin_of_last(self.log_id, end=self.end, newest=newest, counts=counts)

    async def event(self, offset: int) -> AnyEvent:
        # Single events are mostly read near each other, so the last page is kept.
        while offset not in self._last:
            async with aclosing(self.edition.pages.read(self.log_id, first_offset=offset)) as pages:
                async for page in pages:
                    self._last = {record.offset: record for record in page.records()}
                    break
                else:
                    await self._change_edition(f"no page of run {self.run_id!r} holds offset {offset}")
        return decode(self._last[offset].value)

    async def _change_edition(self, reason: str) -> None:
        """Goes on in the current edition. Raises `UnavailableError` if it is the same edition."""
        await self._stored_runs.look()
        current = await self._stored_runs.current()
        if current is None or current.name == self.edition.name:
            raise UnavailableError("MongoDB", reason=reason)
        self.edition = current


class LogHistory:
    """From the run's topic in Kafka. An outcome depends on earlier records, so the topic is always
    read from its beginning.
    """

    source: ClassVar[Source] = "log"

    def __init__(self, settings: LogSettings, topic: str, base: RunRecord, *, end: int) -> None:
        self.run_id = base.run_id
        self.end = end
        self.base = base
        self.base_last_offset = -1
        self._kept: list[Admitted] = []
        self._settings = settings
        self._topic = topic

    async def slices(self, *, first_offset: int = 0, end: int | None = None) -> AsyncGenerator[Slice, None]:
        end = self.end if end is None else min(end, self.end)
        if self.end <= _PORTION:
            self._kept = self._kept or [admitted async for admitted in self._admit(self.end)]
            kept = [admitted for admitted in self._kept if first_offset <= admitted.record.offset < end]
            if kept:
                yield _slice_of_records(kept)
            return
        portion: list[Admitted] = []
        async for admitted in self._admit(end):
            if admitted.record.offset >= first_offset:
                portion.append(admitted)
            # A fetch may contain ten thousand records. Decoding them at once would take too long
            # and too much memory.
            if len(portion) == _PORTION:
                yield _slice_of_records(portion)
                portion = []
        if portion:
            yield _slice_of_records(portion)

    async def _admit(self, end: int) -> AsyncGenerator[Admitted, None]:
        admission = Admission(self.run_id)
        async with aclosing(self._read(0, end)) as fetches:
            async for records in fetches:
                for record in records:
                    yield admission.admit(record)

    async def event(self, offset: int) -> AnyEvent:
        async with aclosing(self._read(offset, offset + 1)) as fetches:
            async for records in fetches:
                for record in records:
                    return decode(record.value)
        raise UnavailableError("Kafka", reason=f"offset {offset} of {self._topic} is gone")

    def _read(self, first_offset: int, end: int) -> AsyncGenerator[list[Record], None]:
        return read(self._settings, self._topic, first_offset=first_offset, end=end)


def _slice_of(page: Page, *, first_offset: int, end: int) -> Slice:
    outcomes = {offset: (outcome, reason) for offset, outcome, reason in page.exceptions}

    def records() -> list[Record]:
        if first_offset > page.first_offset or end < page.next_offset:
            return [record for record in page.records() if first_offset <= record.offset < end]
        return page.records()

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

    return Slice(
        next_offset=min(page.next_offset, end),
        max_time=page.max_time,
        types=page.counts.keys(),
        turns=page.turns,
        admitted=admitted,
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
        counting=lambda: (
            [admitted.record for admitted in records if admitted.counts],
            {
                admitted.record.offset: admitted.outcome
                for admitted in records
                if admitted.outcome != "accepted"
            },
        ),
    )
