"""One active run in a worker's memory: the fold after `next_offset` records, and how it is loaded
from what is stored.
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
    """What one slice of the log became: what is to be written, in this order."""

    run: "ActiveRun"
    undecodable: list[Admitted]
    pages: list[Page]
    ended: bool
    """The run ended within this slice."""
    before: RunState
    """Where what follows begins."""
    state: RunState
    values: dict[str, Value]
    """What the run's own keys hold by this."""
    forwards: list[Forward]
    forwards_bytes: int
    """At the most: of the records that they came from."""


class ActiveRun:
    """Only its worker's loop changes it. After a failed write it is thrown away and loaded anew."""

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
        """Where its pages end, as far as this worker knows; behind `next_offset` while a write is
        on its way.
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
        self.bells += 1
        self.quiet_since = time.monotonic()

    def take(self, records: Sequence[Record], *, next_offset: int) -> Folded:
        """Folds the records of `[self.next_offset, next_offset)`."""
        had_ended = self.admission.ended
        undecodable: list[Admitted] = []
        pages: list[Page] = []
        # A page's worth at a time: its events are gone again before the garbage collector would
        # walk over them.
        for start in range(0, len(records) or 1, EVENTS_MAX):
            chunk = records[start : start + EVENTS_MAX]
            reached = chunk[-1].offset + 1 if start + EVENTS_MAX < len(records) else next_offset
            pages += self._take_chunk(chunk, undecodable, reached=reached)
        self.max_time = max(self.max_time, *(record.log_time for record in records[-1:]), 0)
        self.quiet_since = time.monotonic()
        self.small_pages += sum(page.is_small for page in pages)
        return self.folded(undecodable, pages, ended=self.admission.ended and not had_ended)

    def fold(self, admitted: Sequence[Admitted], *, reached: int) -> None:
        """Takes in records that were judged, up to `reached`."""
        self.record = fold(self.record, admitted).model_copy(update={"next_offset": reached})
        for one in admitted:
            if one.event is not None and changes_shared(one.event):
                self._values |= own_changes(one)
                shared = shared_changes(one, app=self.record.agent_id, user=self.record.user_id)
                self._forwards += shared
                self._forwards_bytes += len(one.record.value or b"") if shared else 0

    def folded(
        self,
        undecodable: list[Admitted] | None = None,
        pages: list[Page] | None = None,
        *,
        ended: bool = False,
    ) -> Folded:
        """What is to be written since it was asked for last."""
        changed, self._values = self._values, {}
        shared, self._forwards = self._forwards, []
        shared_bytes, self._forwards_bytes = self._forwards_bytes, 0
        before, self._last_state = self._last_state, self.state()
        return Folded(
            run=self,
            undecodable=undecodable or [],
            pages=pages or [],
            ended=ended,
            before=before,
            state=self._last_state,
            values=changed,
            forwards=shared,
            forwards_bytes=shared_bytes,
        )

    def _take_chunk(
        self, records: Sequence[Record], undecodable: list[Admitted], *, reached: int
    ) -> list[Page]:
        first_offset, admit = self.next_offset, self.admission.admit
        admitted = [admit(record) for record in records]
        undecodable += [one for one in admitted if one.outcome == "undecodable"]
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
    """The run as it is stored: its state, and the fold of the pages that reach further; of those as
    many as `bytes_max` is reached by, if it is given.
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
    found: list[Page] = []
    size = 0
    async with aclosing(pages.read(log_id, first_offset=position)) as reading:
        async for page in reading:
            found.append(page)
            size += page.size
            if bytes_max is not None and size >= bytes_max:
                break
    return found


def _ids_before(page: Page, position: int) -> list[str]:
    """The ids of a page that the saved state ends within, up to there: a merge can make such a
    page.
    """
    exceptions = {offset for offset, outcome, _ in page.exceptions if outcome != "late"}
    return [
        decode(record.value).event_id
        for record in page.records()
        if record.offset < position and record.offset not in exceptions
    ]
