"""One active run in a worker's memory: its fold after `next_offset` records. `load` makes it from
the stored state and pages.
"""

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from runfold.store.pages import EVENTS_MAX, Page, PageStore, pages_of
from runfold.store.runs import RunState
from runfold_projections.admission import Admission, Admitted
from runfold_projections.run import RunRecord, fold
from runfold_projections.state import Forward, Value, changes_shared, own_changes, shared_changes
from runfold_schemas.codec import Record, decode
from runfold_schemas.topics import Partition


class Folded(NamedTuple):
    """The result of folding a part of a run's log: the writes, in this order."""

    run: "ActiveRun"
    undecodable: list[Admitted]
    pages: list[Page]
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

    def __init__(self, state: RunState, topic: str, *, seen: Sequence[str] = (), max_time: int = 0) -> None:
        self.run_id = state.run_id
        self.log_id = state.log_id
        self.topic = topic
        self.at = Partition(topic, 0)
        self.catalog_partition = state.partition
        self.record: RunRecord = state.record
        self.admission = Admission(
            state.run_id, seen=seen, opened=state.opened, ended=state.ended, last_offset=state.last_offset
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
        self._last_state = state
        self._values: dict[str, Value] = {}
        self._forwards: list[Forward] = []
        self._forwards_bytes = 0

    @property
    def next_offset(self) -> int:
        return self.record.next_offset

    def ring(self) -> None:
        """Notes a bell, so that the run is not parked for a while."""
        self.bells += 1
        self.quiet_since = time.monotonic()

    def take(self, records: Sequence[Record], *, next_offset: int) -> Folded:
        """Folds the records of `[self.next_offset, next_offset)`."""
        had_ended = self.admission.ended
        undecodable: list[Admitted] = []
        pages: list[Page] = []
        # One page at a time, so that its events are freed before the garbage collector would scan
        # them.
        for start in range(0, len(records) or 1, EVENTS_MAX):
            chunk = records[start : start + EVENTS_MAX]
            reached = chunk[-1].offset + 1 if start + EVENTS_MAX < len(records) else next_offset
            pages += self._take_chunk(chunk, undecodable, reached=reached)
        self.max_time = max(self.max_time, *(record.log_time for record in records[-1:]), 0)
        self.quiet_since = time.monotonic()
        self.small_pages += sum(page.is_small for page in pages)
        return self.folded(undecodable, pages, ended=self.admission.ended and not had_ended)

    def fold(self, admitted: Sequence[Admitted], *, reached: int) -> None:
        """Folds admitted records up to the offset `reached`."""
        self.record = fold(self.record, admitted).model_copy(update={"next_offset": reached})
        for each in admitted:
            if each.event is not None and changes_shared(each.event):
                self._values |= own_changes(each)
                shared = shared_changes(each, app=self.record.agent_id, user=self.record.user_id)
                self._forwards += shared
                self._forwards_bytes += len(each.record.value or b"") if shared else 0

    def folded(
        self,
        undecodable: list[Admitted] | None = None,
        pages: list[Page] | None = None,
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

    def _take_chunk(
        self, records: Sequence[Record], undecodable: list[Admitted], *, reached: int
    ) -> list[Page]:
        first_offset, admit = self.next_offset, self.admission.admit
        admitted = [admit(record) for record in records]
        undecodable += [each for each in admitted if each.outcome == "undecodable"]
        self.fold(admitted, reached=reached)
        return pages_of(self.log_id, admitted, first_offset=first_offset, next_offset=reached)

    def state(self) -> RunState:
        return RunState(
            log_id=self.log_id,
            partition=self.catalog_partition,
            active=True,
            record=self.record,
            opened=self.admission.opened,
            ended=self.admission.ended,
            last_offset=self.admission.last_offset,
        )


async def load(pages: PageStore, state: RunState, topic: str, *, bytes_max: int | None = None) -> ActiveRun:
    """The stored run: its state, and the fold of the pages beyond the state. With `bytes_max` only
    the first pages of that size together.
    """
    position = state.record.next_offset
    seen: list[str] = []
    small_pages = max_time = 0
    end = 0
    merge_from: int | None = None
    async for page in pages.read(state.log_id, bodies=False):
        if page.next_offset <= position:
            seen += page.event_ids()
        if page.is_small:
            small_pages += 1
            merge_from = page.first_offset if merge_from is None else merge_from
        max_time = max(max_time, page.max_time)
        end = page.next_offset
    tail = await _read(pages, state.log_id, position, bytes_max) if end > position else []
    for page in tail:
        seen += _ids_before(page, position)
    run = ActiveRun(state, topic, seen=seen, max_time=max_time)
    for page in tail:
        admitted = [
            run.admission.admit(record) for record in page.records() if record.offset >= run.next_offset
        ]
        run.fold(admitted, reached=page.next_offset)
    run.small_pages = small_pages
    run.merge_from = end if merge_from is None else merge_from
    run.stored_offset = run.next_offset
    return run


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
    """The event ids of a page below `position`, the end of the saved state. A merge can make a page
    that the saved state ends within.
    """
    exceptions = {offset for offset, outcome, _ in page.exceptions if outcome != "late"}
    return [
        decode(record.value).event_id
        for record in page.records()
        if record.offset < position and record.offset not in exceptions
    ]
