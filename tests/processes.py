"""The projector as a real process that a test can kill, or as a worker in this one, and what it
stores.
"""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from runfold import Run
from runfold.local import Service, free_port, ready_url
from runfold.projector.worker import Worker, connect_worker
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.verify.runs import WAIT_SECONDS, Difference, verify


def projector(settings: Settings, log: Path, *, worker_id: str = "") -> Service:
    """`runfold serve projector` with `settings`; ready when it owns partitions of the catalog."""
    port = free_port()
    named = {"RUNFOLD_WORKER_ID": worker_id} if worker_id else {}
    return Service(
        f"projector {worker_id}",
        [sys.executable, "-m", "runfold.cli", "serve", "projector", "--port", str(port - 1)],
        ready=ready_url(f"http://127.0.0.1:{port}/health/ready"),
        log=log,
        env=environment(settings) | named,
        grace_seconds=5,
    )


def query_service(settings: Settings, log: Path, *, port: int) -> Service:
    """`runfold serve query` with `settings` on `port`; ready when it has reached MongoDB."""
    return Service(
        "query",
        [sys.executable, "-m", "runfold.cli", "serve", "query", "--port", str(port)],
        ready=ready_url(f"http://127.0.0.1:{port}/health/ready"),
        log=log,
        env=environment(settings),
        grace_seconds=5,
    )


def environment(settings: Settings) -> dict[str, str]:
    return {f"RUNFOLD_{name.upper()}": str(getattr(settings, name)) for name in settings.model_fields_set}


class Projections:
    """What the projectors have stored, read as it is."""

    def __init__(self, settings: Settings, editions: Editions, edition: str, database: object) -> None:
        self.settings = settings
        self.editions = editions
        self.edition = edition
        self.stores = Edition.of(database, edition)
        self.pages, self.runs = self.stores.pages, self.stores.runs

    async def end(self, log_id: str) -> int:
        return await self.pages.end(log_id)

    async def differences(self, *, wait_seconds: float = WAIT_SECONDS) -> list[Difference]:
        compared = verify(self.settings.log(), self.stores, wait_seconds=wait_seconds)
        return [one async for _, found in compared for one in found]


@asynccontextmanager
async def projections(settings: Settings) -> AsyncIterator[Projections]:
    """The current edition; the first one begins here where there is none."""
    async with connect(settings.mongo, settings.database) as database:
        editions = Editions(database)
        yield Projections(settings, editions, await editions.current_or_first(), database)


@asynccontextmanager
async def working(settings: Settings, edition: str) -> AsyncIterator[Worker]:
    """A worker in this process, at work when it owns a part of the catalog."""
    async with (
        connect(settings.mongo, settings.database) as database,
        connect_worker(settings, database, edition) as worker,
    ):
        task = asyncio.create_task(worker.work())
        try:

            async def owns() -> bool:
                assert not task.done(), task.exception()
                return bool(worker.partitions)

            await until(owns, what="a partition of the catalog")
            yield worker
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def reaches(stored: Projections, run: Run, offset: int) -> bool:
    """Whether the state of `run` includes `offset`."""
    state = await stored.runs.get(run.run_id)
    return state is not None and state.record.next_offset > offset


async def until(
    holds: Callable[[], Awaitable[bool]], *, seconds: float = 20.0, what: str = "the condition"
) -> float:
    """Waits for a condition and gives the seconds that it took; fails after the deadline."""
    began, pause = time.monotonic(), 0.002
    while not await holds():
        assert time.monotonic() - began < seconds, f"{what} did not come true within {seconds} s"
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, 0.05)
    return time.monotonic() - began


def two_free_ports() -> int:
    """The first of two that follow each other: the projector's health is one port further."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port
