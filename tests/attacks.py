"""A stack under attack: an API and a projector as real processes with a limit of memory, and a
healthy run beside.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from tests.explaining import explained
from tests.processes import http_service

from runfold import Runfold
from runfold.local import Service, free_port
from runfold.settings import Settings

DATA_BYTES_MAX = 1024**3
"""What a process under attack may allocate, above the 300 MB that an input may cost, because
libraries reserve more than they use.
"""

STEP_SECONDS, STEP_SECONDS_MAX = 0.05, 0.25
"""The pause between two steps of the healthy run: longer with each step, because many of them prove
no more than a few and cost the time of the machine.
"""

PING_SECONDS = 0.05

ANSWER_SECONDS = 60
"""How long the healthy run may stand still at the most. The machine may be busy; that an input
stops nobody shows in that the run goes on at all, and how well is for the benchmarks.
"""

LIMITS = httpx.Limits(keepalive_expiry=1)
"""The server closes idle connections. On a busy machine a client might use one at that moment."""


@dataclass
class Harm:
    """What an attack did to those beside it."""

    name: str
    steps: int = 0
    """Of the healthy run: an event published over HTTP, and read back from the projections."""
    worst_seconds: float = 0.0
    """The slowest of these steps."""
    worst_pause_seconds: float = 0.0
    """The longest time that the API left an empty request unanswered."""
    before_mb: dict[str, int] = field(default_factory=dict)
    """Resident memory when the attack began, by process."""
    peak_mb: dict[str, int] = field(default_factory=dict)
    """The peak of resident memory, by process."""
    restarts: list[str] = field(default_factory=list)
    """The lines in which a process says that it begins anew."""
    died: list[str] = field(default_factory=list)

    def grown_mb(self, process: str) -> int:
        """What the attack took at its worst, beside what the process had before."""
        return self.peak_mb[process] - self.before_mb[process]

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.steps} steps, worst {self.worst_seconds:.2f} s, pause"
            f" {self.worst_pause_seconds * 1000:.0f} ms, from {self.before_mb} to {self.peak_mb} MB"
        )


class Stack:
    """The processes under attack, and the ways to reach them."""

    def __init__(
        self, settings: Settings, runfold: Runfold, api: Service, projector: Service, url: str
    ) -> None:
        self.settings = settings
        self.runfold = runfold
        self.api = api
        self.projector = projector
        self.url = url
        self.projector_url = ""
        self.client: httpx.AsyncClient

    @property
    def processes(self) -> tuple[Service, Service]:
        return self.api, self.projector

    @asynccontextmanager
    async def attacked(self, name: str, *, steps: int = 3, may_restart: bool = False) -> AsyncIterator[Harm]:
        """Runs the block while a healthy run goes on, and for `steps` of that run afterwards. Fails
        if a process ends or begins anew, or the healthy run stops. With `may_restart` a server is
        away for a time: then a worker begins anew, and requests are answered with 503.
        """
        harm = Harm(name)
        pids = [each.pid for each in self.processes]
        logged = [len(each.logged()) for each in self.processes]
        for each in self.processes:
            _forget_peak(each)
            harm.before_mb[each.name] = _peak_mb(each)
        # Without a server, whoever asks is to ask again.
        again = {503, 504} if may_restart else {504}
        async with explained(self.settings, *self.processes), _beside(self, harm, again) as healthy:
            yield harm
            await healthy.goes_on(steps)
        for each, pid, begin in zip(self.processes, pids, logged, strict=True):
            if not each.running or each.pid != pid:
                harm.died.append(f"{each.name}: {each.logged()[-2000:]}")
            else:
                harm.peak_mb[each.name] = _peak_mb(each)
            harm.restarts += [
                line for line in each.logged()[begin:].splitlines() if "trying again in" in line
            ]
        print(harm)
        assert harm.died == []
        assert may_restart or harm.restarts == []

    async def ready(self) -> tuple[httpx.Response, httpx.Response]:
        """What the API and the projector say of their readiness."""
        return (
            await self.client.get("/health/ready"),
            await self.client.get(f"{self.projector_url}/health/ready"),
        )


@asynccontextmanager
async def stack(
    settings: Settings, folder: Path, *, data_bytes_max: int = DATA_BYTES_MAX
) -> AsyncIterator[Stack]:
    """The API and the projector of these settings, each with a limit of memory."""
    api_port, projector_port = free_port(), free_port()
    limited = partial(http_service, settings=settings, data_bytes_max=data_bytes_max)
    api = limited("api", log=folder / "api.log", port=api_port)
    projector = limited("projector", log=folder / "projector.log", port=projector_port)
    url = f"http://127.0.0.1:{api_port}"
    async with contextlib.AsyncExitStack() as exits:
        for each in (api, projector):
            exits.push_async_callback(each.stop)
        await asyncio.gather(api.start(), projector.start())
        runfold = await exits.enter_async_context(Runfold.of(settings.log()))
        stack = Stack(settings, runfold, api, projector, url)
        stack.projector_url = f"http://127.0.0.1:{projector_port + 1}"
        client = httpx.AsyncClient(base_url=url, timeout=60, limits=LIMITS)
        stack.client = await exits.enter_async_context(client)
        yield stack


@dataclass
class _Healthy:
    harm: Harm
    tasks: Sequence[asyncio.Task[None]]

    async def goes_on(self, steps: int) -> None:
        """Returns when the run has made so many further steps; fails if a step fails, or if the run
        stands still.
        """
        for _ in range(steps):
            before, began = self.harm.steps, time.monotonic()
            while self.harm.steps == before:
                # An answer that was wrong has ended its task.
                for task in self.tasks:
                    if task.done():
                        task.result()
                waited = time.monotonic() - began
                assert waited < ANSWER_SECONDS, f"{self.harm.name}: the healthy run stands still"
                await asyncio.sleep(STEP_SECONDS / 2)


@asynccontextmanager
async def _beside(stack: Stack, harm: Harm, again: Collection[int]) -> AsyncIterator[_Healthy]:
    # A client of its own, because the attacks' connections may be busy.
    async with httpx.AsyncClient(base_url=stack.url, timeout=ANSWER_SECONDS, limits=LIMITS) as client:
        opened = await client.post("/v1/runs", json={"agent_id": "healthy"})
        opened.raise_for_status()
        run = f"/v1/runs/{opened.json()['run_id']}"
        tasks = [
            asyncio.create_task(_step(client, run, harm, again)),
            asyncio.create_task(_ping(client, harm)),
        ]
        healthy = _Healthy(harm, tasks)
        try:
            await healthy.goes_on(1)
            yield healthy
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result


async def _step(client: httpx.AsyncClient, run: str, harm: Harm, again: Collection[int]) -> None:
    """Publishes and reads, again and again. After an answer with a status in `again`, it asks once
    more.
    """
    publish = partial(client.post, f"{run}/events", json={"type": "user_message", "data": {"message": "?"}})
    while True:
        began = time.monotonic()
        published = await _answered(publish, again)
        assert published.status_code == 201, (harm.name, published.status_code, published.text)
        # A busy machine may take longer than one wait.
        read = await _answered(
            partial(client.get, run, params={"min_offset": published.json()["offset"]}), again
        )
        assert read.status_code == 200, (harm.name, read.status_code, read.text)
        harm.steps += 1
        harm.worst_seconds = max(harm.worst_seconds, time.monotonic() - began)
        await asyncio.sleep(min(STEP_SECONDS * harm.steps, STEP_SECONDS_MAX))


async def _answered(ask: Callable[[], Awaitable[httpx.Response]], again: Collection[int]) -> httpx.Response:
    while (answer := await ask()).status_code in again:
        await asyncio.sleep(PING_SECONDS)
    return answer


async def _ping(client: httpx.AsyncClient, harm: Harm) -> None:
    while True:
        began = time.monotonic()
        await client.get("/health/live")
        harm.worst_pause_seconds = max(harm.worst_pause_seconds, time.monotonic() - began)
        await asyncio.sleep(PING_SECONDS)


def _forget_peak(service: Service) -> None:
    Path(f"/proc/{service.pid}/clear_refs").write_text("5")


def _peak_mb(service: Service) -> int:
    status = Path(f"/proc/{service.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) // 1024
