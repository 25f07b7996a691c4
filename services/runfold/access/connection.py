"""How adapters of agent frameworks reach Runfold: over its HTTP API, or on Kafka and MongoDB
directly.

Frameworks create their services before any event loop runs, call them from many loops, and mostly
never close them. So a connection opens with the first call, is held by the background loop, and
serves every loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

from runfold.client.background import HeldConnection, KeptConnection

AnswerT = TypeVar("AnswerT")
VerbsT = TypeVar("VerbsT")
VerbsT_co = TypeVar("VerbsT_co", covariant=True)


class FrameworkConnection(Protocol[VerbsT_co]):
    """The verbs of Runfold for any number of event loops and threads. It may be an `async with`
    block.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def run(self, use: Callable[[VerbsT_co], Awaitable[AnswerT]]) -> AnswerT:
        """Calls `use` with the verbs, and returns its result. Raises `UnavailableError` and
        `ConfigurationError` if it cannot connect.
        """

    async def close(self) -> None:
        """Closes the connection of the background loop as soon as no call uses it any more. A later
        call connects again.
        """


class HttpConnection(Generic[VerbsT]):
    """Verbs over HTTP, whose requests run in the background loop. Leaving the block is `close`."""

    def __init__(self, verbs: VerbsT, close: Callable[[], Awaitable[None]]) -> None:
        self._verbs = verbs
        self._close = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def run(self, use: Callable[[VerbsT], Awaitable[AnswerT]]) -> AnswerT:
        return await use(self._verbs)

    async def close(self) -> None:
        await self._close()


class DirectConnection(Generic[VerbsT]):
    """Verbs on Kafka and MongoDB.

    Its `async with` block holds a connection of the loop that enters the block, so calls from that
    loop need not go through the background loop. The blocks of one loop share that connection,
    which is closed when the last block is left. All other calls use a connection of the background
    loop.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[VerbsT]]) -> None:
        self._connect = connect
        self._background = KeptConnection(connect)
        self._of_loops: dict[asyncio.AbstractEventLoop, HeldConnection[VerbsT]] = {}

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        held = self._of_loops.get(loop)
        if held is None or not held.is_usable():
            held = self._of_loops[loop] = HeldConnection(self._connect)
        await held.enter()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._leave(self._of_loops[asyncio.get_running_loop()])

    async def run(self, use: Callable[[VerbsT], Awaitable[AnswerT]]) -> AnswerT:
        held = self._of_loops.get(asyncio.get_running_loop()) if self._of_loops else None
        if held is None or not held.is_usable():
            return await self._background.run(use)
        verbs = await held.enter()
        try:
            return await use(verbs)
        finally:
            await self._leave(held)

    async def close(self) -> None:
        await self._background.close()

    async def _leave(self, held: HeldConnection[VerbsT]) -> None:
        held.leave()
        if not held.is_used():
            await held.close()
            self._forget(held)

    def _forget(self, held: HeldConnection[VerbsT]) -> None:
        loop = asyncio.get_running_loop()
        if self._of_loops.get(loop) is held:
            del self._of_loops[loop]


def check_address(url: str | None, settings: Mapping[str, Any], *, api_key: str | None = None) -> None:
    """Raises `ValueError` for a URL beside settings, for a URL that is not one of the API, and for
    a key without a URL.
    """
    if url is None and api_key is not None:
        raise ValueError("api_key is for Runfold's HTTP API: pass its url too")
    if url is not None and settings:
        raise ValueError(
            f"pass either a url or {', '.join(settings)}, not both: the API knows its own servers"
        )
    if url is not None and not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not the URL of Runfold's API: it must begin with http:// or https://")


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
