"""The projector as a real process that a test can kill, or as a worker in this one, and what it
stores.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakSet

from pydantic import Secret, SecretStr
from tests.forking import ForkedService

from runfold import Run, Runfold
from runfold.local import Service, free_port, ready_url
from runfold.log.publisher import Outgoing
from runfold.projector.connection import connect_worker
from runfold.projector.worker import Worker
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.verify.runs import Difference, verify

DEADLINE_SECONDS = 60.0
"""How long a test waits for what it expects. A busy machine delays anything by seconds."""

_LOG_CHARACTERS = 4_000
"""How much of a service's log a failure shows."""

SESSION_SECONDS = 30.0
"""How long a worker in the process of a test may stand still before the group excludes it."""

_services: WeakSet[Service] = WeakSet()
"""The services that tests have made."""

_workers: set[asyncio.Task[None]] = set()
"""What the workers in this process do."""

START_SECONDS = 180.0
"""How long a service may take to start without visible progress: it may have a small share of the
machine.
"""


def projector(settings: Settings, log: Path, *, worker_id: str = "", roots: str = "") -> Service:
    """`runfold serve projector` with `settings`; ready when it owns partitions of the catalog.

    Its health and metrics are one port behind the one it is given.
    """
    return http_service("projector", settings, log, port=free_port(), worker_id=worker_id, roots=roots)


def http_service(
    part: str,
    settings: Settings,
    log: Path,
    *,
    port: int,
    worker_id: str = "",
    roots: str = "",
    data_bytes_max: int | None = None,
) -> Service:
    """`runfold serve` of `part` on `port`; ready when it reaches what it needs. `roots` is the
    PYTHONPATH of another version's code. `data_bytes_max` limits the memory of each of its
    processes.
    """
    named = {"RUNFOLD_WORKER_ID": worker_id} if worker_id else {}
    health = port + 1 if part == "projector" else port
    # Another version is another Python program: it has to be imported.
    kind = Service if roots else ForkedService
    service = kind(
        f"{part} {worker_id}".strip(),
        [sys.executable, "-m", "runfold.cli", "serve", part, "--port", str(port)],
        ready=ready_url(f"http://127.0.0.1:{health}/health/ready"),
        log=log,
        env=environment(settings, roots=roots) | named,
        start_seconds=START_SECONDS,
        grace_seconds=5,
    )
    if isinstance(service, ForkedService):
        service.data_bytes_max = data_bytes_max
    _services.add(service)
    return service


def environment(settings: Settings, *, roots: str = "") -> dict[str, str]:
    """The variables of a child process with `settings`. Unless they say it, its HTTP connections
    stay open, or a busy test may use one at the moment in which it is closed.
    """
    values = {name: getattr(settings, name) for name in settings.model_fields_set}
    variables = {
        f"RUNFOLD_{name.upper()}": str(
            value.get_secret_value() if isinstance(value, Secret | SecretStr) else value
        )
        for name, value in values.items()
    }
    kept = {"RUNFOLD_KEEP_ALIVE_SECONDS": "600"}
    return kept | variables | ({"PYTHONPATH": roots} if roots else {})


class Projections:
    """What the projectors have stored, read as it is."""

    def __init__(self, settings: Settings, editions: Editions, edition: str, database: Database) -> None:
        self.settings = settings
        self.editions = editions
        self.edition = edition
        self.database = database
        self.stores = Edition.of(database, edition)
        self.pages, self.runs = self.stores.pages, self.stores.runs

    async def end(self, log_id: str) -> int:
        return await self.pages.end(log_id)

    async def differences(self, *, wait_seconds: float = DEADLINE_SECONDS) -> list[Difference]:
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
    """A worker in this process, at work when it owns a part of the catalog. A wait fails with its
    error if it ends.
    """
    async with (
        connect(settings.mongo, settings.database) as database,
        connect_worker(patient(settings), database, edition) as worker,
    ):
        task = asyncio.create_task(worker.work())
        _workers.add(task)
        try:

            async def owns() -> bool:
                return bool(worker.partitions)

            await until(owns, what="a partition of the catalog")
            yield worker
            if task.done():
                task.result()
        finally:
            _workers.remove(task)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def patient(settings: Settings) -> Settings:
    """These settings for a worker in this process, which a busy test may hold up for seconds."""
    seconds = max(settings.session_timeout_seconds, SESSION_SECONDS)
    return settings.model_copy(update={"session_timeout_seconds": seconds})


async def reaches(stored: Projections, run: Run, offset: int) -> bool:
    """Whether the state of `run` includes `offset`."""
    state = await stored.runs.get(run.run_id)
    return state is not None and state.record.next_offset > offset


async def append_raw(runfold: Runfold, run: Run, value: bytes = b"garbage") -> None:
    """A record of the run that no client of ours makes; nothing rings for it."""
    publisher = runfold.connection.publisher
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    await publisher.wait(await publisher.send(topic, Outgoing(None, value)))


async def until(
    holds: Callable[[], Awaitable[bool]], *, seconds: float = DEADLINE_SECONDS, what: str = "the condition"
) -> float:
    """Waits for a condition and gives the seconds that it took. It looks less often the longer it
    waits, because many looks take the time of the machine.

    Fails after the deadline, and at once if a service or a worker of this process has ended by
    itself. Both show the log of services.
    """
    began, pause = time.monotonic(), 0.002
    while not await holds():
        for worker in _workers:
            if worker.done():
                worker.result()
        waited = time.monotonic() - began
        if ended := [service for service in _services if _has_ended_by_itself(service)]:
            raise AssertionError(f"waiting for {what}, {_told(ended)}")
        if waited >= seconds:
            raise AssertionError(f"{what} did not come true within {seconds} s; {_told(_services)}")
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, max(0.05, min(waited / 40, 0.25)))
    return time.monotonic() - began


def _has_ended_by_itself(service: Service) -> bool:
    """Whether nobody has stopped it or killed it."""
    code = service._process.returncode if service._process else None
    return service.should_run and code not in (None, -signal.SIGKILL)


def _told(services: Iterable[Service]) -> str:
    """The state and the log of services that were started and not stopped."""
    states = [
        f"{service.name} {'runs' if service.running else 'has ended'}:\n{service.logged()[-_LOG_CHARACTERS:]}"
        for service in services
        if service.should_run
    ]
    return "\n".join(states) or "no service runs"


async def soonest(measure: Callable[[], Awaitable[float]], *, seconds: float) -> float:
    """The shortest of twelve measurements, or the first that is below `seconds`. A machine may be
    busy with other work during some of them, and a delay of our own is in each.
    """
    shortest = await measure()
    for _ in range(11):
        if shortest >= seconds:
            shortest = min(shortest, await measure())
    return shortest
