"""A run's ledger as JSON, assembled in two passes over its history and streamed.

The first pass finds which result answers which call, the second builds the messages. Of a run that is small enough the
first pass keeps the events, so it is read once; of a large one, memory holds a slice and the message that is open.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from pydantic import TypeAdapter

from runfold.query.faults import Validate, Validation
from runfold.query.history import History
from runfold_projections.exchanges import ResultPlanner
from runfold_projections.ledger import Draft, LedgerStream
from runfold_projections.validation import Fault
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message

_KEPT_BYTES_MAX = 3 * 1024 * 1024
"""Of the events' JSON; decoded it is about five times as much. 3,000 ordinary events are 2 MB."""

_PORTION = 500
"""Events that are folded in one go; the loop serves others in between."""

_EXCHANGE_TYPES: Final = frozenset({"tool_call", "tool_result"})
_MESSAGES: Final[TypeAdapter[list[Message]]] = TypeAdapter(list[Message])
_FAULTS: Final[TypeAdapter[list[Fault]]] = TypeAdapter(list[Fault])


async def run_ledger(
    history: History, *, end: int, more: Sequence[Message] = (), validate: Validate | None = None
) -> AsyncIterator[bytes]:
    """The answer for the first `end` offsets of a run, with the caller's own messages at its end."""
    messages = MessageArray(validate)
    yield b'{"run_id":%b,"next_offset":%d,"messages":[' % (_json(history.run_id), end)
    async for portion in run_messages(history, end=end):
        yield messages.render(portion)
    yield messages.render(more)
    yield b"]%b}" % messages.faults()


async def session_ledger(
    session_id: str, histories: AsyncIterator[History], *, validate: Validate | None = None
) -> AsyncIterator[bytes]:
    """The answer for the runs of a session, one after the other; `runs` says how many messages are of which."""
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


async def run_messages(history: History, *, end: int) -> AsyncGenerator[list[Message], None]:
    """The ledger of a run's first `end` offsets, in portions."""
    planner = ResultPlanner()
    kept = await _plan(history, planner, end=end)
    stream = LedgerStream(planner.plan())
    async for events in _portions(history, kept, end=end):
        drafts = [draft for offset, event in events.items() for draft in stream.feed(offset, event)]
        yield [await _message(draft, history, kept) for draft in drafts]
        await asyncio.sleep(0)
    yield [await _message(draft, history, kept) for draft in stream.finish()]


class MessageArray:
    """The inside of a JSON array of messages, rendered bit by bit and validated on the way if that was asked for."""

    def __init__(self, validate: Validate | None) -> None:
        self._validation = Validation(validate) if validate else None
        self.count = 0

    def render(self, messages: Sequence[Message]) -> bytes:
        if self._validation:
            self._validation.feed(messages)
        # All at once, without the brackets of the list.
        rendered = _MESSAGES.dump_json(list(messages))[1:-1]
        separator = b"," if self.count and messages else b""
        self.count += len(messages)
        return separator + rendered

    def faults(self) -> bytes:
        """The answer's member `faults`; nothing where nobody asked for it."""
        if self._validation is None:
            return b""
        return b',"faults":' + _FAULTS.dump_json(self._validation.finish(), exclude_none=True)


async def _plan(history: History, planner: ResultPlanner, *, end: int) -> dict[int, AnyEvent] | None:
    """Feeds the planner; gives the events that count, by offset, or None if they are too many to keep."""
    kept: dict[int, AnyEvent] | None = {}
    size = 0
    async for part in history.slices(end=end):
        if kept is None and _EXCHANGE_TYPES.isdisjoint(part.types):
            continue
        for one in part.admitted():
            if one.event is None or not one.counts:
                continue
            planner.feed(one.record.offset, one.event)
            if kept is not None:
                kept[one.record.offset] = one.event
                size += len(one.record.value or b"")
        if size > _KEPT_BYTES_MAX:
            kept = None
        await asyncio.sleep(0)
    return kept


async def _portions(
    history: History, kept: dict[int, AnyEvent] | None, *, end: int
) -> AsyncIterator[Mapping[int, AnyEvent]]:
    if kept is not None:
        remaining = iter(kept.items())
        while portion := dict(islice(remaining, _PORTION)):
            yield portion
        return
    async for part in history.slices(end=end):
        yield {
            one.record.offset: one.event for one in part.admitted() if one.event is not None and one.counts
        }


async def _message(draft: Draft, history: History, kept: Mapping[int, AnyEvent] | None) -> Message:
    if not draft.late:
        return draft.message({})
    if kept is not None:
        return draft.message(kept)
    return draft.message({offset: await history.event(offset) for offset in draft.late})


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
