"""Pages of lists. Google's clients break on a page that is empty, so a token is given out only if
another item is there.
"""

import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pydantic_core import from_json
from starlette.requests import Request

from runfold.vertex.requests import parameter
from runfold_schemas.errors import InvalidEventError

T = TypeVar("T")

Fetch = Callable[[int, str | None], Awaitable[tuple[Sequence[T], str | None]]]
"""A verb's list: so many items at the most from its cursor on, and the cursor of what is behind
them, if anything is.
"""

_DEFAULT: Final = 100
_MAX: Final = 1000

_AT_A_TIME: Final = 100


class Paging(NamedTuple):
    """What is asked for: how many at the most, and from where on."""

    size: int
    token: str | None


def paging(request: Request, *, default: int = _DEFAULT, most: int = _MAX) -> Paging:
    """By `pageSize` and `pageToken`. A size of 0 is the default, and one that is too large is
    `most`. Raises `InvalidEventError`.
    """
    size = _size(parameter(request, "pageSize") or "0")
    return Paging(min(size or default, most), parameter(request, "pageToken"))


async def page(fetch: Fetch[T], is_wanted: Callable[[T], bool], asked: Paging) -> tuple[list[T], str | None]:
    """The items that are wanted, as many as are asked for; and the token of the next page, if there
    is one more of them. A token is a cursor of the verb's own: what is fetched beyond the last item
    of a page is fetched once more up to it.
    """
    found: list[T] = []
    cursor, token = asked.token, None
    at_a_time = limit = min(asked.size, _AT_A_TIME)
    while True:
        items, following = await fetch(limit, cursor)
        places = [place for place, item in enumerate(items) if is_wanted(item)]
        missing = asked.size - len(found)
        if places and not missing:
            return found, token
        if len(places) > missing:
            limit = places[missing - 1] + 1
            continue
        found += [items[place] for place in places]
        if following is None:
            return found, None
        if places and len(found) == asked.size:
            token = following
        cursor, limit = following, at_a_time


def token_of(*place: Any) -> str:
    """A token that holds these values of JSON."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place_of(token: str) -> list[Any]:
    """What `token_of` was given. Raises `InvalidEventError` for anything else."""
    try:
        said = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        place = from_json(said, allow_inf_nan=False)
    except ValueError as error:
        raise foreign_token() from error
    if not isinstance(place, list):
        raise foreign_token()
    return place


def foreign_token() -> InvalidEventError:
    return InvalidEventError("pageToken: it is not one that was given out here", field="pageToken")


def _size(text: str) -> int:
    try:
        size = int(text)
    except ValueError as error:
        raise InvalidEventError(f"pageSize: {text!r} is not a number", field="pageSize") from error
    if size < 0:
        raise InvalidEventError("pageSize: less than nothing", field="pageSize")
    return size
