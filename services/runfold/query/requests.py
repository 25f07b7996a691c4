"""A ledger as a model provider's request, and what that provider would refuse of it.

Both look at the conversation as a whole, so it is held in memory; no provider takes one that is too
large for that.
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
"""Of a ledger that is encoded or judged by a provider's rules; at 600 bytes each, some 200 MB of
memory.
"""

_MESSAGES: Final[TypeAdapter[list[Message]]] = TypeAdapter(list[Message])


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The request that is wanted, and what becomes of what it cannot express."""

    provider: Provider
    lossy: Lossy


async def run_request(
    history: History,
    form: RequestFormat,
    *,
    end: int,
    more: Sequence[Message] = (),
    validate: Validate | None = None,
) -> bytes:
    """The answer for the first `end` offsets of a run, with the caller's own messages at its end.

    Raises `InexpressibleError`, and `InvalidEventError` for a run that is too long.
    """
    messages = [*await _whole(read_ledger(history, end=end), end), *more]
    return _answer({"run_id": history.run_id, "next_offset": end}, messages, form, validate)


async def session_request(
    session_id: str,
    histories: AsyncIterator[History],
    form: RequestFormat,
    *,
    validate: Validate | None = None,
) -> bytes:
    """The answer for the runs of a session as one conversation. Raises as `run_request`."""
    messages: list[Message] = []
    runs: list[dict[str, Any]] = []
    events = 0
    async for history in histories:
        events += history.end
        of_run = await _whole(read_ledger(history, end=history.end), events)
        messages += of_run
        runs.append({"run_id": history.run_id, "next_offset": history.end, "messages": len(of_run)})
    return _answer({"session_id": session_id, "runs": runs}, messages, form, validate)


def check_bounds(events: int, *, field: str) -> None:
    """Raises `InvalidEventError` for more events than are held at once."""
    if events > EVENTS_MAX:
        raise InvalidEventError(
            f"{events:,} events are more than the {EVENTS_MAX:,} that are held at once for this: read the canonical format, or a prefix",
            field=field,
        )


async def _whole(portions: AsyncIterable[list[Fields]], events: int) -> list[Message]:
    check_bounds(events, field="format")
    return _MESSAGES.validate_python([message async for portion in portions for message in portion])


def _answer(
    heading: dict[str, Any], messages: list[Message], form: RequestFormat, validate: Validate | None
) -> bytes:
    encoded = encode(messages, form.provider, lossy=form.lossy)
    answer = heading | {
        "format": form.provider,
        "request": encoded.body,
        "dropped": [_shown(fault) for fault in encoded.dropped],
        "tool_names": encoded.tool_names,
        "tool_ids": encoded.tool_ids,
    }
    if validate is not None:
        answer["faults"] = [_shown(fault) for fault in validate(messages)]
    return json.dumps(answer, ensure_ascii=False, default=_base64).encode()


def _shown(fault: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(fault).items() if value is not None}


def _base64(value: object) -> str:
    """Bytes of an image as JSON has them."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"a {type(value).__name__} in a request")
