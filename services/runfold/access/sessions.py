"""Sessions for the adapters of agent frameworks: over the HTTP API, or on Kafka and MongoDB
directly."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from runfold.access.connection import FrameworkConnection, needing_servers
from runfold.client.session import SessionVerbs
from runfold.remote.sessions import HttpSessions


def session_connection(url: str | None, settings: Mapping[str, Any]) -> FrameworkConnection[SessionVerbs]:
    """As `FrameworkConnection`. Raises `ValueError`."""
    return FrameworkConnection(url, settings, over_http=_over_http, direct=_direct)


@asynccontextmanager
async def _over_http(url: str) -> AsyncIterator[SessionVerbs]:
    async with HttpSessions(url) as sessions:
        yield sessions


@asynccontextmanager
async def _direct(settings: Mapping[str, Any]) -> AsyncIterator[SessionVerbs]:
    with needing_servers():
        from runfold.access.direct import direct_sessions  # noqa: PLC0415
        from runfold.settings import Settings  # noqa: PLC0415
    async with direct_sessions(Settings(**settings)) as sessions:
        yield sessions
