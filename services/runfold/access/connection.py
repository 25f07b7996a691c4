"""What adapters of agent frameworks reach Runfold by: its HTTP API, or its servers directly,
connected when it is first used.

Frameworks make their services where nothing is running yet, and mostly never close them.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

VerbsT = TypeVar("VerbsT")


class FrameworkConnection(Generic[VerbsT]):
    """To the API at `url`; without one, to the servers in `settings`, which are those of
    `runfold.settings.Settings`.
    """

    def __init__(
        self,
        url: str | None,
        settings: Mapping[str, Any],
        *,
        over_http: Callable[[str], AbstractAsyncContextManager[VerbsT]],
        direct: Callable[[Mapping[str, Any]], AbstractAsyncContextManager[VerbsT]],
    ) -> None:
        if url is not None and settings:
            raise ValueError(f"either a url or {', '.join(settings)}: the API knows its own servers")
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no URL of Runfold's API: it begins with http:// or https://")
        self._open = partial(direct, settings) if url is None else partial(over_http, url)
        self._stack = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._verbs: VerbsT | None = None

    async def verbs(self) -> VerbsT:
        """Raises `UnavailableError`, `ConfigurationError`."""
        if self._verbs is None:
            async with self._connecting:
                if self._verbs is None:
                    self._verbs = await self._stack.enter_async_context(self._open())
                return self._verbs
        return self._verbs

    async def close(self) -> None:
        """Closes what was opened. Using it again opens it again."""
        self._verbs = None
        await self._stack.aclose()


@contextmanager
def needing_servers() -> Iterator[None]:
    """Around imports of what only direct use needs: whoever speaks to the HTTP API has none of
    it.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing: to use Kafka and MongoDB directly, pip install 'runfold[server]'; or give the URL of"
            " Runfold's API"
        ) from error
