"""Pages of lists. Google's clients break on a page that is empty, so a token is given out only if another item is there."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple, TypeVar

from starlette.requests import Request

from runfold.vertex.requests import parameter
from runfold_schemas.errors import InvalidEventError

T = TypeVar("T")

_DEFAULT: Final = 100
_MAX: Final = 1000


class Paging(NamedTuple):
    """What is asked for: how many at the most, and from where on."""

    size: int
    token: str | None


def paging(request: Request, *, default: int = _DEFAULT, most: int = _MAX) -> Paging:
    """By `pageSize` and `pageToken`. A size of 0 is the default, and one that is too large is `most`. Raises
    `InvalidEventError`.
    """
    size = _size(parameter(request, "pageSize") or "0")
    return Paging(min(size or default, most), parameter(request, "pageToken"))


async def page(items: AsyncIterator[tuple[T, str]], size: int) -> tuple[list[T], str | None]:
    """The first `size` items, each of which comes with the token of what is behind it; and the token of the next page, if
    there is one more item.
    """
    found: list[T] = []
    following: str | None = None
    async for item, token in items:
        if len(found) == size:
            return found, following
        found.append(item)
        following = token
    return found, None


def token_of(*place: Any) -> str:
    """A token that holds these values of JSON."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place_of(token: str) -> list[Any]:
    """What `token_of` was given. Raises `InvalidEventError` for anything else."""
    try:
        place = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError) as error:
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
