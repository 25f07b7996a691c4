"""Tenants of one installation, made by hand, and what is stored of each."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from tests.killing import FOLDED_SECONDS
from tests.processes import projections, until

from runfold import Run, Runfold, UserMessage
from runfold.log.clients import LogClients
from runfold.log.compacted import create
from runfold.settings import Settings
from runfold.tenants.registry import Tenant, put_tenant, settings_of, tenant_topic


@dataclass
class OneTenant:
    """A tenant with its settings and a client."""

    settings: Settings
    runfold: Runfold

    @property
    def name(self) -> str:
        return self.settings.prefix


@asynccontextmanager
async def new_tenants(
    settings: Settings, count: int, *, partitions: int = 1
) -> AsyncIterator[list[OneTenant]]:
    """Tenants of the installation of `settings`, which are registered and have their topics."""
    topic = tenant_topic(settings)
    log = settings.log()
    async with LogClients.connect(log) as clients:
        await create(log, topic)
        tenants: list[OneTenant] = []
        for number in range(count):
            name = f"{settings.prefix[:24]}-t{number}"
            record = Tenant(name=name, database=name, partitions=partitions)
            own = settings_of(settings, record)
            runfold = Runfold.of(own.log(), clients=clients)
            await runfold.__aenter__()
            await put_tenant(clients.publisher, topic, record)
            tenants.append(OneTenant(own, runfold))
        try:
            yield tenants
        finally:
            for tenant in tenants:
                await tenant.runfold.__aexit__()


async def ended_run(runfold: Runfold, text: str = "hello") -> Run:
    """A run with one message that has ended."""
    run = await runfold.open_run(agent_id="a")
    await run.publish(UserMessage(message=text))
    await run.complete()
    return run


async def is_folded(tenant: OneTenant, run: Run, *, end: int, wait_seconds: float = FOLDED_SECONDS) -> None:
    """Returns when the run is stored up to `end`."""

    async def stored() -> bool:
        async with projections(tenant.settings) as found:
            state = await found.runs.get(run.run_id)
            return state is not None and state.record.next_offset >= end

    await until(stored, what=f"the fold of {run.run_id} of {tenant.name}", seconds=wait_seconds)


async def hosted(health: str) -> dict[str, int]:
    """The tenants of a projector by state, by its metrics."""
    async with httpx.AsyncClient(timeout=60) as client:
        text = (await client.get(f"{health}/metrics")).text
    counts = {}
    for line in text.splitlines():
        if line.startswith("runfold_hosted_tenants{"):
            name, _, value = line.partition(" ")
            counts[name.split('"')[1]] = int(float(value))
    return counts
