"""The contents of stored records: whether somebody can read them. Ids and the other fields that
stay clear are no contents, by the table of `encryption/fields.py`.
"""

import json
import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Final

from runfold.encryption.fields import DATA, ENVELOPE, ERASED, EXTRACTED, MEMORY, PLACEHOLDER, Form
from runfold.encryption.sealed_text import parse_text
from runfold.encryption.skeleton import skeleton_of_body

_CIPHERTEXT: Final = re.compile(rb'(?<!\\)"sealed:v1:([0-9A-Za-z_-]{22}):')
"""The begin of every encrypted text, with the id of its key."""

_DELETIONS: Final = frozenset({"session_deleted", "run_deleted", "state_deleted", "memory_deleted"})

_ENVELOPE: Final = {**ENVELOPE, "data": Form.CLEAR}
_CHANGE: Final = {**DATA["memory_created"], **DATA["memory_deleted"]}
_MODEL: Final = {**MEMORY, **EXTRACTED}

_RECORD: Final[Mapping[str, Form]] = {
    "labels": Form.VALUES,
    "display_name": Form.VALUE,
    "error": Form.VALUE,
    "memory": Form.MODEL,
    "extracted": Form.MODEL,
    "config": Form.SEALED,
}
"""The contents of the records that folds store."""


class Readable(Enum):
    """Whether and how contents can be read."""

    NO = "no"
    BY_KEY = "by a key"
    """They are encrypted by a key that is in use."""
    CLEAR = "in clear"

    @classmethod
    def of(cls, text: bytes, keys: Collection[str], *, is_clear: bool) -> "Readable":
        if is_clear:
            return cls.CLEAR
        return cls.BY_KEY if any(key.decode() in keys for key in _CIPHERTEXT.findall(text)) else cls.NO


def of_event(value: bytes | None, keys: Collection[str]) -> Readable:
    """Of an event's contents. Other bytes count as clear if they have no ciphertext."""
    if not value:
        return Readable.NO
    event = _parsed(value)
    if not isinstance(event, dict):
        return _of_bytes(value, keys)
    if event.get("type") in _DELETIONS:
        return Readable.NO
    table, data = DATA.get(str(event.get("type"))), event.get("data")
    if table is None or not isinstance(data, dict):
        return _of_bytes(value, keys)
    is_clear = _has_clear(event, _ENVELOPE) or _has_clear(data, {**table, "config": Form.SEALED})
    return Readable.of(value, keys, is_clear=is_clear)


def of_record(text: bytes, keys: Collection[str]) -> Readable:
    """Of a record that a fold stores as JSON."""
    record = _parsed(text)
    if not isinstance(record, dict):
        return _of_bytes(text, keys)
    contents = {name: value for name, value in record.items() if name in _RECORD}
    return Readable.of(text, keys, is_clear=_has_clear(contents, _RECORD))


def of_value(text: bytes, keys: Collection[str]) -> Readable:
    """Of a value of state as JSON."""
    return Readable.of(text, keys, is_clear=_says(_parsed(text)))


def _parsed(text: bytes) -> Any:
    """None if the text is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _of_bytes(text: bytes, keys: Collection[str]) -> Readable:
    return Readable.of(text, keys, is_clear=_CIPHERTEXT.search(text) is None)


def _has_clear(fields: Mapping[str, Any], table: Mapping[str, Form]) -> bool:
    """Whether a field whose form is not clear can be read."""
    return any(_is_clear(table.get(name, Form.SEALED), value) for name, value in fields.items())


def _is_clear(form: Form, value: Any) -> bool:
    match form:
        case Form.CLEAR | Form.FALSE:
            return False
        case Form.MODEL:
            return any(_has_clear(each, _MODEL) for each in _objects(value))
        case Form.CHANGES:
            return any(_has_clear(each, _CHANGE) for each in _objects(value))
        case Form.STAND_INS:
            return any(
                _has_clear(each.get("data") or {}, DATA.get(str(each.get("type")), {}))
                for each in _objects(value)
            )
        case Form.BODY if isinstance(value, dict):
            return skeleton_of_body(value) != value
        case _:
            return _says(value)


def _objects(value: Any) -> list[dict[str, Any]]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, dict)]


def _says(value: Any) -> bool:
    """Whether JSON has a value that is neither encrypted nor empty."""
    if isinstance(value, dict):
        return any(map(_says, value.values()))
    if isinstance(value, list):
        return any(map(_says, value))
    if isinstance(value, str):
        return value not in ("", PLACEHOLDER, ERASED) and parse_text(value.encode(errors="replace")) is None
    return value is not None
