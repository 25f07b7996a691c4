"""One process at a time: the data directory of a stack, the download of Kafka."""

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
    """Hold the lock file `path`, and yield its descriptor; `InUseError` if another process keeps it
    for `wait_seconds`.

    The kernel frees the lock when the last process that holds the descriptor ends, so it needs no
    cleaning up after a crash, and children that inherit the descriptor keep the lock until they are
    gone too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        await _locked(descriptor, path, wait_seconds=wait_seconds)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


async def _locked(descriptor: int, path: Path, *, wait_seconds: float) -> None:
    # Polled, not awaited in a thread: a thread that waits for a lock cannot be cancelled by Ctrl-C.
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
