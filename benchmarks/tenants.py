"""Measures one projector that hosts many tenants: what quiet ones cost, how soon one wakes, and
whether a loud one slows a quiet one down.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing import get_context
from typing import NamedTuple

from brokers import broker_pid, processor_seconds
from latency import get
from query import Figures, Process, median_ms, quantile_ms, serving
from texts import text

from runfold import AssistantMessage, Run, Runfold
from runfold.log.clients import LogClients
from runfold.log.compacted import create
from runfold.log.settings import LogSettings
from runfold.settings import Settings
from runfold.store.database import Database, connect, sibling
from runfold.store.editions import Editions
from runfold.store.pages import PageStore
from runfold.tenants.registry import Tenant, put_tenant, settings_of, tenant_topic

TENANTS = 200
IDLE_SECONDS = 60
"""As long as it takes until all parked tenants are looked at once."""

ACTIVE = 50
ACTIVE_SECONDS = 20
WAKES = 20

LOUD_RUNS = 100
LOUD_A_SECOND = 1_000
QUIET_A_SECOND = 10
FAIR_SECONDS = 15

_OPENED_AT_ONCE = 20
_LOOK_SECONDS = 0.002

_log = logging.getLogger(__name__)


class _Tenant(NamedTuple):
    settings: Settings
    runfold: Runfold
    database: Database

    async def stored_pages(self) -> PageStore:
        edition = await Editions(self.database).current_or_first()
        return PageStore(self.database, edition)


async def tenants(settings: Settings) -> Figures:
    """200 tenants with a run each, of which all are parked, one is woken, or one is loud."""
    figures: Figures = []
    settings = settings.model_copy(update={"prefix": f"{settings.prefix[:24]}-many"})
    settings = settings.model_copy(update={"database": settings.prefix})
    async with AsyncExitStack() as stack:
        hosted = await stack.enter_async_context(_hosted(settings, TENANTS))
        async with serving(settings, "projector") as projector:
            began = time.perf_counter()
            await asyncio.gather(*map(_first_run, hosted))
            figures.append((f"first runs of {TENANTS} new tenants, stored", "-", _seconds_since(began)))
            await _are_parked(projector)
            figures += await _idle_cost(settings, projector)
            figures += await _wakes(hosted)
            figures += await _fairness(hosted[0], hosted[1])
            figures += await _active_cost(hosted[2 : 2 + ACTIVE], settings, projector)
        began = time.perf_counter()
        async with serving(settings, "projector") as projector:
            await _are_parked(projector)
            figures.append((f"start until {TENANTS} tenants are parked", "< 10 s", _seconds_since(began)))
    return figures


@asynccontextmanager
async def _hosted(settings: Settings, count: int) -> AsyncIterator[list[_Tenant]]:
    log, topic = settings.log(), tenant_topic(settings)
    async with (
        LogClients.connect(log) as clients,
        connect(settings.mongo, settings.database) as database,
        AsyncExitStack() as stack,
    ):
        await create(log, topic)
        opening = asyncio.Semaphore(_OPENED_AT_ONCE)

        async def new(number: int) -> _Tenant:
            name = f"{settings.prefix[:24]}-{number}"
            record = Tenant(name=name, database=name, partitions=1)
            own = settings_of(settings, record)
            async with opening:
                runfold = await stack.enter_async_context(Runfold.of(own.log(), clients=clients))
                await put_tenant(clients.publisher, topic, record)
            return _Tenant(own, runfold, sibling(database, name))

        yield await asyncio.gather(*map(new, range(count)))


async def _first_run(tenant: _Tenant) -> None:
    run = await tenant.runfold.open_run(agent_id="benchmark")
    await run.publish(AssistantMessage(message=text(300)))
    await run.complete()
    await _is_stored(tenant, run, end=3, look_seconds=0.5)


async def _is_stored(tenant: _Tenant, run: Run, *, end: int, look_seconds: float = _LOOK_SECONDS) -> None:
    pages = await tenant.stored_pages()
    while await pages.end(run.life.log_id) < end:
        await asyncio.sleep(look_seconds)


async def _idle_cost(settings: Settings, projector: Process) -> Figures:
    shares = await _shares(settings, projector, IDLE_SECONDS)
    targets = {"projector": "< 10 %"}
    return [
        (f"{name}'s CPU with {TENANTS} parked tenants", targets.get(name, "-"), f"{share:.1%} of a core")
        for name, share in shares.items()
    ]


async def _shares(settings: Settings, projector: Process, seconds: float) -> dict[str, float]:
    """The used shares of one core."""
    broker = broker_pid(settings.kafka)
    processes = {"projector": projector.pid} | ({"broker": broker} if broker is not None else {})
    before = {name: processor_seconds(pid) for name, pid in processes.items()}
    await asyncio.sleep(seconds)
    return {name: (processor_seconds(pid) - before[name]) / seconds for name, pid in processes.items()}


async def _active_cost(hosted: Sequence[_Tenant], settings: Settings, projector: Process) -> Figures:
    """The cost while some tenants publish an event every five seconds."""
    runs = [await tenant.runfold.open_run(agent_id="benchmark") for tenant in hosted]

    async def speak() -> None:
        while True:
            for run in runs:
                await run.publish(AssistantMessage(message=text(300)))
                await asyncio.sleep(5 / len(runs))

    speaking = asyncio.create_task(speak())
    await asyncio.sleep(10)
    shares = await _shares(settings, projector, ACTIVE_SECONDS)
    speaking.cancel()
    await asyncio.gather(speaking, return_exceptions=True)
    for run in runs:
        await run.complete()
    what = f"CPU with {len(hosted)} active tenants of {TENANTS}, each with an event every 5 s"
    return [(f"{name}'s {what}", "-", f"{share:.1%} of a core") for name, share in shares.items()]


async def _wakes(hosted: Sequence[_Tenant]) -> Figures:
    delays = []
    for tenant in hosted[-WAKES:]:
        began = time.perf_counter()
        run = await tenant.runfold.open_run(agent_id="benchmark")
        await _is_stored(tenant, run, end=1)
        delays.append(time.perf_counter() - began)
        await asyncio.sleep(0.2)
    measured = f"{median_ms(delays)} (longest {max(delays) * 1000:.0f} ms)"
    return [("open a run of a parked tenant until it is stored, p50", "< 500 ms", measured)]


async def _fairness(quiet: _Tenant, loud: _Tenant) -> Figures:
    # The loud tenant has a process of its own, so the figures show what is shared: the servers and
    # the projector.
    alone = await _delays(quiet)
    noise = get_context("spawn").Process(target=_shout, args=(loud.settings.log(),), daemon=True)
    noise.start()
    try:
        await asyncio.sleep(5)
        beside = await _delays(quiet)
    finally:
        noise.kill()
        noise.join()
    load = f"beside a tenant with {LOUD_A_SECOND:,} events/s over {LOUD_RUNS} runs"
    return [
        ("publish to stored, a tenant alone, p50", "-", median_ms(alone)),
        ("publish to stored, a tenant alone, p99", "-", quantile_ms(alone, 0.99)),
        (f"publish to stored, {load}, p50", "-", median_ms(beside)),
        (f"publish to stored, {load}, p99", "-", quantile_ms(beside, 0.99)),
    ]


async def _delays(tenant: _Tenant) -> list[float]:
    pages = await tenant.stored_pages()
    run = await tenant.runfold.open_run(agent_id="benchmark")
    await _is_stored(tenant, run, end=1)
    delays = []
    for _ in range(FAIR_SECONDS * QUIET_A_SECOND):
        began = time.perf_counter()
        offset = (await run.publish(AssistantMessage(message=text(300)))).offset
        while await pages.end(run.life.log_id, first_offset=offset) <= offset:
            await asyncio.sleep(_LOOK_SECONDS)
        delays.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, 1 / QUIET_A_SECOND - delays[-1]))
    return delays


def _shout(settings: LogSettings) -> None:
    """The process of a loud tenant, until it is killed."""
    asyncio.run(_be_loud(settings))


async def _be_loud(settings: LogSettings) -> None:
    async with Runfold.of(settings) as runfold:
        runs = await asyncio.gather(*(runfold.open_run(agent_id="benchmark") for _ in range(LOUD_RUNS)))
        began, number = time.perf_counter(), 0
        while True:
            await asyncio.sleep(max(0.0, began + number / LOUD_A_SECOND - time.perf_counter()))
            await runs[number % LOUD_RUNS].send(AssistantMessage(message=text(300)))
            number += 1


async def _are_parked(projector: Process) -> None:
    parked = f'runfold_hosted_tenants{{state="parked"}} {TENANTS}.0'
    while parked not in (await get(projector, "/metrics")).decode():
        await asyncio.sleep(0.1)


def _seconds_since(began: float) -> str:
    return f"{time.perf_counter() - began:.1f} s"
