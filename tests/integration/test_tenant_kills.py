"""Projectors of many tenants that are really killed lose and double nothing of any tenant, and
those that live take over the tenants of those that died.
"""

import asyncio
import random
from pathlib import Path

import pytest
from tests.explaining import explained
from tests.killing import ROUNDS
from tests.processes import projections, projector
from tests.servers import OwnSettings
from tests.tenants import OneTenant, is_folded, new_tenants

from runfold import AssistantMessage, Run, Runfold, StateChanged
from runfold.settings import Settings

KILLS = 3 * ROUNDS
TENANTS = 3
RUNS = 3


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(session_timeout_seconds=6, sweep_seconds=2, park_seconds=2, publisher_park_seconds=1)


async def test_kills_lose_and_double_nothing_of_any_tenant(
    settings: Settings, tmp_path: Path, chance: random.Random
) -> None:
    workers = [projector(settings, tmp_path / f"{name}.log", worker_id=name) for name in ("a", "b")]
    async with (
        Runfold.of(settings.log()) as own,
        new_tenants(settings, TENANTS, partitions=2) as tenants,
    ):
        every = [OneTenant(settings, own), *tenants]
        published: dict[str, list[str]] = {}
        writing = [asyncio.create_task(write(tenant, published, chance)) for tenant in every]
        try:
            for worker in workers:
                await worker.start()
            for _ in range(KILLS):
                await asyncio.sleep(chance.uniform(0, 4))
                worker = chance.choice(workers)
                await worker.kill()
                await asyncio.sleep(chance.uniform(0, 2))
                await worker.start()
            # The tenants of one projector move to the other for good.
            await workers[0].kill()
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)
            for tenant in every:
                async with explained(tenant.settings, *workers):
                    await check(tenant, published)
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*(worker.stop() for worker in workers))


async def write(tenant: OneTenant, published: dict[str, list[str]], chance: random.Random) -> None:
    """Publishes to runs with pauses, in which the tenant is parked, and shares state."""
    sessions = tenant.runfold.sessions
    await sessions.create(app="app", user="ann", session_id="s")
    number = 0
    while True:
        runs: list[Run] = [await tenant.runfold.open_run(agent_id="a") for _ in range(RUNS)]
        for run in runs:
            ids = published.setdefault(f"{tenant.name}/{run.run_id}", [])
            for _ in range(chance.randrange(1, 20)):
                event = run.event(AssistantMessage(message="word " * 20))
                ids.append(str(event.event_id))
                await run.publish(event)
            await run.complete()
        number += 1
        await sessions.append("s", StateChanged(), state_delta={"app:number": number, "own": number})
        await asyncio.sleep(chance.choice([0.05, 0.5, 12]))


async def check(tenant: OneTenant, published: dict[str, list[str]]) -> None:
    async with projections(tenant.settings) as stored:
        lives = [run.life async for run in tenant.runfold.runs()]
        for life in lives:
            run = tenant.runfold.connection.run_of(life)
            end = [admitted.record.offset async for admitted in run.history()][-1] + 1
            await is_folded(tenant, run, end=end)
        assert await stored.differences() == []
        assert await stored.stores.quarantine.all() == []
        own = {name: ids for name, ids in published.items() if name.startswith(f"{tenant.name}/")}
        assert {name.partition("/")[2] for name in own} <= {life.run_id for life in lives}
        for name, ids in own.items():
            log_id = next(life.log_id for life in lives if life.run_id == name.partition("/")[2])
            counted = [event_id async for page in stored.pages.read(log_id) for event_id in page.event_ids()]
            assert len(counted) == len(set(counted))
            # The last publish before the end of the writer may not have been acknowledged.
            assert set(ids[:-1]) <= set(map(str, counted))
