"""The bounds of searches by words. A search that finds little reads all runs of a tenant, in a
MongoDB that all tenants share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pymongo.errors import ExecutionTimeout

from runfold_schemas.errors import InvalidEventError, UnavailableError

SEARCH_MS: Final = 5_000
"""The limit of a search's time in MongoDB."""

_AT_ONCE: Final = 4


class WordSearches:
    """The searches that a process does in one edition of a tenant."""

    def __init__(self) -> None:
        self._running = 0

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Raises `InvalidEventError` if the search in the block takes too long, and
        `UnavailableError` if too many searches go on.
        """
        if self._running >= _AT_ONCE:
            raise UnavailableError("MongoDB", reason=f"{_AT_ONCE} searches by words go on")
        self._running += 1
        try:
            yield
        except ExecutionTimeout as error:
            raise InvalidEventError(
                f"the search takes longer than {SEARCH_MS // 1000} s: restrict it further, for example by"
                " `since`, `agent_id` or `user_id`",
                field="text",
            ) from error
        finally:
            self._running -= 1
