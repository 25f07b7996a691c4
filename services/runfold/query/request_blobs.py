"""The blobs in requests of providers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from runfold.blobs.log_blobs import Fetching
from runfold.blobs.store import BlobStore
from runfold_schemas.messages import Provider

_REQUESTS_AT_ONCE: Final = 2
"""Requests with blobs that are built at once. With 100 MB of blobs, one takes 300 MB of memory."""


class RequestBlobs:
    """Fetches the blobs of requests, for a few requests at once."""

    def __init__(self, store: BlobStore | None) -> None:
        self.store = store
        self._turns = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    def fetching(self, provider: Provider, maker: str | None = None) -> Fetching:
        """Collects the blobs that requests to the provider need."""
        return Fetching(self.store, provider, maker)

    @asynccontextmanager
    async def fetched(self, fetching: Fetching) -> AsyncIterator[dict[str, bytes | str]]:
        """What was collected, for the length of the block. Raises `UnavailableError`."""
        if fetching.is_empty:
            yield {}
            return
        async with self._turns:
            yield await fetching.fetch()
