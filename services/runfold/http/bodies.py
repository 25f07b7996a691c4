"""A request's body: reading it up to a limit, and its JSON value.

A route reads its body itself, or declares it as a model and is a `JsonRoute`. Integers have any
size and keep every digit. NaN and Infinity are not JSON, so they are refused like any broken text.

No body may take much memory, or hold up other requests while it is decoded, because Python decodes
JSON in one step. So the outline of a text is read first, and a text with too many values is not
decoded.

Half of a surrogate pair, which is left where a client has cut a text, is read as U+FFFD.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from runfold_schemas.errors import InvalidEventError
from runfold_schemas.outline import CHUNK_BYTES, DEPTH_MAX, VALUES_MAX, Outline, chunks_of
from runfold_schemas.topics import RECORD_BYTES_MAX
from runfold_schemas.whole_texts import whole_value

_log = logging.getLogger(__name__)

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"

BATCH_BYTES_MAX: Final = 4 * RECORD_BYTES_MAX
"""The longest body of several events. JSON may be several times longer than its record, because of
escapes and spaces.
"""

DOCUMENT_BYTES_MAX: Final = 2 * RECORD_BYTES_MAX
"""The longest JSON text that is decoded in one step, which takes up to 85 ms."""

COMMAND_BYTES_MAX: Final = 1024 * 1024
"""The longest body that opens a run, changes its status, or changes a session."""

_HALF_CHARACTER: Final = "hex escape"
"""A part of the parser's message about half of a surrogate pair."""

_POSITION = re.compile(r" at line (\d+) column (\d+)$")


@dataclass(frozen=True)
class ItemLocation:
    """Where an object is in a body: in an NDJSON line counted from 1, or at an array's index from
    0. Both are None for an object that is the whole body.
    """

    line: int | None = None
    index: int | None = None


class InvalidItemError(InvalidEventError):
    """One object of several is wrong, or the JSON text is broken in one line. `line` and `index`
    are those of its `ItemLocation`.
    """

    def __init__(self, message: str, *, location: ItemLocation, field: str = "") -> None:
        named = message if location.line is None else f"line {location.line}: {message}"
        super().__init__(named, field=field, index=location.index)
        self.line = location.line


async def read_body(request: Request, *, bytes_max: int) -> bytes:
    """The whole body. Answers 413 if more than `bytes_max` bytes are announced or received."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise too_long(bytes_max)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise too_long(bytes_max)
    return bytes(body)


class JsonRoute(APIRoute):
    """A route whose body is declared as a model. `read_body` reads the body, `parse_json` parses
    it, and FastAPI validates the value.
    """

    allows_nan = False
    """Whether NaN and Infinity are left to the model, which names their field."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_read(request: Request) -> Response:
            body = await read_body(request, bytes_max=DOCUMENT_BYTES_MAX)
            # Parsed here, because FastAPI would replace an error that `json` raises.
            value = await parse_json(body, allow_inf_nan=self.allows_nan) if body else None
            return await handle(_ReadRequest(request, body, value))

        return handle_read


class _ReadRequest(Request):
    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._bytes = body
        self._value = value

    async def body(self) -> bytes:
        return self._bytes

    async def json(self) -> Any:
        return self._value


def read_media_type(request: Request, *, allowed: tuple[str, ...]) -> str:
    """The body's media type if it is one of `allowed`; answers 415 otherwise."""
    header = request.headers.get("content-type", "")
    name = header.partition(";")[0].strip().lower()
    if name not in allowed:
        reason = f"Content-Type is {header!r}" if header else "Content-Type is missing"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{reason}; send {' or '.join(allowed)}")
    return name


async def parse_json(body: bytes, *, allow_inf_nan: bool = False) -> Any:
    """The JSON value in `body`. Raises `InvalidItemError` naming the line at which it breaks.
    Answers 413 if it is too long or has too many values.
    """
    if len(body) > DOCUMENT_BYTES_MAX:
        raise too_long(DOCUMENT_BYTES_MAX)
    await read_outline(body)
    value = decode_json(body, allow_inf_nan=allow_inf_nan)
    if len(body) > CHUNK_BYTES:
        await asyncio.sleep(0)
    return value


async def read_outline(text: bytes, *, depth_max: int = DEPTH_MAX) -> int:
    """The number of values in the text, as an `Outline` has it. Answers 413 for too many values.
    Raises `InvalidEventError` for a text that is nested too deep.
    """
    outline = Outline()
    for chunk in chunks_of(text):
        outline.feed(chunk)
        if outline.values > VALUES_MAX:
            raise too_many_values()
        if outline.depth_max > depth_max:
            raise too_deep()
        if len(text) > len(chunk):
            await asyncio.sleep(0)
    return outline.values


def decode_json(text: bytes, *, within: bytes = b"", begin: int = 0, allow_inf_nan: bool = False) -> Any:
    """The JSON value in a text whose outline is known. If the text is part of another one, at
    `begin`, the position in the error is that of the other. Raises `InvalidItemError`.
    """
    try:
        return from_json(text, allow_inf_nan=allow_inf_nan)
    except ValueError as error:
        if _HALF_CHARACTER in str(error) and (value := _mended(text)) is not None:
            return value
        message, line = _positioned(str(error), within, begin)
        raise InvalidItemError(f"broken JSON: {message}", location=ItemLocation(line=line)) from error


def _mended(text: bytes) -> Any:
    """The JSON value with U+FFFD for each half of a surrogate pair. None if it has other faults."""
    if len(text) > RECORD_BYTES_MAX:
        return None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return None
    _log.warning("a request's JSON had halves of surrogate pairs: each is read as U+FFFD")
    return whole_value(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def too_long(bytes_max: int) -> HTTPException:
    """The answer to a body of more bytes than that."""
    return too_large(f"the body is longer than {bytes_max:,} bytes")


def too_many_values() -> HTTPException:
    """The answer to JSON with more than `VALUES_MAX` values."""
    return too_large(
        f"the JSON has more than {VALUES_MAX:,} values and keys, where arrays and objects count twice"
    )


def too_deep() -> InvalidEventError:
    """The error of JSON with too many levels."""
    return InvalidEventError(f"the JSON is nested deeper than {DEPTH_MAX} levels")


def too_large(reason: str) -> HTTPException:
    """The answer 413, which names the limit in `reason`."""
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{reason}: send several smaller ones")


def _positioned(message: str, within: bytes, begin: int) -> tuple[str, int]:
    """The parser's message with a position in the whole text, and the line."""
    broken = _POSITION.search(message)
    if broken is None:
        return message, 1
    line, column = int(broken[1]), int(broken[2])
    if line == 1:
        column += begin - within.rfind(b"\n", 0, begin) - 1
    line += within.count(b"\n", 0, begin)
    return f"{message[: broken.start()]} at line {line} column {column}", line
