"""A ledger as a model provider's request, with the faults for which that provider would refuse it.

Both need the whole conversation in memory. No provider takes a conversation that is too large for
that.
"""

import json
from base64 import b64encode
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from runfold.query.faults import Validate
from runfold.query.history import History
from runfold.query.ledger_reader import read_ledger
from runfold_projections.ledger import Fields
from runfold_projections.providers import Lossy, encode
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.messages import Message, Provider

EVENTS_MAX: Final = 50_000
"""The events of the longest ledger that is encoded or validated for a provider. With 600 bytes
each, they take some 200 MB of memory.
"""

_MESSAGES: Final[TypeAdapter[list[Message]]] = TypeAdapter(list[Message])


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The provider of a request, and whether parts that it cannot express are dropped or
    refused.
    """

    provider: Provider
    lossy: Lossy


async def run_request(
    history: History,
    format_: RequestFormat,
    *,
    end: int,
    more: Sequence[Message] = (),
    validate: Validate | None = None,
) -> bytes:
    """The answer for the first `end` offsets of a run, followed by the caller's own messages.

    Raises `InexpressibleError`, and `InvalidEventError` for a run that is too long.
    """
    messages = [*await _read_messages(read_ledger(history, end=end), end), *more]
    return _render({"run_id": history.run_id, "next_offset": end}, messages, format_, validate)


async def session_request(
    session_id: str,
    histories: AsyncIterator[History],
    format_: RequestFormat,
    *,
    validate: Validate | None = None,
) -> bytes:
    """The answer for the runs of a session as one conversation. Raises as `run_request`."""
    messages: list[Message] = []
    runs: list[dict[str, Any]] = []
    events = 0
    async for history in histories:
        events += history.end
        of_run = await _read_messages(read_ledger(history, end=history.end), events)
        messages += of_run
        runs.append({"run_id": history.run_id, "next_offset": history.end, "messages": len(of_run)})
    return _render({"session_id": session_id, "runs": runs}, messages, format_, validate)


def check_bounds(events: int, *, field: str) -> None:
    """Raises `InvalidEventError` for more events than fit into memory."""
    if events > EVENTS_MAX:
        raise InvalidEventError(
            f"{events:,} events are too many: this needs all in memory, and {EVENTS_MAX:,} is the most."
            " Read the canonical format, or a prefix.",
            field=field,
        )


async def _read_messages(portions: AsyncIterable[list[Fields]], events: int) -> list[Message]:
    check_bounds(events, field="format")
    return _MESSAGES.validate_python([message async for portion in portions for message in portion])


def _render(
    heading: dict[str, Any], messages: list[Message], format_: RequestFormat, validate: Validate | None
) -> bytes:
    encoded = encode(messages, format_.provider, lossy=format_.lossy)
    answer = heading | {
        "format": format_.provider,
        "request": encoded.body,
        "dropped": [_render_fault(fault) for fault in encoded.dropped],
        "tool_names": encoded.tool_names,
        "tool_ids": encoded.tool_ids,
    }
    if validate is not None:
        answer["faults"] = [_render_fault(fault) for fault in validate(messages)]
    return json.dumps(answer, ensure_ascii=False, default=_encode_bytes).encode()


def _render_fault(fault: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(fault).items() if value is not None}


def _encode_bytes(value: object) -> str:
    """The bytes of an image as JSON, for the encoder."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"a {type(value).__name__} in a request")
