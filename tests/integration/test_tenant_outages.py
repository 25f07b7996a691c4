"""Tenants in one process while a server is away, or refuses one of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
from tests.guarded_mongo import guarded_mongo
from tests.integration.test_hosted_tenants import are_parked, has_no_reasons, reasons
from tests.processes import http_service, until
from tests.servers import OwnSettings
from tests.tenants import ended_run, hosted, is_folded, new_tenants

from runfold.local import LocalStack, Service, free_port
from runfold.settings import Settings


def quick(own_settings: OwnSettings, **fields: object) -> Settings:
    return own_settings(
        session_timeout_seconds=6, sweep_seconds=1, park_seconds=2, publisher_park_seconds=1, **fields
    )


@asynccontextmanager
async def serving(settings: Settings, log: Path) -> AsyncIterator[tuple[Service, str]]:
    """A projector in a process of its own, and where its health is."""
    port = free_port()
    service = http_service("projector", settings, log, port=port)
    await service.start()
    try:
        yield service, f"http://127.0.0.1:{port + 1}"
    finally:
        await service.stop()


async def names(health: str, *words: str) -> bool:
    """Whether one of the reasons of readiness has all of these words."""
    return any(all(word in reason for word in words) for reason in await reasons(health))


async def has_none_of(health: str, tenant: str) -> bool:
    return not await names(health, tenant)


async def is_unready(health: str) -> bool:
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.get(f"{health}/health/ready")
    print(answer.text)
    return answer.status_code == 503 and "Kafka" in answer.text


async def test_hosted_tenants_go_on_after_an_outage_of_kafka(
    own_settings: OwnSettings, tmp_path: Path
) -> None:
    async with LocalStack(data_dir=tmp_path / "servers") as stack:
        settings = quick(own_settings, kafka=stack.kafka, mongo=stack.mongo)
        async with (
            new_tenants(settings, 3) as tenants,
            serving(settings, tmp_path / "projector.log") as (projector, health),
        ):
            parked, active, other = tenants
            for tenant in tenants:
                await is_folded(tenant, await ended_run(tenant.runfold), end=3)
            await are_parked(health, len(tenants))
            open_run = await active.runfold.open_run(agent_id="a")
            await is_folded(active, open_run, end=1)

            await stack.kafka_server.kill()
            await until(partial(is_unready, health), what="the outage in readiness")
            await stack.kafka_server.start()

            await open_run.complete()
            await is_folded(active, open_run, end=2)
            for tenant in (parked, other):
                await is_folded(tenant, await ended_run(tenant.runfold), end=3)
            await until(partial(has_no_reasons, health), what="the end of all reasons")
            assert projector.running
            assert sum((await hosted(health)).values()) >= len(tenants)


async def test_a_tenant_whose_database_is_forbidden_is_named_and_stops_no_other(
    own_settings: OwnSettings, tmp_path: Path
) -> None:
    async with guarded_mongo(tmp_path / "mongo") as mongo:
        settings = quick(own_settings, mongo=mongo.url)
        async with new_tenants(settings, 2) as [refused, sound], AsyncExitStack() as stack:
            await mongo.grant([settings.database, sound.name])
            _, health = await stack.enter_async_context(serving(settings, tmp_path / "projector.log"))
            run = await ended_run(refused.runfold)
            await until(partial(names, health, f"tenant {refused.name}", "not authorized"))
            await is_folded(sound, await ended_run(sound.runfold), end=3)
            await until(partial(has_none_of, health, sound.name), what="no reason of the other tenant")
            log = (tmp_path / "projector.log").read_text()
            assert refused.name in log
            assert "not authorized" in log

            await mongo.grant([refused.name])

            await is_folded(refused, run, end=3)
            await until(partial(has_no_reasons, health), what="the end of all reasons")
