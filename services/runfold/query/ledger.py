"""A run's ledger as JSON, assembled from its history and streamed.

It takes two passes: the first finds which result answers which call, the second builds the
messages. A run that is small enough is read once and held meanwhile; of a large one, memory holds a
slice and the message that is open.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from runfold.query.checkpoints import Checkpoints, events_at_once, join, members
from runfold.query.faults import Validate, Validation
from runfold.query.history import History, Slice, SnapshotHistory
from runfold_projections.amendments import (
    EXPANDED_TYPES,
    Amendments,
    amendments_of,
    event_at,
    expand_events,
    offset_of,
)
from runfold_projections.exchanges import ResultPlan, ResultPlanner
from runfold_projections.ledger import Draft, Fields, LedgerStream
from runfold_projections.validation import Fault
from runfold_schemas.events import AnyEvent, EventAmended
from runfold_schemas.messages import Message

_PORTION = 500
"""Messages that are built in one go; the loop serves others in between."""

_PLANNED_TYPES: Final = EXPANDED_TYPES | {"tool_call", "tool_result"}
_FAULTS: Final[TypeAdapter[list[Fault]]] = TypeAdapter(list[Fault])
_MESSAGES: Final[TypeAdapter[list[Message]]] = TypeAdapter(list[Message])


async def run_ledger(
    history: History,
    *,
    end: int,
    checkpoints: Checkpoints,
    more: Sequence[Message] = (),
    validate: Validate | None = None,
) -> AsyncIterator[bytes]:
    """The answer for the first `end` offsets of a run, with the caller's own messages at its
    end.
    """
    added = [message.model_dump() for message in more]
    yield b'{"run_id":%b,"next_offset":%d,"messages":[' % (_json(history.run_id), end)
    if isinstance(history, SnapshotHistory) and validate is None:
        known = await checkpoints.ledger(history, end=end)
        if known is not None:
            yield join(known, members(added))
            yield b"]}"
            return
    messages = MessageArray(validate)
    async for portion in run_messages(history, end=end):
        yield messages.render(portion)
    yield messages.render(added)
    yield b"]%b}" % messages.faults()


async def session_ledger(
    session_id: str, histories: AsyncIterator[History], *, validate: Validate | None = None
) -> AsyncIterator[bytes]:
    """The answer for the runs of a session, one after the other; `runs` says how many messages are
    of which.
    """
    messages = MessageArray(validate)
    runs: list[dict[str, Any]] = []
    yield b'{"session_id":%b,"messages":[' % _json(session_id)
    async for history in histories:
        before = messages.count
        async for portion in run_messages(history, end=history.end):
            yield messages.render(portion)
        runs.append(
            {"run_id": history.run_id, "next_offset": history.end, "messages": messages.count - before}
        )
    yield b'],"runs":%b%b}' % (_json(runs), messages.faults())


async def run_messages(history: History, *, end: int) -> AsyncGenerator[list[Fields], None]:
    """The ledger of a run's first `end` offsets, in portions."""
    stretch = await events_at_once(history, first_offset=0, end=end)
    if stretch.end < end:
        async for portion in _streamed_messages(history, end=end):
            yield portion
        return
    stream = LedgerStream(stretch.plan)
    drafts = [draft for place, event in stretch.events.items() for draft in stream.feed(place, event)]
    drafts += stream.finish()
    for begin in range(0, len(drafts), _PORTION):
        yield [draft.fields(stretch.events) for draft in drafts[begin : begin + _PORTION]]
        await asyncio.sleep(0)


class MessageArray:
    """The inside of a JSON array of messages, rendered bit by bit and validated on the way if that
    was asked for.
    """

    def __init__(self, validate: Validate | None) -> None:
        self._validation = Validation(validate) if validate else None
        self.count = 0

    def render(self, messages: Sequence[Fields]) -> bytes:
        if self._validation:
            self._validation.feed(_MESSAGES.validate_python(messages))
        rendered = members(messages)
        separator = b"," if self.count and messages else b""
        self.count += len(messages)
        return separator + rendered

    def faults(self) -> bytes:
        """The answer's member `faults`; nothing where nobody asked for it."""
        if self._validation is None:
            return b""
        return b',"faults":' + _FAULTS.dump_json(self._validation.finish(), exclude_none=True)


async def _streamed_messages(history: History, *, end: int) -> AsyncIterator[list[Fields]]:
    plan, amendments = await _plan(history, end=end)
    stream = LedgerStream(plan)
    async for part in history.slices(end=end):
        stand = expand_events(_events(part), amendments)
        drafts = [draft for place, event in stand for draft in stream.feed(place, event)]
        yield [await _fields(draft, history, amendments) for draft in drafts]
        await asyncio.sleep(0)
    yield [await _fields(draft, history, amendments) for draft in stream.finish()]


async def _plan(
    history: History, *, end: int, amendments: Amendments | None = None
) -> tuple[ResultPlan, Amendments]:
    """The results' plan, and what is amended. Amendments come behind what they amend, so they need
    a pass of their own.
    """
    planner = ResultPlanner()
    found: dict[int, EventAmended] = {}
    async for part in history.slices(end=end):
        if not _PLANNED_TYPES.isdisjoint(part.types):
            events = _events(part)
            found |= amendments_of(events)
            for place, event in expand_events(events, amendments or {}):
                planner.feed(place, event)
        await asyncio.sleep(0)
    if found and amendments is None:
        return await _plan(history, end=end, amendments=found)
    return planner.plan(), found


def _events(part: Slice) -> list[tuple[int, AnyEvent]]:
    return [(one.record.offset, one.event) for one in part.admitted() if one.event is not None and one.counts]


async def _fields(draft: Draft, history: History, amendments: Amendments) -> Fields:
    late = {place: event_at(place, await history.event(offset_of(place)), amendments) for place in draft.late}
    return draft.fields(late)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
