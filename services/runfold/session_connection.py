"""Sessions for the adapters of agent frameworks: over the HTTP API or directly, connected when they are first used.

Frameworks make their session service where nothing is running yet, and mostly never close it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from runfold.http_sessions import HttpSessions
from runfold.session import SessionVerbs


class SessionConnection:
    """To the API at `url`; without one, to the servers in `settings`, which are those of `runfold.settings.Settings`."""

    def __init__(self, url: str | None, settings: Mapping[str, Any]) -> None:
        if url is not None and settings:
            raise ValueError(f"either a url or {', '.join(settings)}: the API knows its own servers")
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no URL of Runfold's API: it begins with http:// or https://")
        self._url = url
        self._settings = settings
        self._stack = AsyncExitStack()
        self._connecting = asyncio.Lock()
        self._sessions: SessionVerbs | None = None

    async def sessions(self) -> SessionVerbs:
        """Raises `UnavailableError`, `ConfigurationError`."""
        if self._sessions is None:
            async with self._connecting:
                if self._sessions is None:
                    opening = _direct(self._settings) if self._url is None else HttpSessions(self._url)
                    self._sessions = await self._stack.enter_async_context(opening)
        return self._sessions

    async def close(self) -> None:
        """Closes what was opened. Using it again opens it again."""
        self._sessions = None
        await self._stack.aclose()


@asynccontextmanager
async def _direct(settings: Mapping[str, Any]) -> AsyncIterator[SessionVerbs]:
    # Whoever speaks to the HTTP API has none of what this needs.
    try:
        from runfold.direct import direct_sessions  # noqa: PLC0415
        from runfold.settings import Settings  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing: to use Kafka and MongoDB directly, pip install 'runfold[server]'; or give the URL of"
            " Runfold's API"
        ) from error
    async with direct_sessions(Settings(**settings)) as sessions:
        yield sessions
