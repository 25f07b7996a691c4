"""One active run in a worker's memory: its fold after `next_offset` records. `load` makes it from
the stored state and pages.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing, nullcontext
from typing import NamedTuple

from runfold.log.effect_keys import EffectKeys, may_change_others
from runfold.log.fetch_answer import FetchedRecords
from runfold.projector.holding import LARGE_BYTES, Holding
from runfold.store.damage import damaged
from runfold.store.holdings import Held
from runfold.store.page import Draft, Framed, cut, packed_records, page_id
from runfold.store.pages import Page, PageStore
from runfold.store.runs import RunState
from runfold_projections.activity import RunActivity, activity_after
from runfold_projections.admission import Admission, Admitted, is_skipped
from runfold_projections.chain import START, extend
from runfold_projections.run import RunRecord, fold_tally
from runfold_projections.state import Forward, Value, changes_shared, own_changes, shared_changes
from runfold_projections.tally import Tally, admit_all
from runfold_projections.usage import usage_after
from runfold_schemas.codec import Record, decode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.topics import Partition

_REST_SECONDS = 2.0


class Folded(NamedTuple):
    """The result of folding a part of a run's log: the writes, in this order."""

    run: "ActiveRun"
    undecodable: list[Admitted]
    pages: list[Draft]
    ended: bool
    """The run ended within this part."""
    before: RunState
    """The state before this part."""
    state: RunState
    values: dict[str, Value]
    """The values that this part sets in the run's own state."""
    forwards: list[Forward]
    forwards_bytes: int
    """An upper bound of the size of `forwards`: the bytes of their records."""


class ActiveRun:
    """A run that its worker tails. Only the worker's loop changes it. After a failed write it is
    dropped and loaded again.
    """

    __slots__ = (
        "_effect_keys",
        "_forwards",
        "_forwards_bytes",
        "_is_resting",
        "_last_state",
        "_values",
        "activity",
        "admission",
        "at",
        "bells",
        "catalog_partition",
        "chain",
        "log_id",
        "max_time",
        "merge_from",
        "quiet_since",
        "record",
        "run_id",
        "small_pages",
        "stored_offset",
        "topic",
        "usage",
    )

    def __init__(
        self,
        state: RunState,
        topic: str,
        *,
        seen: Sequence[str] = (),
        max_time: int = 0,
        skipped: Collection[range] = (),
        effect_keys: EffectKeys | None = None,
    ) -> None:
        self.run_id = state.run_id
        self.log_id = state.log_id
        self.topic = topic
        self.at = Partition(topic, 0)
        self.catalog_partition = state.partition
        self.record: RunRecord = state.record
        self.usage = state.usage
        self.activity: RunActivity | None = state.activity
        self.chain = state.chain if self.record.next_offset else START
        """The chain of the log at `next_offset`. None if the stored state has none: see
        `begin`.
        """
        self.admission = Admission(
            state.run_id,
            seen=seen,
            opened=state.opened,
            ended=state.ended,
            last_offset=state.last_offset,
            skipped=skipped,
        )
        self.max_time = max_time
        """The latest append time in the log, milliseconds since 1970."""
        self.stored_offset = self.record.next_offset
        """The end of the run's stored pages, as far as this worker knows. It is below `next_offset`
        while a write is in progress.
        """
        self.quiet_since = time.monotonic()
        self.bells = 0
        self.small_pages = 0
        self.merge_from = 0
        self._effect_keys = effect_keys
        self._last_state = state
        self._values: dict[str, Value] = {}
        self._forwards: list[Forward] = []
        self._forwards_bytes = 0
        self._is_resting = False

    @property
    def next_offset(self) -> int:
        return self.record.next_offset

    def ring(self) -> None:
        """Notes a bell, so that the run is not parked for a while."""
        self.bells += 1
        self.quiet_since = time.monotonic()

    def take_fetched(self, part: FetchedRecords) -> Folded:
        """Folds what a fetch has of the log behind `next_offset`. Raises `UndecodableError` if a
        batch of records cannot be read, unless an operator skipped it.
        """
        position, skipped = self.next_offset, self.admission.skipped
        for batch in part.unreadable:
            if not is_skipped(batch.offset, skipped):
                raise UndecodableError(batch.reason)
        records = [record for record in part.records if record.offset >= position]
        return self.take(records, next_offset=part.next_offset)

    def take(self, records: Sequence[Record], *, next_offset: int) -> Folded:
        """Folds the records of `[self.next_offset, next_offset)`."""
        had_ended = self.admission.ended
        undecodable: list[Admitted] = []
        pages: list[Draft] = []
        for portion in cut(records):
            is_last = not records or portion.records[-1] is records[-1]
            first_offset, tally = self.next_offset, admit_all(self.admission, portion.records)
            self._fold(tally, reached=next_offset if is_last else portion.records[-1].offset + 1)
            self._extend_chain(portion.packed)
            undecodable += tally.undecodable
            # The bytes of single records are not kept until the page is written.
            framed = Framed(portion.records, portion.frames)
            pages.append(Draft(self.log_id, first_offset, self.next_offset, framed, tally))
        self.max_time = max(self.max_time, *(record.log_time for record in records[-1:]), 0)
        self.quiet_since = time.monotonic()
        self._is_resting = False
        self.small_pages += sum(page.is_small for page in pages)
        return self.folded(undecodable, pages, ended=self.admission.ended and not had_ended)

    def _fold(self, tally: Tally, *, reached: int) -> None:
        """Folds the records of a tally, up to the offset `reached`."""
        counts = self.record.counts
        tally.next_offset = reached
        self.record = fold_tally(self.record, tally)
        self.usage = usage_after(self.usage, tally.whole, before=counts, after=self.record.counts)
        if self.activity is not None:
            self.activity = activity_after(self.activity, tally)
        for each in tally.whole:
            if each.event is not None and changes_shared(each.event):
                self._values |= own_changes(each)
                shared = shared_changes(each, app=self.record.agent_id, user=self.record.user_id)
                if shared and not may_change_others(self._effect_keys, self.topic, each.record):
                    shared = [forward._replace(is_trusted=False) for forward in shared]
                self._forwards += shared
                self._forwards_bytes += len(each.record.value or b"") if shared else 0

    def fold_stored(self, records: Sequence[Record], *, reached: int) -> None:
        """Folds records of a stored page, up to the offset `reached`."""
        position = self.next_offset
        behind = [record for record in records if record.offset >= position]
        self._fold(admit_all(self.admission, behind), reached=reached)
        self._extend_chain(packed_records(behind))

    def _extend_chain(self, packed: Iterable[bytes]) -> None:
        if self.chain is not None:
            self.chain = extend(self.chain, packed)

    def folded(
        self,
        undecodable: list[Admitted] | None = None,
        pages: list[Draft] | None = None,
        *,
        ended: bool = False,
    ) -> Folded:
        """The writes since the last call."""
        values, self._values = self._values, {}
        forwards, self._forwards = self._forwards, []
        forwards_bytes, self._forwards_bytes = self._forwards_bytes, 0
        before, self._last_state = self._last_state, self.state()
        return Folded(
            run=self,
            undecodable=undecodable or [],
            pages=pages or [],
            ended=ended,
            before=before,
            state=self._last_state,
            values=values,
            forwards=forwards,
            forwards_bytes=forwards_bytes,
        )

    def rest(self) -> None:
        """Takes less memory while the run is quiet."""
        if not self._is_resting and time.monotonic() - self.quiet_since > _REST_SECONDS:
            self.admission.pack()
            self._is_resting = True

    def state(self) -> RunState:
        return RunState(
            log_id=self.log_id,
            partition=self.catalog_partition,
            active=True,
            record=self.record,
            usage=self.usage,
            opened=self.admission.opened,
            ended=self.admission.ended,
            last_offset=self.admission.last_offset,
            chain=self.chain,
            activity=self.activity,
        )


async def load(
    pages: PageStore,
    state: RunState,
    topic: str,
    *,
    skipped: Collection[range] = (),
    effect_keys: EffectKeys | None = None,
    bytes_max: int | None = None,
    holding: Holding | None = None,
) -> ActiveRun:
    """The stored run: its state, and the fold of the pages beyond the state. With `bytes_max` only
    the first pages of that size together. Large pages are noted in `holding`. Raises `DamagedError`
    if a page cannot be used, or one before the state is missing.
    """
    run, end = await begin(pages, state, topic, skipped=skipped, effect_keys=effect_keys)
    position = run.next_offset
    tail = await _read(pages, state.log_id, position, bytes_max) if end > position else []
    held = [Held(*run.at, position, end)] if sum(page.size for page in tail) > LARGE_BYTES else []
    async with holding.noted(held) if holding else nullcontext():
        for page in tail:
            run.fold_stored(page.records(), reached=page.next_offset)
    run.stored_offset = run.next_offset
    return run


async def begin(
    pages: PageStore,
    state: RunState,
    topic: str,
    *,
    skipped: Collection[range] = (),
    effect_keys: EffectKeys | None = None,
) -> tuple[ActiveRun, int]:
    """The run at its stored state, and the end of its pages."""
    position = state.record.next_offset
    seen: list[str] = []
    small_pages = max_time = 0
    end = 0
    merge_from: int | None = None
    divided: int | None = None
    async for page in pages.read(state.log_id, bodies=False):
        if page.next_offset <= position:
            seen += page.event_ids()
        elif page.first_offset < position:
            divided = page.first_offset
        if page.is_small:
            small_pages += 1
            merge_from = page.first_offset if merge_from is None else merge_from
        max_time = max(max_time, page.max_time)
        end = page.next_offset
    if end < position:
        raise damaged("pages", page_id(state.log_id, end), "no page covers this offset")
    if divided is not None:
        seen += await _read_ids(pages, state.log_id, divided, position)
    run = ActiveRun(state, topic, seen=seen, max_time=max_time, skipped=skipped, effect_keys=effect_keys)
    if run.chain is None:
        run.chain = await chain_of_pages(pages, state.log_id, position)
    run.small_pages = small_pages
    run.merge_from = end if merge_from is None else merge_from
    return run, end


async def chain_of_pages(pages: PageStore, log_id: str, end: int) -> bytes:
    """The chain of the stored records before `end`."""
    chain, offset = START, 0
    async with aclosing(pages.read(log_id)) as reading:
        async for page in reading:
            records = (record for record in page.records() if offset <= record.offset < end)
            chain = extend(chain, packed_records(records))
            offset = page.next_offset
            if offset >= end:
                break
    return chain


async def _read_ids(pages: PageStore, log_id: str, begin: int, end: int) -> list[str]:
    """The ids of the events that count in `[begin, end)`. A merge can make a page that the saved
    state ends within.
    """
    ids: list[str] = []
    async with aclosing(pages.read(log_id, first_offset=begin)) as reading:
        async for page in reading:
            ids += _ids_before(page, end)
            if page.next_offset >= end:
                break
    return ids


async def _read(pages: PageStore, log_id: str, position: int, bytes_max: int | None) -> list[Page]:
    result: list[Page] = []
    size = 0
    async with aclosing(pages.read(log_id, first_offset=position)) as reading:
        async for page in reading:
            result.append(page)
            size += page.size
            if bytes_max is not None and size >= bytes_max:
                break
    return result


def _ids_before(page: Page, position: int) -> list[str]:
    """The event ids of a page below `position`."""
    exceptions = {offset for offset, outcome, _ in page.exceptions if outcome != "late"}
    return [
        decode(record.value).event_id
        for record in page.records()
        if record.offset < position and record.offset not in exceptions
    ]
