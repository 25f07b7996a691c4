"""A request's body: read up to a limit, and taken apart into the objects that it carries.

A route reads its body itself, or declares it as a model and is a `JsonRoute`.

Numbers stay what they are: integers have any size. NaN and Infinity are not JSON, and are refused
like any broken text.
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

MODEL_BYTES_MAX: Final = 4 * RECORD_BYTES_MAX
"""Of a body that is a model. JSON may be several times longer than the record it becomes: escapes,
spaces.
"""

_LINE = re.compile(r" at line (\d+) column \d+$")


@dataclass(frozen=True)
class Place:
    """Where in a body an object is: an NDJSON line counted from 1, an array's index from 0, nowhere
    if it is alone.
    """

    line: int | None = None
    index: int | None = None


class Item(NamedTuple):
    """One object of a body."""

    fields: dict[str, Any]
    place: Place


class InvalidItemError(InvalidEventError):
    """One object of several is wrong, or the text is broken in one line: `line` and `index` are its
    `Place`.
    """

    def __init__(self, message: str, *, place: Place, field: str = "") -> None:
        told = message if place.line is None else f"line {place.line}: {message}"
        super().__init__(told, field=field, index=place.index)
        self.line = place.line


async def read_body(request: Request, *, bytes_max: int) -> bytes:
    """The whole body. Answers 413 as soon as more than `bytes_max` are announced or have come."""
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
    """A route whose body is declared as a model. FastAPI validates it; what it is given was read by
    `read_body` and parsed by `parse_json`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_read(request: Request) -> Response:
            return await handle(_ReadRequest(request, await read_body(request, bytes_max=MODEL_BYTES_MAX)))

        return handle_read


class _ReadRequest(Request):
    def __init__(self, request: Request, body: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._bytes = body
        # FastAPI would make another error of what is raised when it asks.
        self._value = parse_json(body) if body else None

    async def body(self) -> bytes:
        return self._bytes

    async def json(self) -> Any:
        return self._value


def media_type(request: Request, *, allowed: tuple[str, ...]) -> str:
    """The body's media type if it is one of `allowed`; answers 415 otherwise."""
    given = request.headers.get("content-type", "")
    name = given.partition(";")[0].strip().lower()
    if name not in allowed:
        told = f"Content-Type is {given!r}" if given else "Content-Type is missing"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{told}; send {' or '.join(allowed)}")
    return name


def parse_items(body: bytes, media_type: str) -> list[Item]:
    """The objects of a body: one, an array of them, or NDJSON. Raises `InvalidEventError` naming
    the place.
    """
    items = list(_lines(body)) if media_type == NDJSON else _document(parse_json(body))
    if not items:
        raise InvalidEventError("the batch is empty: there is no event in it")
    return items


def parse_json(body: bytes) -> Any:
    """The JSON value in `body`. Raises `InvalidItemError` naming the line at which it breaks."""
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        broken = _LINE.search(str(error))
        place = Place(line=int(broken[1]) if broken else 1)
        raise InvalidItemError(f"broken JSON: {error}", place=place) from error


def _document(value: Any) -> list[Item]:
    if isinstance(value, list):
        return [_item(each, Place(index=index)) for index, each in enumerate(value)]
    if not isinstance(value, dict):
        raise InvalidEventError("the body is neither an object nor an array of objects")
    return [Item(value, Place())]


def _lines(body: bytes) -> Iterator[Item]:
    for number, line in enumerate(body.split(b"\n"), start=1):
        if line.strip():
            yield _item(_parse_line(line, number), Place(line=number))


def _parse_line(line: bytes, number: int) -> Any:
    try:
        return from_json(line, allow_inf_nan=False)
    except ValueError as error:
        # The parser saw one line and calls it the first.
        text = str(error).replace(" at line 1 column ", " at column ")
        raise InvalidItemError(f"broken JSON: {text}", place=Place(line=number)) from error


def _item(value: Any, place: Place) -> Item:
    if not isinstance(value, dict):
        raise InvalidItemError("this is not a JSON object", place=place)
    return Item(value, place)


def _too_large(bytes_max: int) -> HTTPException:
    return HTTPException(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is longer than {bytes_max:,} bytes: send several smaller ones",
    )
