"""Cursors of lists: where the next page begins, as a text that a caller sends back unchanged.

Each list encodes and decodes its own cursors with the functions here. A cursor holds the position
of the last entry that was shown, so entries that come or go meanwhile shift nothing.
"""

import base64
import json
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from runfold_schemas.errors import InvalidEventError

ValuesT = TypeVar("ValuesT")

_OFFSET_DIGITS_MAX: Final = 18
"""All such numbers fit into 64 bits, which is what MongoDB compares with."""


def encode_cursor(*values: Any) -> str:
    """A cursor of values that JSON has."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode()


def decode_cursor(cursor: str, values: TypeAdapter[ValuesT]) -> ValuesT:
    """The values in a cursor. Raises `InvalidEventError` for a cursor with other values."""
    try:
        return values.validate_json(base64.urlsafe_b64decode(cursor.encode()))
    except ValueError as error:
        raise foreign_cursor() from error


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
    return InvalidEventError("the cursor is not one that was given out here", field="cursor")
