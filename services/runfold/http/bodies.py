"""A request's body: reading it up to a limit, and parsing the objects in it.

A route reads its body itself, or declares it as a model and is a `JsonRoute`. Integers have any
size and keep every digit. NaN and Infinity are not JSON, so they are refused like any broken text.
"""

import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from runfold_schemas.errors import InvalidEventError
from runfold_schemas.topics import RECORD_BYTES_MAX

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"

BODY_BYTES_MAX: Final = 4 * RECORD_BYTES_MAX
"""The longest body that becomes records. JSON may be several times longer than its record, because
of escapes and spaces.
"""

COMMAND_BYTES_MAX: Final = 1024 * 1024
"""The longest body that opens a run, changes its status, or changes a session."""

_LINE = re.compile(r" at line (\d+) column \d+$")


@dataclass(frozen=True)
class ItemLocation:
    """Where an object is in a body: in an NDJSON line counted from 1, or at an array's index from
    0. Both are None for an object that is the whole body.
    """

    line: int | None = None
    index: int | None = None


class Item(NamedTuple):
    """One object of a body."""

    fields: dict[str, Any]
    location: ItemLocation


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
        raise _too_large(bytes_max)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
    return bytes(body)


class JsonRoute(APIRoute):
    """A route whose body is declared as a model. `read_body` reads the body, `parse_json` parses
    it, and FastAPI validates the value.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_read(request: Request) -> Response:
            return await handle(_ReadRequest(request, await read_body(request, bytes_max=BODY_BYTES_MAX)))

        return handle_read


class _ReadRequest(Request):
    def __init__(self, request: Request, body: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._bytes = body
        # Parsed here, because FastAPI would replace an error that `json` raises.
        self._value = parse_json(body) if body else None

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


def parse_items(body: bytes, media_type: str) -> list[Item]:
    """The objects of a body: one, an array of them, or NDJSON. Raises `InvalidEventError` naming
    the line or the index.
    """
    items = list(_parse_lines(body)) if media_type == NDJSON else _split(parse_json(body))
    if not items:
        raise InvalidEventError("the batch is empty: there is no event in it")
    return items


def parse_json(body: bytes) -> Any:
    """The JSON value in `body`. Raises `InvalidItemError` naming the line at which it breaks."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        broken = _LINE.search(str(error))
        location = ItemLocation(line=int(broken[1]) if broken else 1)
        raise InvalidItemError(f"broken JSON: {error}", location=location) from error


def _split(value: Any) -> list[Item]:
    if isinstance(value, list):
        return [_item(each, ItemLocation(index=index)) for index, each in enumerate(value)]
    if not isinstance(value, dict):
        raise InvalidEventError("the body is neither an object nor an array of objects")
    return [Item(value, ItemLocation())]


def _parse_lines(body: bytes) -> Iterator[Item]:
    for number, line in enumerate(body.split(b"\n"), start=1):
        if line.strip():
            yield _item(_parse_line(line, number), ItemLocation(line=number))


def _parse_line(line: bytes, number: int) -> Any:
    try:
        return from_json(line, allow_inf_nan=False)
    except ValueError as error:
        # The parser sees one line, so it always names line 1.
        text = str(error).replace(" at line 1 column ", " at column ")
        raise InvalidItemError(f"broken JSON: {text}", location=ItemLocation(line=number)) from error


def _item(value: Any, location: ItemLocation) -> Item:
    if not isinstance(value, dict):
        raise InvalidItemError("this is not a JSON object", location=location)
    return Item(value, location)


def _too_large(bytes_max: int) -> HTTPException:
    return HTTPException(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is longer than {bytes_max:,} bytes: send several smaller ones",
    )
