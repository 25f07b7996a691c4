"""Copies of signed trees in an object store, best in a bucket whose objects cannot be changed.

The object `{prefix}/evidence/{offset}.json` is the value of the record at that offset. Whoever can
rewrite Kafka and MongoDB, and even has the signing key, cannot rewrite what such a bucket has.
"""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from runfold.blobs.store import store_at, store_errors
from runfold.secret_urls import SecretUrl
from runfold.settings import Settings

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TIMEOUT_SECONDS: Final = 60.0


class Copied(NamedTuple):
    """A tree in the bucket."""

    offset: int
    value: bytes


def bucket_of(settings: Settings) -> "EvidenceBucket | None":
    """The bucket of the settings, if one is set. Raises `ConfigurationError`."""
    url = settings.evidence_bucket
    return EvidenceBucket.connect(url, prefix=settings.prefix) if url is not None else None


class EvidenceBucket:
    """The trees of one prefix. Every verb may raise `UnavailableError`."""

    def __init__(self, store: "ObjectStore", *, prefix: str) -> None:
        self._store = store
        self._folder = f"{prefix}/evidence/"

    @classmethod
    def connect(cls, url: SecretUrl, *, prefix: str) -> "EvidenceBucket":
        """The bucket at a URL. Raises `ConfigurationError` if the URL cannot be used."""
        # S3 takes no object under a lock without a checksum.
        return cls(store_at(url, has_checksums=True), prefix=prefix)

    async def put(self, tree: Copied) -> None:
        """Stores a tree, unless the bucket has one of this offset."""
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        with store_errors():
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                try:
                    await self._store.put_async(
                        self._path(tree.offset), tree.value, mode="create", use_multipart=False
                    )
                except AlreadyExistsError:
                    return

    async def has(self, offset: int) -> bool:
        with store_errors():
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                try:
                    await self._store.head_async(self._path(offset))
                except FileNotFoundError:
                    return False
        return True

    async def newest(self) -> Copied | None:
        """The tree of the highest offset."""
        newest = ""
        with store_errors():
            async for listed in self._store.list(self._folder):
                newest = max(newest, *(each["path"] for each in listed))
            if not newest:
                return None
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                value = await (await self._store.get_async(newest)).bytes_async()
        return Copied(int(newest.rpartition("/")[2].partition(".")[0]), bytes(value))

    def _path(self, offset: int) -> str:
        return f"{self._folder}{offset:019d}.json"
