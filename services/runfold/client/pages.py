"""Pages of lists that are read from the log. A cursor names the last entry of its page by time and
name, so entries that are created or deleted meanwhile shift nothing.
"""

from datetime import datetime
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from pydantic import AwareDatetime, TypeAdapter

from runfold_schemas.cursors import decode_cursor, encode_cursor
from runfold_schemas.errors import InvalidEventError


class ListPlace(NamedTuple):
    """The place of an entry in its list, which is ordered by time, and by name at the same time."""

    time: datetime
    name: str


def check_limit(limit: int) -> int:
    """The limit of a list. Raises `InvalidEventError` if it is less than 1."""
    if limit < 1:
        raise InvalidEventError(f"limit: {limit} is less than 1", field="limit")
    return limit


_CURSOR: Final = TypeAdapter[tuple[datetime, str]](tuple[AwareDatetime, str])

EntryT = TypeVar("EntryT")


def page_of(
    placed: list[tuple[ListPlace, EntryT]], *, limit: int, cursor: str | None, ascending: bool = False
) -> tuple[list[EntryT], str | None]:
    """Up to `limit` entries after the cursor, and the cursor of the next page. The newest come
    first, unless `ascending`. Raises `InvalidEventError` for a foreign cursor.
    """
    placed.sort(key=itemgetter(0), reverse=not ascending)
    if cursor is not None:
        shown = decode_cursor(cursor, _CURSOR)
        placed = [entry for entry in placed if (entry[0] > shown if ascending else entry[0] < shown)]
    entries = [entry for _, entry in placed[:limit]]
    if len(placed) <= limit:
        return entries, None
    last = placed[limit - 1][0]
    return entries, encode_cursor(last.time.isoformat(), last.name)
