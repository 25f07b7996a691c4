"""Sessions for the adapters of agent frameworks: over the HTTP API, or on Kafka and MongoDB
directly."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from runfold.access.connection import (
    DirectConnection,
    FrameworkConnection,
    HttpConnection,
    check_address,
    needing_servers,
)
from runfold.client.session import SessionVerbs
from runfold.remote.sessions import HttpSessions


def session_connection(
    url: str | None, settings: Mapping[str, Any], *, api_key: str | None = None
) -> FrameworkConnection[SessionVerbs]:
    """A connection to the API at `url`, or without a URL to the servers in `settings`, which are
    fields of `runfold.settings.Settings`. Raises `ValueError`.
    """
    check_address(url, settings, api_key=api_key)
    if url is None:
        return DirectConnection(partial(_direct, settings))
    sessions = HttpSessions(url, api_key=api_key)
    return HttpConnection[SessionVerbs](sessions, sessions.close)


@asynccontextmanager
async def _direct(settings: Mapping[str, Any]) -> AsyncIterator[SessionVerbs]:
    with needing_servers():
        from runfold.access.direct import direct_sessions  # noqa: PLC0415
        from runfold.settings import Settings  # noqa: PLC0415
    async with direct_sessions(Settings(**settings)) as sessions:
        yield sessions
