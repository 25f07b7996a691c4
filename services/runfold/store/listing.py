"""Helpers for lists in pages: sorted by a time in microseconds and an id, filtered by labels, and
continued at a cursor.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter
from pymongo import ASCENDING, DESCENDING, IndexModel

from runfold_schemas.cursors import decode_cursor, encode_cursor

QUERY_MS: Final = 25_000
"""The limit of a list's or a sum's time in MongoDB: the connection gives up after 30 s, and a query
that nobody waits for must not go on.
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

SortKey = tuple[int, str]
"""The position of an entry in its list: its time in microseconds since 1970, and its id."""

_SORT_KEY: Final = TypeAdapter[SortKey](tuple[Annotated[int, Field(ge=-(2**63), lt=2**63)], str])
"""A sort key with a time that MongoDB can compare with."""


def newest_first(time_field: str) -> list[tuple[str, int]]:
    """The sort order of a list with the newest entry first."""
    return list_order(time_field, ascending=False)


def list_order(time_field: str, *, ascending: bool) -> list[tuple[str, int]]:
    """The sort order of a list by `time_field` and id."""
    direction = ASCENDING if ascending else DESCENDING
    return [(time_field, direction), ("_id", direction)]


def list_index(time_field: str, *fields: str) -> IndexModel:
    """The index for a list that is filtered by `fields`."""
    return IndexModel([*((field, ASCENDING) for field in fields), *newest_first(time_field)])


def after_cursor(
    query: dict[str, Any], time_field: str, cursor: str | None, *, ascending: bool = False
) -> dict[str, Any]:
    """`query`, restricted to the entries after the cursor. Raises `InvalidEventError` for a cursor
    that no list returned.
    """
    if cursor is None:
        return query
    return after_key(query, time_field, decode_cursor(cursor, _SORT_KEY), ascending=ascending)


def after_key(query: dict[str, Any], time_field: str, key: SortKey, *, ascending: bool) -> dict[str, Any]:
    """`query`, restricted to the entries after the entry with this sort key."""
    time, id_ = key
    after = "$gt" if ascending else "$lt"
    # The last condition follows from the others. With it, MongoDB begins the scan of an index at
    # the cursor instead of at the newest entry.
    return {
        **query,
        "$or": [{time_field: {after: time}}, {time_field: time, "_id": {after: id_}}],
        time_field: {**query.get(time_field, {}), f"{after}e": time},
    }


def cursor_of(key: SortKey) -> str:
    """The cursor of the entries after the entry with this sort key. `after_cursor` reads it."""
    return encode_cursor(*key)


def label_pairs(labels: Mapping[str, str]) -> list[str]:
    """Each label as one text that an index can hold."""
    # JSON keeps pairs apart, whatever characters keys and values have.
    return [json.dumps(pair) for pair in labels.items()]


def microseconds(time: datetime | None) -> int:
    """Microseconds since 1970; 0 for None."""
    return (time - _EPOCH) // _MICROSECOND if time else 0


def moment(us: int) -> datetime:
    """The time `us` microseconds after 1970."""
    return _EPOCH + us * _MICROSECOND
