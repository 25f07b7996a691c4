"""What an identity provider publishes, fetched when a request needs it and then kept."""

import asyncio
import http.client
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from runfold_schemas.errors import UnavailableError

FRESH_SECONDS: Final = 300.0
"""After this time a value is fetched again beside the requests. So a key that the provider has
withdrawn counts for 5 minutes at most while the provider answers.
"""

KEPT_SECONDS: Final = 24 * 3600.0
"""For this time a value counts while the provider does not answer."""

PAUSE_SECONDS: Final = 10.0
"""The shortest time between two fetches, because requests without a credential can cause them."""

FETCH_ERRORS: Final = (OSError, ValueError, http.client.HTTPException)

_log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")


class Fetched(Generic[ValueT]):
    """The value that `fetch` returns in a thread. `fetch` raises one of `FETCH_ERRORS`."""

    def __init__(
        self, name: str, fetch: Callable[[], ValueT], *, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self._name = name
        self._fetch = fetch
        self._pause_seconds = pause_seconds
        # Other work of the process must not wait for the provider in threads that it shares.
        self._thread = ThreadPoolExecutor(1, "identity-provider")
        self._values: list[ValueT] = []
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._failure = "not fetched yet"

    async def get(self) -> ValueT:
        """The value. Raises `UnavailableError` if it could not be fetched."""
        age = time.monotonic() - self._fetched_at
        if age > KEPT_SECONDS:
            await self.renew()
        elif age > FRESH_SECONDS:
            self._begin_fetch()
        if time.monotonic() - self._fetched_at > KEPT_SECONDS:
            raise UnavailableError("The identity provider", reason=self._failure)
        return self._values[0]

    async def renew(self) -> None:
        """Returns when a fetch has ended. Concurrent calls share it, and within the pause after a
        fetch there is none.
        """
        self._begin_fetch()
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _begin_fetch(self) -> None:
        is_fetching = self._fetching is not None and not self._fetching.done()
        if not is_fetching and time.monotonic() - self._tried_at >= self._pause_seconds:
            self._tried_at = time.monotonic()
            self._fetching = asyncio.create_task(self._set_anew())

    async def _set_anew(self) -> None:
        try:
            self._values = [await asyncio.get_running_loop().run_in_executor(self._thread, self._fetch)]
            self._fetched_at = time.monotonic()
        except FETCH_ERRORS as error:
            reason = reason_of(error)
            if reason != self._failure:
                _log.warning("%s cannot be fetched: %s", self._name, reason)
            self._failure = reason


def reason_of(error: Exception) -> str:
    """One short line that says why a request to the provider failed."""
    return " ".join(str(error).split())[:200] or type(error).__name__
