"""One projector folds many tenants: each is parked while it is quiet, and none is another's
trouble.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from tests.evidence import new_keys
from tests.processes import START_SECONDS, projections, until
from tests.servers import OwnSettings
from tests.tenants import OneTenant, ended_run, hosted, is_folded, new_tenants

from runfold import Memory, Runfold, UserMessage
from runfold.client.records import outgoing
from runfold.ids import new_event_id, new_log_id
from runfold.local import free_port
from runfold.log.ends import LogEnds
from runfold.log.publisher import Publisher
from runfold.log.reader import end_offset
from runfold.projector import awaited_logs, blocked, hosted_tenant, service
from runfold.projector.rebuild import rebuild
from runfold.projector.stored_tenant import ParkedLook, StoredTenant
from runfold.settings import Settings
from runfold.store.runs import RunFilter
from runfold.store.signing import SigningStore
from runfold.tenants.registry import Tenant, mark_dropping, put_tenant, tenant_topic
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_event
from runfold_schemas.runs import RunOpened


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(
        session_timeout_seconds=6, sweep_seconds=0.5, park_seconds=1, publisher_park_seconds=0.5
    )


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant is parked, and a run without a topic is set aside, sooner than in production. A
    blocked loop does not end this process.
    """
    monkeypatch.setattr(hosted_tenant, "_QUIET_SECONDS", 1.0)
    monkeypatch.setattr(hosted_tenant, "POINTER_LOOK_SECONDS", 0.25)
    monkeypatch.setattr(awaited_logs, "_MISSING_SECONDS", 3.0)
    monkeypatch.setattr(blocked, "_ENDED_LOOKS", 10_000)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[str]:
    """Where the health is of a projector at work in this process."""
    port = free_port()
    health = f"http://127.0.0.1:{port + 1}"
    serving = asyncio.create_task(service.run(settings.model_copy(update={"port": port})))

    async def is_ready() -> bool:
        if serving.done():
            serving.result()
        async with httpx.AsyncClient(timeout=60) as client:
            try:
                return (await client.get(f"{health}/health/ready")).is_success
            except httpx.TransportError:
                return False

    try:
        await until(is_ready, what="the projector", seconds=START_SECONDS)
        yield health
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def are_parked(health: str, count: int) -> None:
    async def parked() -> bool:
        return (await hosted(health)) == {"active": 0, "parked": count, "failing": 0}

    await until(parked, what=f"{count} parked tenants")


async def reasons(health: str) -> list[str]:
    async with httpx.AsyncClient(timeout=60) as client:
        body = (await client.get(f"{health}/health/ready")).json()
    return [str(reason) for reason in body.get("reasons", [])]


async def has_no_reasons(health: str) -> bool:
    return await reasons(health) == []


async def test_tenants_are_folded_parked_and_woken(settings: Settings) -> None:
    async with (
        Runfold.of(settings.log()) as own,
        new_tenants(settings, 3) as tenants,
        serving(settings) as health,
    ):
        for tenant in tenants:
            run = await ended_run(tenant.runfold, f"of {tenant.name}")
            await tenant.runfold.sessions.create(app="app", user="ann", session_id="s")
            bank = await tenant.runfold.memories.create_bank("bank")
            await tenant.runfold.memories.create(
                bank.bank_id, Memory(fact=f"of {tenant.name}", scope={"user": "ann"})
            )
            await is_folded(tenant, run, end=3)
        await is_folded(OneTenant(settings, own), await ended_run(own), end=3)
        await are_parked(health, 3)

        woken = await ended_run(tenants[1].runfold, "again")
        await is_folded(tenants[1], woken, end=3)
        await are_parked(health, 3)

        for tenant in tenants:
            async with projections(tenant.settings) as stored:
                assert await stored.differences() == []
                assert list(await stored.stores.sessions.all()) == ["s"]
                [head] = (await stored.stores.shared_positions.all_heads()).values()
                assert head is not None
        await until(lambda: has_no_reasons(health), what="the end of all reasons")


async def test_records_that_nobody_announced_wake_a_parked_tenant(settings: Settings) -> None:
    async with (
        new_tenants(settings, 1) as [tenant],
        serving(settings) as health,
    ):
        run = await tenant.runfold.open_run(agent_id="a")
        await is_folded(tenant, run, end=1)
        await are_parked(health, 1)

        event = run.event(UserMessage(message="unannounced"))
        publisher = tenant.runfold.connection.publisher
        topic = tenant.runfold.connection.topics.run(run.run_id, run.life.log_id)
        await publisher.wait(await publisher.send(topic, outgoing(event, source="test")))

        await is_folded(tenant, run, end=2)
        await are_parked(health, 1)


async def test_sweeps_keep_no_tenant_active(settings: Settings) -> None:
    # One sweep follows the other, as on a machine that is too busy.
    settings = settings.model_copy(update={"sweep_seconds": 0.001})
    async with (
        new_tenants(settings, 1) as [tenant],
        serving(settings) as health,
    ):
        await is_folded(tenant, await ended_run(tenant.runfold), end=3)
        await are_parked(health, 1)


async def test_a_session_of_a_parked_tenant_expires(settings: Settings) -> None:
    async with (
        new_tenants(settings, 1) as [tenant],
        serving(settings) as health,
    ):
        sessions, over = tenant.runfold.sessions, ""
        for seconds in (10, 40, 240):  # a busy machine may take long to park a tenant
            over = f"over-{seconds}"
            expires_at = datetime.now(UTC) + timedelta(seconds=seconds)
            await sessions.create(app="a", session_id=over, expires_at=expires_at)
            await is_folded(tenant, await ended_run(tenant.runfold), end=3)
            await are_parked(health, 1)
            if datetime.now(UTC) < expires_at - timedelta(seconds=3):
                break

        async with projections(tenant.settings) as stored:
            assert over in await stored.stores.sessions.all()

            async def is_deleted() -> bool:
                return not await stored.stores.sessions.all()

            await until(is_deleted, what="the end of the sessions", seconds=300)
        await are_parked(health, 1)


async def test_an_error_of_one_tenant_is_named_and_stops_no_other(settings: Settings) -> None:
    async with (
        new_tenants(settings, 2) as [broken, sound],
        serving(settings) as health,
    ):
        log, topic = settings.log(), tenant_topic(settings)
        async with Publisher.connect(log) as publisher:
            wrong = Tenant(name=broken.name, database=broken.settings.database, partitions=2)
            await put_tenant(publisher, topic, wrong)

        async def is_named() -> bool:
            return any(f"tenant {broken.name}: " in reason for reason in await reasons(health))

        await until(is_named, what="the name of the broken tenant in readiness")

        async def is_sound() -> bool:
            return not any(sound.name in reason for reason in await reasons(health))

        await until(is_sound, what="no reason of the other tenant")
        await is_folded(sound, await ended_run(sound.runfold), end=3)

        async with Publisher.connect(log) as publisher:
            await put_tenant(publisher, topic, wrong.model_copy(update={"partitions": 1}))
        await is_folded(broken, await ended_run(broken.runfold), end=3)
        await until(lambda: has_no_reasons(health), what="the end of all reasons")


async def test_a_tenant_that_is_dropped_while_it_is_active_is_hosted_no_more(settings: Settings) -> None:
    async with (
        new_tenants(settings, 2) as [dropped, kept],
        serving(settings) as health,
    ):
        run = await dropped.runfold.open_run(agent_id="a")
        await is_folded(dropped, run, end=1)
        async with Publisher.connect(settings.log()) as publisher:
            await mark_dropping(publisher, tenant_topic(settings), dropped.name)

        async def is_gone() -> bool:
            return sum((await hosted(health)).values()) == 1

        await until(is_gone, what="the end of the dropped tenant")
        names = [dropped.runfold.connection.topics.catalog, *dropped.runfold.connection.topics.shared]
        await dropped.runfold.connection.admin.delete_topics(names)
        await is_folded(kept, await ended_run(kept.runfold), end=3)
        await until(lambda: has_no_reasons(health), what="the end of all reasons")


async def has_work(tenant: OneTenant) -> bool:
    """Whether anything wakes the tenant when it is parked."""
    log = tenant.settings.log()
    async with projections(tenant.settings) as found, LogEnds.connect(log) as ends:
        stored = await StoredTenant.of(log.topics, found.database, ends)
        look = ParkedLook(stored, log.topics, found.database, ends)
        return stored.has_work or await look.has_work()


async def is_parked_without_work(tenant: OneTenant, health: str) -> None:
    async def stays_parked() -> bool:
        return not await has_work(tenant) and (await hosted(health))["parked"] == 1

    await until(stays_parked, what="a parked tenant that nothing wakes")


async def test_an_opener_that_dies_before_its_first_record_keeps_no_tenant_active(settings: Settings) -> None:
    async with (
        new_tenants(settings, 1) as [tenant],
        serving(settings) as health,
    ):
        connection = tenant.runfold.connection
        run_id, log_id = new_event_id(), new_log_id()
        topic = connection.topics.run(run_id, log_id)
        await connection.admin.create_run_topic(topic)
        await is_folded(tenant, await ended_run(tenant.runfold), end=3)
        await is_parked_without_work(tenant, health)

        opened = RunOpened(agent_id="a", log_id=log_id)
        event = new_event(opened, event_id=new_event_id(), run_id=run_id, timestamp=datetime.now(UTC))
        publisher = connection.publisher
        await publisher.wait(await publisher.send(topic, outgoing(event, source="test")))
        await is_folded(tenant, connection.run_of(Life(run_id=run_id, log_id=log_id, agent_id="a")), end=1)
        await are_parked(health, 1)


async def test_a_run_without_a_topic_keeps_no_tenant_active(settings: Settings) -> None:
    async with (
        new_tenants(settings, 1) as [tenant],
        serving(settings) as health,
    ):
        connection = tenant.runfold.connection
        life = Life(run_id=new_event_id(), log_id=new_log_id(), agent_id="a")
        await connection.announce(life)

        async def is_set_aside() -> bool:
            return any(life.run_id in reason for reason in await reasons(health))

        await until(is_set_aside, what="the quarantine of the run")
        await is_parked_without_work(tenant, health)
        await until(is_set_aside, what="the quarantine of the run while its tenant is parked")

        await connection.admin.create_run_topic(connection.topics.run(life.run_id, life.log_id))
        run = connection.run_of(life)
        await run.complete()
        await is_folded(tenant, run, end=1)
        await are_parked(health, 1)
        await until(lambda: has_no_reasons(health), what="the end of all reasons")


async def test_one_tenant_is_rebuilt_beside_its_host(settings: Settings) -> None:
    settings = settings.model_copy(update={"retire_seconds": 4})
    async with (
        new_tenants(settings, 2) as [tenant, _],
        serving(settings) as health,
    ):
        runs = [await ended_run(tenant.runfold) for _ in range(3)]
        for run in runs:
            await is_folded(tenant, run, end=3)
        await are_parked(health, 2)
        async with projections(tenant.settings) as before:
            old = before.edition

        further = asyncio.create_task(publish_during(tenant))
        progress = await rebuild(tenant.settings, report=lambda _: None, switched=lambda: None)
        further.cancel()
        await asyncio.gather(further, return_exceptions=True)

        assert progress.done == progress.total
        await is_folded(tenant, await ended_run(tenant.runfold), end=3)
        await are_parked(health, 2)
        async with projections(tenant.settings) as after:
            assert after.edition != old

            async def is_alone() -> bool:
                return not await after.editions.others()

            await until(is_alone, what="the end of the edition before")
            assert await after.differences() == []


async def publish_during(tenant: OneTenant) -> None:
    while True:
        await ended_run(tenant.runfold)
        await asyncio.sleep(0.1)


async def test_the_logs_of_a_tenant_are_signed_before_it_is_parked(
    settings: Settings, tmp_path: Path
) -> None:
    settings = settings.model_copy(update={"signing_keys": new_keys(tmp_path), "signing_seconds": 3600})
    async with (
        new_tenants(settings, 2) as tenants,
        serving(settings) as health,
    ):
        for tenant in tenants:
            await is_folded(tenant, await ended_run(tenant.runfold), end=3)
        await are_parked(health, 2)

        for tenant in tenants:
            async with projections(tenant.settings) as stored:
                signing = SigningStore(stored.database, stored.edition)

                async def are_signed(tenant=tenant, stored=stored, signing=signing) -> bool:
                    # A tenant may wake once more, and then signs again before it is parked.
                    runs = (await stored.runs.list(RunFilter(), limit=10))[0]
                    end = await end_offset(tenant.settings.log(), tenant.runfold.connection.topics.evidence)
                    return bool(runs and end) and not await signing.unsigned([0], has_chain=True, limit=10)

                await until(are_signed, what="the signed heads")
