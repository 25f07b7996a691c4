"""Locks that one process at a time holds: on a data directory, and on the download of Kafka."""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from .errors import InUseError

POLL_SECONDS = 0.05


@asynccontextmanager
async def exclusive(path: Path, *, wait_seconds: float) -> AsyncIterator[int]:
    """Holds the lock file `path` for the length of the block, and yields its descriptor. Raises
    `InUseError` if another process keeps the lock for `wait_seconds`.

    The kernel frees the lock when the last process with the descriptor ends. So the lock needs no
    cleanup after a crash, and children that inherit the descriptor keep the lock until they end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        await _acquire(descriptor, path, wait_seconds=wait_seconds)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


async def _acquire(descriptor: int, path: Path, *, wait_seconds: float) -> None:
    # Polled, because Ctrl-C cannot cancel a thread that waits for a lock.
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise InUseError(path.parent, owner=_owner(descriptor)) from error
            await asyncio.sleep(POLL_SECONDS)
        else:
            return


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 20, 0).decode() or "unknown"
