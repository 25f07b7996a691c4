"""The blob store: large bytes of runs as objects `{prefix}/{log_id}/{sha256}` of any object store.

The name of an object is the digest of its bytes, so a repeated upload changes nothing. A blob is
stored before its event is appended. It is deleted with the log of its run.
"""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runfold.secret_urls import SecretUrl, without_secrets
from runfold_schemas.blobs import BlobReference
from runfold_schemas.errors import BlobNotFoundError, ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TIMEOUT_SECONDS: Final = 60.0
"""How long one blob may take on its way to or from the store."""

_STREAM_SECONDS: Final = 600.0
"""How long a client may take to read a blob that is streamed to it."""

_CONNECT_SECONDS: Final = 5.0

_RETRIES: Final = 2

_CHUNK_BYTES: Final = 1024 * 1024

_AT_ONCE: Final = 4
"""Blobs of a process that are on their way at once."""

_STORED_MAX: Final = 10_000
"""The names that are remembered, so that an image that is published again is uploaded once."""


class StoredBlob(NamedTuple):
    """A blob that is being read."""

    size: int
    chunks: AsyncIterator[bytes]
    """Raises `BlobNotFoundError` instead of the last chunk if the bytes have another digest."""


class BlobStore:
    """Stores the blobs of all runs under one prefix. Every verb may raise `UnavailableError`."""

    def __init__(self, store: "ObjectStore", *, prefix: str, bytes_min: int, bytes_max: int) -> None:
        self._store = store
        self._prefix = prefix
        self.bytes_min = bytes_min
        """The size from which on bytes are stored here, and not in the event."""
        self.bytes_max = bytes_max
        self._transfers = asyncio.Semaphore(_AT_ONCE)
        self._stored: OrderedDict[tuple[str, str], None] = OrderedDict()

    @classmethod
    def connect(cls, url: SecretUrl, *, prefix: str, bytes_min: int, bytes_max: int) -> "BlobStore":
        """The store at a URL. Nothing is sent yet. Raises `ConfigurationError` if the URL cannot be
        used, or if the package for object stores is not installed.
        """
        return cls(store_at(url), prefix=prefix, bytes_min=bytes_min, bytes_max=bytes_max)

    async def put(self, log_id: str, reference: BlobReference, content: bytes) -> None:
        """Stores a blob of a run's log, and returns when it is durable."""
        key = (log_id, reference.sha256)
        if key in self._stored:
            self._stored.move_to_end(key)
            return
        with store_errors():
            async with self._transfers, asyncio.timeout(_TIMEOUT_SECONDS):
                # An upload in several parts would leave hidden parts if it breaks off.
                await self._store.put_async(self._path(*key), content, use_multipart=False)
        self._stored[key] = None
        if len(self._stored) > _STORED_MAX:
            self._stored.popitem(last=False)

    async def get(self, log_id: str, reference: BlobReference) -> bytes:
        """The bytes of a blob. Raises `BlobNotFoundError` if the store does not have them."""
        async with self._transfers:
            blob = await self.open(log_id, reference.sha256)
            if blob.size != reference.size:
                reason = f"the stored object has {blob.size:,} bytes instead of {reference.size:,}"
                raise BlobNotFoundError(reference.sha256, reason=reason)
            return b"".join([chunk async for chunk in blob.chunks])

    async def copy(self, sha256: str, *, from_log: str, to_log: str) -> None:
        """Stores the blob of one run's log for another log too. Raises `BlobNotFoundError`."""
        with store_errors(sha256):
            async with self._transfers, asyncio.timeout(_TIMEOUT_SECONDS):
                await self._store.copy_async(self._path(from_log, sha256), self._path(to_log, sha256))

    async def open(self, log_id: str, sha256: str) -> StoredBlob:
        """A blob, to read it in chunks. Raises `BlobNotFoundError`."""
        with store_errors(sha256):
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                found = await self._store.get_async(self._path(log_id, sha256))
        return StoredBlob(found.meta["size"], _checked(found.stream(_CHUNK_BYTES), sha256))

    async def paths(self, log_id: str) -> list[str]:
        """The names of the objects of a log."""
        with store_errors():
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                listed = await self._store.list(f"{self._prefix}/{log_id}/").collect_async()
        return [blob["path"] for blob in listed]

    async def delete_logs(self, log_ids: Iterable[str]) -> None:
        """Deletes the blobs of these logs. Repeating it changes nothing."""
        for log_id in log_ids:
            with store_errors():
                async with self._transfers, asyncio.timeout(_TIMEOUT_SECONDS):
                    listed = await self._store.list(f"{self._prefix}/{log_id}/").collect_async()
                    for blob in listed:
                        await self._delete(blob["path"])
            for key in [key for key in self._stored if key[0] == log_id]:
                del self._stored[key]

    async def names(self) -> AsyncIterator[tuple[str, str]]:
        """The log and the digest of each blob."""
        with store_errors():
            async for listed in self._store.list(f"{self._prefix}/"):
                for blob in listed:
                    _, log_id, sha256 = str(blob["path"]).rsplit("/", 2)
                    yield log_id, sha256

    async def delete_all(self) -> int:
        """Deletes the blobs of all runs, and returns their number."""
        deleted = 0
        with store_errors():
            async for listed in self._store.list(f"{self._prefix}/"):
                for blob in listed:
                    async with self._transfers, asyncio.timeout(_TIMEOUT_SECONDS):
                        await self._delete(blob["path"])
                    deleted += 1
        self._stored.clear()
        return deleted

    async def _delete(self, path: str) -> None:
        try:
            await self._store.delete_async(path)
        except FileNotFoundError:
            return  # another process deletes the same log

    def _path(self, log_id: str, sha256: str) -> str:
        return f"{self._prefix}/{log_id}/{sha256}"


async def _checked(chunks: Any, sha256: str) -> AsyncIterator[bytes]:
    """The chunks. The last one waits for the digest."""
    digest, waiting = hashlib.sha256(), b""
    while True:
        with store_errors(sha256):
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                chunk = bytes(await anext(chunks, b""))
        if not chunk:
            break
        if waiting:
            yield waiting
        digest.update(chunk)
        waiting = chunk
    if digest.hexdigest() != sha256:
        raise BlobNotFoundError(sha256, reason="the stored bytes have another digest")
    yield waiting


@contextmanager
def store_errors(sha256: str = "") -> Iterator[None]:
    """Errors of the object store inside become errors of ours."""
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        yield
    except FileNotFoundError as error:
        raise BlobNotFoundError(sha256, reason="it is not in the blob store") from error
    except TimeoutError as error:
        raise UnavailableError("the blob store", reason=f"no answer within {_TIMEOUT_SECONDS:g} s") from error
    except (BaseError, OSError) as error:
        raise UnavailableError("the blob store", reason=_reason_of(error)) from error


def _reason_of(error: Exception) -> str:
    """The first line of an error of the object store, without passwords and keys. The lines after
    it repeat the request.
    """
    return without_secrets(str(error).partition("\n")[0])[:300] or type(error).__name__


def store_at(url: SecretUrl, *, has_checksums: bool = False) -> "ObjectStore":
    """The object store at a URL. Nothing is sent yet. Raises `ConfigurationError`."""
    # Only an agent that stores blobs has this package.
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "a blob store needs the package obstore: install 'runfold[blobs]', or leave out the setting"
            " `blobs`"
        ) from error
    address = url.get_secret_value()
    try:
        if address.startswith("file:"):
            return from_url(address, mkdir=True, automatic_cleanup=True)
        return from_url(
            address,
            config={"checksum_algorithm": "SHA256"} if has_checksums and address.startswith("s3:") else None,
            client_options={
                "timeout": f"{_STREAM_SECONDS:g}s",
                "connect_timeout": f"{_CONNECT_SECONDS:g}s",
                "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
            },
            retry_config={"max_retries": _RETRIES},
        )
    except (BaseError, OSError, ValueError) as error:
        raise ConfigurationError(f"the blob store cannot be used: {_reason_of(error)}") from error
