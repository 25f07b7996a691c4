"""A request's body as server-sent events, each with a JSON value (HTML standard, section 9.2)."""

from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import Request

from runfold.http.bodies import BATCH_BYTES_MAX, DOCUMENT_BYTES_MAX, parse_json, too_long

EVENT_STREAM: Final = "text/event-stream"

_END: Final = b"[DONE]"
"""With this text instead of JSON, OpenAI's streams end."""


async def event_data(request: Request) -> AsyncIterator[Any]:
    """The JSON values of the events, while they arrive. Names, ids and comments are passed over.

    Raises `InvalidItemError` for broken JSON. Answers 413 for a body or an event that is too long.
    """
    async for data in _data(request):
        if data != _END:
            yield await parse_json(data)


async def _data(request: Request) -> AsyncIterator[bytes]:
    lines: list[bytes] = []
    size = 0
    async for line in _lines(request):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
            size += len(value)
            if size > DOCUMENT_BYTES_MAX:
                raise too_long(DOCUMENT_BYTES_MAX)
        elif not line and lines:
            yield b"\n".join(lines)
            lines, size = [], 0
    # A stream may end without the last empty line.
    if lines:
        yield b"\n".join(lines)


async def _lines(request: Request) -> AsyncIterator[bytes]:
    waiting = bytearray()
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > BATCH_BYTES_MAX:
            raise too_long(BATCH_BYTES_MAX)
        searched = len(waiting)
        waiting += chunk
        begin = 0
        while (end := waiting.find(b"\n", max(begin, searched))) >= 0:
            yield bytes(waiting[begin:end]).removesuffix(b"\r")
            begin = end + 1
        del waiting[:begin]
    if waiting:
        yield bytes(waiting)
