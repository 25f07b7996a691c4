"""A run's or a session's ledger as a streamed JSON answer."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from runfold.query.checkpoints import Checkpoints
from runfold.query.faults import Rules, Validation
from runfold.query.history import History, SnapshotHistory
from runfold.query.ledger_reader import cached_members, join_members, read_ledger, render_members
from runfold.query.request_blobs import RequestBlobs
from runfold_projections.endings import Ending
from runfold_projections.open_message import Fields
from runfold_projections.validation import Fault
from runfold_schemas.messages import Message

_FAULTS: Final[TypeAdapter[list[Fault]]] = TypeAdapter(list[Fault])
_MESSAGES: Final[TypeAdapter[list[Message]]] = TypeAdapter(list[Message])


async def run_ledger(
    history: History,
    *,
    end: int,
    checkpoints: Checkpoints,
    blobs: RequestBlobs,
    more: Sequence[Message] = (),
    validate: Rules | None = None,
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
    messages, ending = MessageArray(validate, blobs), Ending()
    async for portion in read_ledger(history, end=end, ending=ending if validate else None):
        yield messages.render(portion, history.log_id)
    yield messages.render(added, history.log_id)
    yield b"]%b}" % await messages.faults(broken_off=ending.broken_off and not more)


async def session_ledger(
    session_id: str,
    histories: AsyncIterator[History],
    *,
    blobs: RequestBlobs,
    validate: Rules | None = None,
) -> AsyncIterator[bytes]:
    """The answer for the runs of a session, one after the other. Its member `runs` counts the
    messages of each run.
    """
    messages = MessageArray(validate, blobs)
    runs: list[dict[str, Any]] = []
    broken_off = False
    yield b'{"session_id":%b,"messages":[' % _json(session_id)
    async for history in histories:
        before, ending = messages.count, Ending()
        async for portion in read_ledger(history, end=history.end, ending=ending if validate else None):
            yield messages.render(portion, history.log_id)
        if messages.count > before:
            broken_off = ending.broken_off
        runs.append(
            {"run_id": history.run_id, "next_offset": history.end, "messages": messages.count - before}
        )
    yield b'],"runs":%b%b}' % (_json(runs), await messages.faults(broken_off=broken_off))


class MessageArray:
    """The inside of a JSON array of messages. It is rendered in portions, which are validated if
    `validate` is set.
    """

    def __init__(self, validate: Rules | None, blobs: RequestBlobs) -> None:
        self._validation = Validation(validate) if validate else None
        self._blobs = blobs
        provider = validate.provider if validate else None
        self._fetching = blobs.fetching(provider, validate.maker) if validate and provider else None
        self.count = 0

    def render(self, messages: Sequence[Fields], log_id: str) -> bytes:
        """The next messages, which are of this log."""
        if self._validation:
            self._validation.feed(validated := _MESSAGES.validate_python(messages))
            if self._fetching:
                self._fetching.add(log_id, validated)
        rendered = render_members(messages)
        separator = b"," if self.count and messages else b""
        self.count += len(messages)
        return separator + rendered

    async def faults(self, *, broken_off: bool) -> bytes:
        """The answer's member `faults`; empty without validation. `broken_off`: the last response
        broke off.
        """
        if self._validation is None:
            return b""
        if self._fetching is None:
            faults = self._validation.finish(broken_off=broken_off)
        else:
            async with self._blobs.fetched(self._fetching) as fetched:
                faults = self._validation.finish(fetched, broken_off=broken_off)
        return b',"faults":' + _FAULTS.dump_json(faults, exclude_none=True)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
