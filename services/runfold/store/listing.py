"""Lists that go on at a cursor: newest first, by a time in microseconds and an id, and filtered by
labels.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter
from pymongo import ASCENDING, DESCENDING, IndexModel

from runfold_schemas.cursors import decode_cursor, encode_cursor

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

SortKey = tuple[int, str]
"""Of an entry in its list: its time in microseconds since 1970, and its id."""

_SORT_KEY: Final = TypeAdapter[SortKey](tuple[Annotated[int, Field(ge=-(2**63), lt=2**63)], str])
"""A sort key with a time that MongoDB can compare with."""


def newest_first(time_field: str) -> list[tuple[str, int]]:
    """The order of a list, for sorting."""
    return list_order(time_field, ascending=False)


def list_order(time_field: str, *, ascending: bool) -> list[tuple[str, int]]:
    direction = ASCENDING if ascending else DESCENDING
    return [(time_field, direction), ("_id", direction)]


def list_index(time_field: str, *fields: str) -> IndexModel:
    """The index of a list that is filtered by `fields`."""
    return IndexModel([*((field, ASCENDING) for field in fields), *newest_first(time_field)])


def after_cursor(
    query: dict[str, Any], time_field: str, cursor: str | None, *, ascending: bool = False
) -> dict[str, Any]:
    """`query` for what comes behind the cursor. Raises `InvalidEventError` for a foreign one."""
    if cursor is None:
        return query
    time, id_ = decode_cursor(cursor, _SORT_KEY)
    behind = "$gt" if ascending else "$lt"
    # The last line says nothing new, but it is what lets every index begin at the cursor instead of
    # at the newest entry.
    return {
        **query,
        "$or": [{time_field: {behind: time}}, {time_field: time, "_id": {behind: id_}}],
        time_field: {**query.get(time_field, {}), f"{behind}e": time},
    }


def cursor_of(key: SortKey) -> str:
    """The cursor of the entries that follow this one. `after_cursor` reads it."""
    return encode_cursor(*key)


def label_pairs(labels: Mapping[str, str]) -> list[str]:
    # JSON, so that no key and no value can be mistaken for another pair.
    return [json.dumps(pair) for pair in labels.items()]


def microseconds(time: datetime | None) -> int:
    return (time - _EPOCH) // _MICROSECOND if time else 0


def moment(us: int) -> datetime:
    return _EPOCH + us * _MICROSECOND
