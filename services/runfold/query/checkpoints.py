"""Ledgers of runs that were read before, kept as JSON up to where the last exchange begins.

A log only grows, and what comes later changes an earlier message in one case alone: a result for a
call in it. So a ledger is read again from the place where its last message opened, and from the
beginning if such a result came.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pydantic_core import to_json

from runfold.query.history import History, SnapshotHistory
from runfold_projections.amendments import (
    EXPANDED_TYPES,
    Place,
    amendments_of,
    expand_events,
    is_first,
    offset_of,
)
from runfold_projections.exchanges import ResultPlan, ResultPlanner, plan_results
from runfold_projections.ledger import Draft, Fields, LedgerStream
from runfold_schemas.events import AnyEvent, SystemMessage, ToolCall, ToolResult, UserMessage

KEPT_BYTES_MAX: Final = 3 * 1024 * 1024
"""Of the events' JSON that is decoded at once; in memory it is five times as much. 3,000 ordinary
events are 2 MB.
"""

_CHECKPOINT_BYTES_MAX = 8 * 1024 * 1024
_EVENTS_MAX = 20_000
"""Between a checkpoint and the end; what is further hardly fits into a checkpoint, so that the
attempt would be in vain.
"""

_TOTAL_BYTES_MAX = 32 * 1024 * 1024
_PORTION = 500
"""Events that are folded in one go; the loop serves others in between."""

_FROM_OUTSIDE = (UserMessage, SystemMessage)


class Checkpoint(NamedTuple):
    """The ledger before `offset`, where no message was open."""

    offset: int
    members: bytes
    """Messages as the members of a JSON array."""
    calls: frozenset[str]
    """The ids of all calls in them."""

    def holds_before(self, stretch: "Stretch") -> bool:
        """Whether it is still right with these events behind it."""
        return not stretch.is_amended and not any(
            isinstance(data := stretch.events[place].data, ToolResult) and data.tool_call_id in self.calls
            for place in stretch.plan.orphans
        )


class Stretch(NamedTuple):
    """Events of a log that count, held in memory as they stand in the ledger."""

    events: Mapping[Place, AnyEvent]
    plan: ResultPlan
    """Of their results among themselves."""
    is_amended: bool
    end: int


_BEGINNING = Checkpoint(0, b"", frozenset())


class Checkpoints:
    """The runs that were read last, 32 MB of them. An edition has its own, so what was rebuilt is
    read anew.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Checkpoint] = OrderedDict()
        self._size = 0

    async def ledger(self, history: SnapshotHistory, *, end: int) -> bytes | None:
        """The messages of a run's first `end` offsets as members of a JSON array; None if that is
        too much at once.
        """
        key = (history.edition.name, history.log_id)
        known = self._kept.get(key, _BEGINNING)
        found = await _advance(known, history, end=end) if known.offset <= end else None
        if found is None and known is not _BEGINNING:
            if known.offset <= end:
                self._drop(key)
            found = await _advance(_BEGINNING, history, end=end)
        if found is None:
            return None
        checkpoint, open_members = found
        if checkpoint.offset >= self._kept.get(key, _BEGINNING).offset:
            self._keep(key, checkpoint)
        return join(checkpoint.members, open_members)

    def _keep(self, key: tuple[str, str], checkpoint: Checkpoint) -> None:
        self._drop(key)
        if len(checkpoint.members) > _CHECKPOINT_BYTES_MAX:
            return
        self._kept[key] = checkpoint
        self._size += len(checkpoint.members)
        while self._size > _TOTAL_BYTES_MAX:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[str, str]) -> None:
        dropped = self._kept.pop(key, _BEGINNING)
        self._size -= len(dropped.members)


async def events_at_once(history: History, *, first_offset: int, end: int) -> Stretch:
    """The events from `first_offset` to `end`, or to where they are too many to hold."""
    planner = ResultPlanner()
    events: dict[Place, AnyEvent] = {}
    types: set[str] = set()
    size, reached = 0, end
    async for part in history.slices(first_offset=first_offset, end=end):
        types.update(part.types)
        for one in part.admitted():
            if one.event is not None and one.counts:
                events[one.record.offset] = one.event
                planner.feed(one.record.offset, one.event)
                size += len(one.record.value or b"")
        if size > KEPT_BYTES_MAX:
            reached = part.next_offset
            break
        await asyncio.sleep(0)
    if EXPANDED_TYPES.isdisjoint(types):
        return Stretch(events, planner.plan(), is_amended=False, end=reached)
    log = [(offset_of(place), event) for place, event in events.items()]
    amendments = amendments_of(log)
    stand: dict[Place, AnyEvent] = {}
    for begin in range(0, len(log), _PORTION):
        stand |= expand_events(log[begin : begin + _PORTION], amendments)
        await asyncio.sleep(0)
    return Stretch(stand, plan_results(stand.items()), is_amended=bool(amendments), end=reached)


def members(messages: Sequence[Fields]) -> bytes:
    """Messages as the members of a JSON array."""
    return to_json(messages)[1:-1]


def join(*parts: bytes) -> bytes:
    return b",".join(part for part in parts if part)


async def _advance(checkpoint: Checkpoint, history: History, *, end: int) -> tuple[Checkpoint, bytes] | None:
    """The checkpoint moved to the last message before `end`, and the members from there on.

    None if the checkpoint is no longer right, if the log amends itself, or if the ledger or one of
    its messages is too large for this.
    """
    if end - checkpoint.offset > _EVENTS_MAX:
        return None
    while True:
        stretch = await events_at_once(history, first_offset=checkpoint.offset, end=end)
        if not checkpoint.holds_before(stretch):
            return None
        following, open_members = await _continue(checkpoint, stretch)
        if stretch.end == end:
            return following, open_members
        if following.offset == checkpoint.offset or len(following.members) > _CHECKPOINT_BYTES_MAX:
            return None
        checkpoint = following


async def _continue(checkpoint: Checkpoint, stretch: Stretch) -> tuple[Checkpoint, bytes]:
    """The checkpoint moved to where the last message opens, and the members from there on."""
    events = stretch.events
    drafts, offset, closed = await _fold(stretch)
    rendered = [checkpoint.members]
    for begin in range(0, closed, _PORTION):
        rendered.append(_rendered(drafts[begin : min(begin + _PORTION, closed)], events))
        await asyncio.sleep(0)
    called = (event.data.tool_call_id for event in events.values() if isinstance(event.data, ToolCall))
    moved = Checkpoint(
        offset=max(offset, checkpoint.offset),
        members=join(*rendered),
        # Those of the open message too: at worst a ledger is read from its beginning once more than
        # it had to be.
        calls=checkpoint.calls.union(called),
    )
    return moved, _rendered(drafts[closed:], events)


async def _fold(stretch: Stretch) -> tuple[list[Draft], int, int]:
    """All drafts; the offset of the last event before which no message was open; how many drafts
    were closed by then.

    Only a whole record is read again, so what opens within one is no such event.
    """
    stream = LedgerStream(stretch.plan)
    drafts: list[Draft] = []
    offset = closed = 0
    for number, (place, event) in enumerate(stretch.events.items()):
        from_outside = isinstance(event.data, _FROM_OUTSIDE)
        if from_outside:
            drafts += stream.finish()
        finished = stream.feed(place, event)
        if (from_outside or finished) and is_first(place):
            offset, closed = offset_of(place), len(drafts) + (0 if from_outside else len(finished))
        drafts += finished
        if number % _PORTION == 0:
            await asyncio.sleep(0)
    drafts += stream.finish()
    return drafts, offset, closed


def _rendered(drafts: list[Draft], events: Mapping[Place, AnyEvent]) -> bytes:
    return members([draft.fields(events) for draft in drafts])
