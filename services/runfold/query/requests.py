"""A ledger as a model provider's request, with the faults for which that provider would refuse it.

Both need the whole conversation in memory. No provider takes a conversation that is too large for
that.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter

from runfold.client.fitting import fit_messages
from runfold.query.faults import Rules
from runfold.query.history import History
from runfold.query.ledger_reader import counting_events, read_ledger
from runfold.query.request_blobs import RequestBlobs
from runfold_projections.budget import Budget, Fitted
from runfold_projections.endings import Ending, has_broken_off
from runfold_projections.fitting import Conversation, place_messages
from runfold_projections.providers import EncodeOptions, encode
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message, Provider

EVENTS_MAX: Final = 50_000
"""The events of the longest ledger that is encoded or validated for a provider. With 600 bytes
each, they take some 200 MB of memory.
"""

_MESSAGES: Final[TypeAdapter[list[Message]]] = TypeAdapter(list[Message])


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The format of a request, and how the ledger becomes one."""

    provider: Provider
    options: EncodeOptions
    budget: Budget | None = None


async def run_request(
    history: History,
    format_: RequestFormat,
    *,
    end: int,
    blobs: RequestBlobs,
    more: Sequence[Message] = (),
    validate: Rules | None = None,
) -> bytes:
    """The answer for the first `end` offsets of a run, followed by the caller's own messages.

    Raises `InexpressibleError`, `BudgetExceededError`, and `InvalidEventError` for a run that is
    too long.
    """
    conversation = Conversation()
    broken_off = await _read_run(conversation, history, format_, end=end, events=end)
    conversation.add(more, (0, end))
    if validate is not None:
        validate = validate.with_options(broken_off=broken_off and not more)
    heading = {"run_id": history.run_id, "next_offset": end}
    return await _answer(heading, [history.log_id], conversation, format_, validate=validate, blobs=blobs)


async def session_request(
    session_id: str,
    histories: AsyncIterator[History],
    format_: RequestFormat,
    *,
    blobs: RequestBlobs,
    validate: Rules | None = None,
) -> bytes:
    """The answer for the runs of a session as one conversation. Raises as `run_request`."""
    conversation = Conversation()
    log_ids: list[str] = []
    runs: list[dict[str, Any]] = []
    events, broken_off = 0, False
    async for history in histories:
        events += history.end
        before = len(conversation.messages)
        breaks_off = await _read_run(
            conversation, history, format_, end=history.end, events=events, index=len(runs)
        )
        log_ids.append(history.log_id)
        count = len(conversation.messages) - before
        broken_off = breaks_off if count else broken_off
        runs.append({"run_id": history.run_id, "next_offset": history.end, "messages": count})
    if validate is not None:
        validate = validate.with_options(broken_off=broken_off)
    heading = {"session_id": session_id, "runs": runs}
    return await _answer(heading, log_ids, conversation, format_, validate=validate, blobs=blobs)


def check_bounds(events: int, *, field: str) -> None:
    """Raises `InvalidEventError` for more events than fit into memory."""
    if events > EVENTS_MAX:
        raise InvalidEventError(
            f"{events:,} events are too many: this needs all in memory, and {EVENTS_MAX:,} is the most."
            " Read the canonical format, or a prefix.",
            field=field,
        )


async def _read_run(
    conversation: Conversation,
    history: History,
    format_: RequestFormat,
    *,
    end: int,
    events: int,
    index: int = 0,
) -> bool:
    """Adds a run's messages to those of the runs before. `events` are those of all these runs. Only
    a budget needs the position of each message. Returns whether the last response broke off.
    """
    check_bounds(events, field="format")
    if format_.budget is None:
        ending = Ending()
        portions = read_ledger(history, end=end, ending=ending)
        fields = [message async for portion in portions for message in portion]
        conversation.add(_MESSAGES.validate_python(fields), (index, 0))
        return ending.broken_off
    log: list[tuple[int, AnyEvent]] = []
    async for slice_ in history.slices(end=end):
        log += counting_events(slice_)
        await asyncio.sleep(0)
    await asyncio.to_thread(place_messages, log, run_index=index, onto=conversation)
    return has_broken_off(log)


async def _answer(
    heading: dict[str, Any],
    log_ids: Sequence[str],
    conversation: Conversation,
    format_: RequestFormat,
    *,
    validate: Rules | None,
    blobs: RequestBlobs,
) -> bytes:
    """The answer with the blobs of the runs, in whose logs they are."""
    messages = conversation.messages
    runs = [run for run, _ in conversation.positions]
    if format_.budget is not None:
        fitted = await fit_messages(conversation, format_.budget, format_.provider, format_.options)
        heading, messages = heading | {"fitted": _describe(fitted)}, fitted.messages
        runs = fitted.run_indexes
    fetching = blobs.fetching(format_.provider, format_.options.get("maker"))
    for message, run in zip(messages, runs, strict=True):
        fetching.add(log_ids[run], [message])
    async with blobs.fetched(fetching) as fetched:
        if not fetched:
            return _render(heading, messages, format_, validate)
        options: EncodeOptions = {**format_.options, "blobs": fetched}
        # The bytes of 50 MB of blobs take half a second, in which a thread holds up nobody.
        return await asyncio.to_thread(
            _render,
            heading,
            messages,
            replace(format_, options=options),
            validate.with_options(blobs=fetched) if validate else None,
        )


def _render(
    heading: dict[str, Any], messages: list[Message], format_: RequestFormat, validate: Rules | None
) -> bytes:
    encoded = encode(messages, format_.provider, **format_.options)
    answer = heading | {
        "format": format_.provider,
        "request": encoded.body,
        "dropped": [_render_fault(fault) for fault in encoded.dropped],
        "restated": [_render_fault(fault) for fault in encoded.restated],
        "tool_names": encoded.tool_names,
        "tool_ids": encoded.tool_ids,
        "next_request": encoded.next_request,
    }
    if validate is not None:
        answer["faults"] = [_render_fault(fault) for fault in validate.faults(messages)]
    return json.dumps(answer, ensure_ascii=False, default=_encode_bytes).encode()


def _describe(fitted: Fitted) -> dict[str, Any]:
    return {
        "tokens": fitted.tokens,
        "counted_by": fitted.counted_by,
        "left_out": len(fitted.left_out),
        "end_offset": fitted.end_offset,
        "run_index": fitted.run_index,
    }


def _render_fault(fault: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(fault).items() if value is not None}


def _encode_bytes(value: object) -> str:
    """The bytes of an image as JSON, for the encoder."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"a {type(value).__name__} in a request")
