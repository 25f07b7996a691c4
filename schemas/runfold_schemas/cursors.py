"""Cursors of lists: the position where the next page begins, as text that the caller sends back
unchanged.

Each list encodes and decodes its own cursors with these functions. A cursor holds the position of
the last entry of a page, so entries that are added or removed meanwhile do not shift the next page.
"""

import base64
import json
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from runfold_schemas.errors import InvalidEventError

ValuesT = TypeVar("ValuesT")

PAGE_MAX: Final = 1000
"""The most entries that a page of a list has."""

_OFFSET_DIGITS_MAX: Final = 18
"""All numbers with so many digits fit into 64 bits, the range of MongoDB's integers."""


def encode_cursor(*values: Any) -> str:
    """A cursor that holds `values`, which JSON can encode."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def decode_cursor(cursor: str, values: TypeAdapter[ValuesT]) -> ValuesT:
    """The values in a cursor. Raises `InvalidEventError` for a cursor with other values."""
    try:
        return values.validate_json(decode_text(cursor))
    except ValueError as error:
        raise foreign_cursor() from error


def decode_text(cursor: str) -> bytes:
    """The JSON in a cursor, with or without the padding of base64. Raises `ValueError` for other
    text.
    """
    padding = "=" * (-len(cursor) % 4)
    return base64.b64decode(cursor + padding, altchars=b"-_", validate=True)


def encode_offset(offset: int) -> str:
    """The cursor of a list in the order of a log."""
    return str(offset)


def decode_offset(cursor: str) -> int:
    """The offset in a cursor. Raises `InvalidEventError` for a cursor without one."""
    # `isdecimal` alone is true for digits of other scripts as well.
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _OFFSET_DIGITS_MAX):
        raise foreign_cursor()
    return int(cursor)


def foreign_cursor() -> InvalidEventError:
    """The error for a cursor that the list did not return."""
    return InvalidEventError("the cursor was not returned by this list", field="cursor")
