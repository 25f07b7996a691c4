"""Memories and their generation for the adapters of agent frameworks: over the HTTP API, or
on Kafka and MongoDB directly.
"""

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
from runfold.generation.verbs import MemoryBackend
from runfold.remote.memories import HttpMemories


def memory_connection(
    url: str | None, settings: Mapping[str, Any], *, api_key: str | None = None
) -> FrameworkConnection[MemoryBackend]:
    """A connection to the API at `url`, or without a URL to the servers in `settings`, which are
    fields of `runfold.settings.Settings`. Raises `ValueError`.
    """
    check_address(url, settings, api_key=api_key)
    if url is None:
        return DirectConnection(partial(_direct, settings))
    memories = HttpMemories(url, api_key=api_key)
    return HttpConnection(MemoryBackend(memories, memories), memories.close)


@asynccontextmanager
async def _direct(settings: Mapping[str, Any]) -> AsyncIterator[MemoryBackend]:
    with needing_servers():
        from runfold.access.direct import direct_memories  # noqa: PLC0415
        from runfold.settings import Settings  # noqa: PLC0415
    async with direct_memories(Settings(**settings)) as remembering:
        yield remembering
