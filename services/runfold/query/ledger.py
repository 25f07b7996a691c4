"""A run's or a session's ledger as a streamed JSON answer."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from runfold.query.checkpoints import Checkpoints
from runfold.query.faults import Validate, Validation
from runfold.query.history import History, SnapshotHistory
from runfold.query.ledger_reader import cached_members, join_members, read_ledger, render_members
from runfold_projections.ledger import Fields
from runfold_projections.validation import Fault
from runfold_schemas.messages import Message

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
    """The answer for the first `end` offsets of a run, followed by the caller's own messages."""
    added = [message.model_dump() for message in more]
    yield b'{"run_id":%b,"next_offset":%d,"messages":[' % (_json(history.run_id), end)
    if isinstance(history, SnapshotHistory) and validate is None:
        members = await cached_members(history, checkpoints, end=end)
        if members is not None:
            yield join_members(members, render_members(added))
            yield b"]}"
            return
    messages = MessageArray(validate)
    async for portion in read_ledger(history, end=end):
        yield messages.render(portion)
    yield messages.render(added)
    yield b"]%b}" % messages.faults()


async def session_ledger(
    session_id: str, histories: AsyncIterator[History], *, validate: Validate | None = None
) -> AsyncIterator[bytes]:
    """The answer for the runs of a session, one after the other. Its member `runs` counts the
    messages of each run.
    """
    messages = MessageArray(validate)
    runs: list[dict[str, Any]] = []
    yield b'{"session_id":%b,"messages":[' % _json(session_id)
    async for history in histories:
        before = messages.count
        async for portion in read_ledger(history, end=history.end):
            yield messages.render(portion)
        runs.append(
            {"run_id": history.run_id, "next_offset": history.end, "messages": messages.count - before}
        )
    yield b'],"runs":%b%b}' % (_json(runs), messages.faults())


class MessageArray:
    """The inside of a JSON array of messages. It is rendered in portions, which are validated if
    `validate` is set.
    """

    def __init__(self, validate: Validate | None) -> None:
        self._validation = Validation(validate) if validate else None
        self.count = 0

    def render(self, messages: Sequence[Fields]) -> bytes:
        if self._validation:
            self._validation.feed(_MESSAGES.validate_python(messages))
        rendered = render_members(messages)
        separator = b"," if self.count and messages else b""
        self.count += len(messages)
        return separator + rendered

    def faults(self) -> bytes:
        """The answer's member `faults`; empty without validation."""
        if self._validation is None:
            return b""
        return b',"faults":' + _FAULTS.dump_json(self._validation.finish(), exclude_none=True)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
