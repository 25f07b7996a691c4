"""The reader of ledgers: every ledger, in whatever format, is read here.

    history ──> HeldEvents, one pass ─────┐
       └──────> LoggedEvents, two passes ─┴──> plan, expand, stream ──> portions of messages

A run of up to 3 MB is held in memory and read once. A larger run is read twice: the first pass
finds which result answers which call, the second builds the messages. Of a larger run, memory holds
a slice and the open message.

`cached_members` gives the messages as JSON and begins at the run's checkpoint. A log only grows,
and later events change an earlier message in one case alone: they hold a result for one of its
calls.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pydantic_core import to_json

from runfold.query.checkpoints import BEGINNING, MEMBERS_BYTES_MAX, Checkpoint, Checkpoints
from runfold.query.history import History, Slice, SnapshotHistory
from runfold_projections.amendments import (
    EXPANDED_TYPES,
    Place,
    event_at,
    expand_events,
    offset_of,
    replacements_of,
)
from runfold_projections.endings import Ending
from runfold_projections.exchanges import ResultPlan, ResultPlanner
from runfold_projections.ledger import Draft
from runfold_projections.live import LivePlanner, Replacements
from runfold_projections.open_message import Fields
from runfold_projections.portions import PortionFold
from runfold_schemas.codec import decode
from runfold_schemas.events import AnyEvent, ToolCall, ToolResult
from runfold_schemas.ledger_events import LedgerEvent

HELD_BYTES_MAX: Final = 3 * 1024 * 1024
"""The JSON of the events that are held at once. In memory they take five times as much. 3,000
ordinary events are 2 MB.
"""

_CACHED_EVENTS_MAX: Final = 20_000
"""Events between a checkpoint and the end of the ledger. The JSON of more events hardly fits into a
checkpoint.
"""

_PORTION: Final = 500
"""Events that are folded at once. The event loop serves other requests in between."""

_PLANNED_TYPES: Final = EXPANDED_TYPES | {"tool_call", "tool_result"}


class Portion(NamedTuple):
    """The next messages of a ledger, and how far the ledger is settled."""

    messages: list[Fields]
    offset: int
    """As in `PortionFold`; `closed` likewise."""
    closed: int


class _Events(Protocol):
    """The events of a log, expanded as they are in the ledger."""

    @property
    def plan(self) -> ResultPlan: ...

    def portions(self, ending: Ending | None = None) -> AsyncIterator[Iterable[tuple[Place, LedgerEvent]]]:
        """The events in portions. `ending` gets those of the log."""
        ...

    async def fields(self, drafts: Sequence[Draft]) -> list[Fields]:
        """The drafts as messages, with their late results."""


async def read_ledger(
    history: History, *, end: int, ending: Ending | None = None
) -> AsyncGenerator[list[Fields], None]:
    """The messages of a run's first `end` offsets, in portions. `ending` gets the events of the
    log.
    """
    async for portion in _read_portions(await _read_events(history, end=end), ending):
        yield portion.messages


async def cached_members(history: SnapshotHistory, checkpoints: Checkpoints, *, end: int) -> bytes | None:
    """The messages of a run's first `end` offsets, as members of a JSON array. None if the run
    amends itself, or if the ledger or one of its messages is too large to be held.
    """
    key = (history.edition.name, history.log_id, history.epoch)
    begin = checkpoints.get(key)
    members = await _continue(begin, history, end=end) if begin.offset <= end else None
    if members is None and begin is not BEGINNING:
        if begin.offset <= end:
            checkpoints.drop(key)
        members = await _continue(BEGINNING, history, end=end)
    if members is None:
        return None
    checkpoint, open_members = members
    if checkpoint.offset <= history.stored_end:
        checkpoints.keep(key, checkpoint)
    else:
        # An operator may still skip a record that is in no page.
        await cached_members(history, checkpoints, end=history.stored_end)
    return join_members(checkpoint.members, open_members)


def counting_events(slice_: Slice) -> list[tuple[int, AnyEvent]]:
    """The events of a slice that count, with their offsets."""
    return [
        (admitted.record.offset, admitted.event)
        for admitted in slice_.admitted()
        if admitted.event is not None and admitted.counts
    ]


def render_members(messages: Sequence[Fields]) -> bytes:
    """Messages as the members of a JSON array."""
    return to_json(messages)[1:-1]


def join_members(*members: bytes) -> bytes:
    return b",".join(part for part in members if part)


async def _read_events(history: History, *, end: int) -> "_Events":
    # Most events that are that many are too large to be held.
    if end <= _CACHED_EVENTS_MAX:
        held = await HeldEvents.read(history, first_offset=0, end=end)
        if held.end == end:
            return held
    return await LoggedEvents.read(history, end=end)


async def _read_portions(events: _Events, ending: Ending | None = None) -> AsyncGenerator[Portion, None]:
    fold = PortionFold(events.plan)
    async for portion in events.portions(ending):
        messages = await events.fields(fold.feed(portion))
        yield Portion(messages, fold.offset, fold.closed)
        await asyncio.sleep(0)
    yield Portion(await events.fields(fold.finish()), fold.offset, fold.closed)


async def _continue(begin: Checkpoint, history: History, *, end: int) -> tuple[Checkpoint, bytes] | None:
    """The checkpoint moved to the last message before `end`, and the members after it. None if the
    checkpoint is no longer valid, or for the reasons of `cached_members`.
    """
    if end - begin.offset > _CACHED_EVENTS_MAX:
        return None
    while True:
        held = await HeldEvents.read(history, first_offset=begin.offset, end=end)
        if held.is_amended or held.answers_any(begin.calls):
            return None
        moved, open_members = await _advance(begin, held)
        if held.end == end:
            return moved, open_members
        if moved.offset == begin.offset or len(moved.members) > MEMBERS_BYTES_MAX:
            return None
        begin = moved


async def _advance(begin: Checkpoint, held: "HeldEvents") -> tuple[Checkpoint, bytes]:
    """The checkpoint moved to where the last of the messages opens, and the members after it."""
    rendered, pending = [begin.members], list[Fields]()
    offset = closed = 0
    async for portion in _read_portions(held):
        pending += portion.messages
        if portion.closed > closed:
            rendered.append(render_members(pending[: portion.closed - closed]))
            del pending[: portion.closed - closed]
        offset, closed = portion.offset, portion.closed
    # The calls of the open message too: at worst a ledger is read from its beginning once more than
    # necessary.
    calls = begin.calls.union(held.calls())
    moved = Checkpoint(max(offset, begin.offset), join_members(*rendered), calls)
    return moved, render_members(pending)


class HeldEvents:
    """Events of a log that are held in memory."""

    def __init__(
        self,
        log: Sequence[tuple[int, LedgerEvent]],
        events: Mapping[Place, LedgerEvent],
        plan: ResultPlan,
        *,
        is_amended: bool,
        end: int,
    ) -> None:
        self.plan = plan
        self.is_amended = is_amended
        self.end = end
        self._log = log
        self._events = events

    @classmethod
    async def read(cls, history: History, *, first_offset: int, end: int) -> "HeldEvents":
        """The events from `first_offset` to `end`, or to where they are too many to hold."""
        log: list[tuple[int, LedgerEvent]] = []
        values: list[bytes] = []
        types: set[str] = set()
        size, reached = 0, end
        async for slice_ in history.slices(first_offset=first_offset, end=end):
            types.update(slice_.types)
            for record, event in slice_.ledger_events():
                log.append((record.offset, event))
                values.append(value := record.value or b"")
                size += len(value)
            if size > HELD_BYTES_MAX:
                reached = slice_.next_offset
                break
            await asyncio.sleep(0)
        is_expanded = not EXPANDED_TYPES.isdisjoint(types)
        replacements = replacements_of(log) if is_expanded else {}
        if replacements:
            log = [
                (
                    offset,
                    decode(value) if offset in replacements and not isinstance(event, AnyEvent) else event,
                )
                for (offset, event), value in zip(log, values, strict=True)
            ]
        planner, events = ResultPlanner(), dict[Place, LedgerEvent]()
        for begin in range(0, len(log), _PORTION):
            portion = log[begin : begin + _PORTION]
            for place, event in expand_events(portion, replacements) if is_expanded else portion:
                events[place] = event
                planner.feed(place, event)
            await asyncio.sleep(0)
        return cls(log, events, planner.plan(), is_amended=bool(replacements), end=reached)

    async def portions(
        self, ending: Ending | None = None
    ) -> AsyncGenerator[Iterable[tuple[Place, LedgerEvent]], None]:
        if ending is not None:
            ending.feed(self._log)
        events = list(self._events.items())
        for begin in range(0, len(events), _PORTION):
            yield events[begin : begin + _PORTION]

    async def fields(self, drafts: Sequence[Draft]) -> list[Fields]:
        return [draft.fields(self._events) for draft in drafts]

    def calls(self) -> Iterable[str]:
        """The ids of all calls."""
        return (event.data.tool_call_id for event in self._events.values() if type(event.data) is ToolCall)

    def answers_any(self, calls: frozenset[str]) -> bool:
        """Whether a result answers one of these earlier calls."""
        return any(
            isinstance(data := self._events[place].data, ToolResult) and data.tool_call_id in calls
            for place in self.plan.orphans
        )


class LoggedEvents:
    """Events of a log that is too large to be held: they are read once more for each use."""

    def __init__(self, history: History, plan: ResultPlan, replacements: Replacements, *, end: int) -> None:
        self.plan = plan
        self._history = history
        self._replacements = replacements
        self._end = end

    @classmethod
    async def read(cls, history: History, *, end: int) -> "LoggedEvents":
        """Makes the plan. An amendment follows the event that it amends, so a log with amendments
        is planned in another pass.
        """
        plan, replacements = await cls._plan(history, {}, end=end)
        if replacements:
            plan, _ = await cls._plan(history, replacements, end=end)
        return cls(history, plan, replacements, end=end)

    @staticmethod
    async def _plan(
        history: History, replacements: Replacements, *, end: int
    ) -> tuple[ResultPlan, Replacements]:
        planner, live = ResultPlanner(), LivePlanner()
        async for slice_ in history.slices(end=end):
            if EXPANDED_TYPES.isdisjoint(slice_.types) and not replacements:
                if not _PLANNED_TYPES.isdisjoint(slice_.types):
                    _feed_tools(planner, slice_)
            elif not _PLANNED_TYPES.isdisjoint(slice_.types):
                events = _ledger_log(slice_, replacements)
                for offset, logged in events:
                    live.feed(offset, logged)
                for place, event in expand_events(events, replacements):
                    planner.feed(place, event)
            await asyncio.sleep(0)
        return planner.plan(), live.replacements()

    async def portions(
        self, ending: Ending | None = None
    ) -> AsyncGenerator[Iterable[tuple[Place, LedgerEvent]], None]:
        async for slice_ in self._history.slices(end=self._end):
            log = _ledger_log(slice_, self._replacements)
            if ending is not None:
                ending.feed(log)
            yield expand_events(log, self._replacements)

    async def fields(self, drafts: Sequence[Draft]) -> list[Fields]:
        return [draft.fields(await self._late_results(draft)) for draft in drafts]

    async def _late_results(self, draft: Draft) -> Mapping[Place, LedgerEvent]:
        return {
            place: event_at(place, await self._history.event(offset_of(place)), self._replacements)
            for place in draft.late
        }


def _feed_tools(planner: ResultPlanner, slice_: Slice) -> None:
    for offset, is_call, tool_id in slice_.tool_events():
        if is_call:
            planner.feed_call(offset, tool_id)
        else:
            planner.feed_result(offset, tool_id)


def _ledger_log(slice_: Slice, replacements: Replacements) -> Sequence[tuple[int, LedgerEvent]]:
    """The events of a slice that count, with their offsets. Replaced events are whole."""
    if replacements:
        return counting_events(slice_)
    return [(record.offset, event) for record, event in slice_.ledger_events()]
