"""Memories and their generation for the adapters of agent frameworks: over the HTTP API, or
on Kafka and MongoDB directly.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from runfold.access.connection import FrameworkConnection, needing_servers
from runfold.generation.verbs import MemoryBackend
from runfold.remote.memories import HttpMemories


def memory_connection(url: str | None, settings: Mapping[str, Any]) -> FrameworkConnection[MemoryBackend]:
    """As `FrameworkConnection`. Raises `ValueError`."""
    return FrameworkConnection(url, settings, over_http=_over_http, direct=_direct)


@asynccontextmanager
async def _over_http(url: str) -> AsyncIterator[MemoryBackend]:
    async with HttpMemories(url) as memories:
        yield MemoryBackend(memories, memories)


@asynccontextmanager
async def _direct(settings: Mapping[str, Any]) -> AsyncIterator[MemoryBackend]:
    with needing_servers():
        from runfold.access.direct import direct_memories  # noqa: PLC0415
        from runfold.settings import Settings  # noqa: PLC0415
    async with direct_memories(Settings(**settings)) as remembering:
        yield remembering
