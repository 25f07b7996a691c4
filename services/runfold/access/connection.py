"""How adapters of agent frameworks reach Runfold: over its HTTP API, or on Kafka and MongoDB
directly.

Frameworks create their services before any event loop runs, call them from many loops, and mostly
never close them. So the connection is a `KeptConnection`, which opens with the first call and
serves every loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

from runfold.client.background import KeptConnection

AnswerT = TypeVar("AnswerT")
VerbsT = TypeVar("VerbsT")


class FrameworkConnection(Generic[VerbsT]):
    """A connection to the API at `url`, or without a URL to the servers in `settings`, which are
    fields of `runfold.settings.Settings`.

    Its `async with` block opens a connection in the loop that enters the block, which saves calls
    from that loop the way to the background loop. Calls from other loops, and without a block, use
    a connection of the background loop.
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
            raise ValueError(
                f"pass either a url or {', '.join(settings)}, not both: the API knows its own servers"
            )
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(
                f"{url!r} is not the URL of Runfold's API: it must begin with http:// or https://"
            )
        self._connect = partial(direct, settings) if url is None else partial(over_http, url)
        self._background = KeptConnection(self._connect)
        self._entered: list[_Entered[VerbsT]] = []

    async def __aenter__(self) -> Self:
        stack = AsyncExitStack()
        verbs = await stack.enter_async_context(self._connect())
        self._entered.append(_Entered(asyncio.get_running_loop(), verbs, stack))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        entered = self._of_running_loop()
        if entered is not None:
            await self._leave(entered)

    async def run(self, use: Callable[[VerbsT], Awaitable[AnswerT]]) -> AnswerT:
        """Calls `use` with the verbs, and returns what it returns. Raises `UnavailableError` and
        `ConfigurationError` if it cannot connect.
        """
        entered = self._of_running_loop()
        return await (self._background.run(use) if entered is None else use(entered.verbs))

    async def close(self) -> None:
        """Closes the connections of this loop and of the background loop. A later call connects
        again.
        """
        while (entered := self._of_running_loop()) is not None:
            await self._leave(entered)
        await self._background.close()

    def _of_running_loop(self) -> "_Entered[VerbsT] | None":
        if not self._entered:
            return None
        loop = asyncio.get_running_loop()
        return next((entered for entered in reversed(self._entered) if entered.loop is loop), None)

    async def _leave(self, entered: "_Entered[VerbsT]") -> None:
        self._entered.remove(entered)
        await entered.stack.aclose()


class _Entered(NamedTuple, Generic[VerbsT]):
    """A connection of one loop, for the length of an `async with` block."""

    loop: asyncio.AbstractEventLoop
    verbs: VerbsT
    stack: AsyncExitStack


@contextmanager
def needing_servers() -> Iterator[None]:
    """Explains an `ImportError` of packages that only direct use needs: with a URL, none of them
    has to be installed.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing: to use Kafka and MongoDB directly, pip install 'runfold[server]';"
            " or pass the URL of Runfold's API"
        ) from error
