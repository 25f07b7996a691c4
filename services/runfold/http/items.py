"""The objects of a body: one, an array of them, or NDJSON.

A long array or NDJSON is decoded object by object, with pauses in between. So it holds up nobody,
and a wrong object ends the work. The objects of an array are found by the brackets outside of
strings.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from runfold.http.bodies import (
    DOCUMENT_BYTES_MAX,
    NDJSON,
    InvalidItemError,
    ItemLocation,
    decode_json,
    parse_json,
    read_outline,
    too_deep,
    too_large,
    too_long,
    too_many_values,
)
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.outline import DEPTH_MAX, VALUES_MAX, chunks_of, without_escapes

ITEMS_MAX: Final = 25_000
"""More objects than the smallest events that fit into one record batch."""

BATCH_VALUES_MAX: Final = 1_000_000
"""The most values of all objects of a body. Decoded, they take up to 120 MB."""

_WHOLE_BYTES_MAX: Final = VALUES_MAX
"""The length up to which an array is decoded in one step: it cannot have too many values."""

_PAUSE_BYTES: Final = 64 * 1024

_BRACKET: Final = re.compile(rb'(?:[^"\[\]{}]++|"[^"]*+")*+([\[\]{}]|\Z)')
"""All up to the next bracket. Strings have no escapes here, and the last one is closed, so each
match begins where the match before has ended.
"""

_SPACE: Final = b" \t\r\n"


class Item(NamedTuple):
    """One object of a body."""

    fields: dict[str, Any]
    location: ItemLocation


async def parse_items(body: bytes, media_type: str) -> AsyncIterator[Item]:
    """The objects of a body. Raises `InvalidEventError` naming the line or the index, and answers
    413 for too many objects.
    """
    count = 0
    async for item in _parse_lines(body) if media_type == NDJSON else _parse_document(body):
        if count == ITEMS_MAX:
            raise too_large(f"the batch has more than {ITEMS_MAX:,} events")
        yield item
        count += 1
    if not count:
        raise InvalidEventError("the batch is empty: there is no event in it")


async def _parse_lines(body: bytes) -> AsyncIterator[Item]:
    await _check_lines(body)
    budget = _Budget()
    number = begin = 0
    while begin < len(body):
        end = body.find(b"\n", begin)
        line = body[begin : end if end >= 0 else len(body)]
        number += 1
        if line.strip():
            yield _item(await _parse_line(line, number, budget), ItemLocation(line=number))
        begin += len(line) + 1


async def _check_lines(body: bytes) -> None:
    """Answers 413 for too many lines, which may be empty."""
    count = 0
    for chunk in chunks_of(body):
        count += chunk.count(b"\n")
        if count > VALUES_MAX:
            raise too_large(f"the batch has more than {VALUES_MAX:,} lines")
        if len(body) > len(chunk):
            await asyncio.sleep(0)


async def _parse_line(line: bytes, number: int, budget: "_Budget") -> Any:
    try:
        return await _parse_part(line, budget)
    except InvalidEventError as error:
        # The parser sees one line, so it always names line 1.
        text = error.args[0].removeprefix("line 1: ").replace(" at line 1 column ", " at column ")
        raise InvalidItemError(text, location=ItemLocation(line=number)) from error


async def _parse_document(body: bytes) -> AsyncIterator[Item]:
    if body.lstrip(_SPACE)[:1] != b"[":
        value = await parse_json(body)
        if not isinstance(value, dict):
            raise InvalidEventError("the body is neither an object nor an array of objects")
        yield Item(value, ItemLocation())
    elif len(body) > _WHOLE_BYTES_MAX:
        async for item in _parse_elements(body):
            yield item
    else:
        await read_outline(body, depth_max=DEPTH_MAX + 1)
        for index, value in enumerate(decode_json(body)):
            yield _item(value, ItemLocation(index=index))


async def _parse_elements(body: bytes) -> AsyncIterator[Item]:
    """The objects of an array, each decoded by itself."""
    budget = _Budget()
    index = 0
    async for begin, end in _elements(body):
        value = await _parse_part(body[begin:end], budget, within=body, begin=begin)
        yield _item(value, ItemLocation(index=index))
        index += 1


async def _elements(body: bytes) -> AsyncIterator[tuple[int, int]]:
    """Where the arrays and objects in an array begin and end. Raises `InvalidItemError` for
    anything else in it.
    """
    index = depth = begin = end = brackets = 0
    async for chunk in _brackets(body):
        for position, bracket in chunk:
            brackets += 1
            if bracket in b"[{":
                if depth == 1:
                    _check_between(body, end, position, index=index, expected=b"," if index else b"")
                    begin, brackets = position, 0
                depth += 1
                end = position + 1 if depth == 1 else end
                _check_growth(depth, brackets)
                continue
            depth -= 1
            if depth == 0:
                _check_between(body, end, position, index=index, expected=b"")
                _check_between(body, position + 1, len(body), index=None, expected=b"")
                return
            if depth == 1:
                end = position + 1
                yield begin, end
                index += 1
    raise _broken("EOF while parsing a list", body, len(body))


def _check_growth(depth: int, brackets: int) -> None:
    """Ends the search for the end of an object that cannot be decoded."""
    if depth > DEPTH_MAX + 1:
        raise too_deep()
    if brackets > 2 * VALUES_MAX:
        raise too_many_values()


def _check_between(body: bytes, begin: int, end: int, *, index: int | None, expected: bytes) -> None:
    """Raises `InvalidItemError` if the text between two objects of an array is not the expected."""
    between = body[begin:end].strip(_SPACE)
    if between == expected:
        return
    if index is not None and between.strip(_SPACE + b","):
        raise InvalidItemError("this is not a JSON object", location=ItemLocation(index=index))
    raise _broken("expected an object, or the end of the array,", body, begin)


def _broken(message: str, body: bytes, position: int) -> InvalidItemError:
    line = body.count(b"\n", 0, position) + 1
    column = position - body.rfind(b"\n", 0, position)
    return InvalidItemError(
        f"broken JSON: {message} at line {line} column {column}", location=ItemLocation(line=line)
    )


async def _brackets(body: bytes) -> AsyncIterator[list[tuple[int, bytes]]]:
    """The brackets outside of strings with their positions, those of one chunk at a time."""
    begin = in_string = 0
    while begin < len(body):
        chunk = body[begin : begin + _PAUSE_BYTES]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            chunk = body[begin : begin + len(chunk) + 1]
        text = b'"' * in_string + without_escapes(chunk, by=b"  ")
        first, in_string = begin - in_string, text.count(b'"') % 2
        matches = _BRACKET.finditer(text + b'"' * in_string)
        yield [(first + match.start(1), match[1]) for match in matches if match[1]]
        begin += len(chunk)
        await asyncio.sleep(0)


class _Budget:
    """The values that the objects of one body may still have."""

    def __init__(self) -> None:
        self._values = BATCH_VALUES_MAX
        self._unpaused = 0

    async def spend(self, part: bytes) -> None:
        """Answers 413 if the part, or all parts together, have too many values."""
        if len(part) > DOCUMENT_BYTES_MAX:
            raise too_long(DOCUMENT_BYTES_MAX)
        self._values -= await read_outline(part)
        if self._values < 0:
            raise too_large(f"the batch has more than {BATCH_VALUES_MAX:,} JSON values")
        self._unpaused += len(part)
        if self._unpaused > _PAUSE_BYTES:
            self._unpaused = 0
            await asyncio.sleep(0)


async def _parse_part(part: bytes, budget: _Budget, *, within: bytes = b"", begin: int = 0) -> Any:
    await budget.spend(part)
    return decode_json(part, within=within, begin=begin)


def _item(value: Any, location: ItemLocation) -> Item:
    if not isinstance(value, dict):
        raise InvalidItemError("this is not a JSON object", location=location)
    return Item(value, location)
