"""Pages of lists. Google's clients fail on an empty page, so an answer contains a token only if
there is another item.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pydantic_core import from_json
from starlette.requests import Request

from runfold.vertex.requests import query_parameter
from runfold_schemas.cursors import PAGE_MAX, decode_text, encode_cursor
from runfold_schemas.errors import InvalidEventError

T = TypeVar("T")

Fetch = Callable[[int, str | None], Awaitable[tuple[Sequence[T], str | None]]]
"""Reads a list: given a limit and a cursor, returns at most so many items from there on, and the
cursor of the next items if there are any.
"""

_DEFAULT: Final = 100

_AT_A_TIME: Final = 100


class PageRequest(NamedTuple):
    """The page that a request asks for: its largest size, and the token of where it begins."""

    size: int
    token: str | None


def requested_page(request: Request, *, default: int = _DEFAULT, most: int = PAGE_MAX) -> PageRequest:
    """The page by `pageSize` and `pageToken`. A size of 0 stands for the default, and a larger size
    than `most` for `most`. Raises `InvalidEventError`.
    """
    size = _size(query_parameter(request, "pageSize") or "0")
    return PageRequest(min(size or default, most), query_parameter(request, "pageToken"))


async def fetch_page(
    fetch: Fetch[T], matches: Callable[[T], bool], request: PageRequest
) -> tuple[list[T], str | None]:
    """The items of the page that match, and the token of the next page if another item matches.

    A token is a cursor of the list itself. So if more items match than the page has room for, the
    items up to the last one of the page are fetched again, to get the cursor behind it.
    """
    shown: list[T] = []
    cursor, token = request.token, None
    at_a_time = limit = min(request.size, _AT_A_TIME)
    while True:
        items, next_cursor = await fetch(limit, cursor)
        indexes = [index for index, item in enumerate(items) if matches(item)]
        missing = request.size - len(shown)
        if indexes and not missing:
            return shown, token
        if len(indexes) > missing:
            limit = indexes[missing - 1] + 1
            continue
        shown += [items[index] for index in indexes]
        if next_cursor is None:
            return shown, None
        if indexes and len(shown) == request.size:
            token = next_cursor
        cursor, limit = next_cursor, at_a_time


def token_of(*values: Any) -> str:
    """A token that contains these JSON values."""
    return encode_cursor(*values).rstrip("=")


def token_values(token: str) -> list[Any]:
    """The values in a token of `token_of`. Raises `InvalidEventError` for any other text."""
    try:
        values = from_json(decode_text(token), allow_inf_nan=False)
    except ValueError as error:
        raise foreign_token() from error
    if not isinstance(values, list):
        raise foreign_token()
    return values


def foreign_token() -> InvalidEventError:
    return InvalidEventError("pageToken: this is not a token of an earlier answer", field="pageToken")


def _size(text: str) -> int:
    try:
        size = int(text)
    except ValueError as error:
        raise InvalidEventError(f"pageSize: {text!r} is not a number", field="pageSize") from error
    if size < 0:
        raise InvalidEventError("pageSize: a size is not negative", field="pageSize")
    return size
