"""One API serves several tenants. Each is open from its first request until it is quiet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI
from tests.api_tenants import (
    mark_dropping,
    name_of,
    open_tenants,
    put,
    registry,
    served_tenants,
    tenants_app,
)
from tests.ingesting import is_ready
from tests.principals import As
from tests.processes import DEADLINE_SECONDS, until
from tests.querying import sent_events
from tests.remembering import ScriptedModel

from runfold import Runfold, UserMessage
from runfold.api.parts import ApiParts
from runfold.generation.model import Found
from runfold.settings import Settings
from runfold.tenants import rounds
from runfold.tenants.registry import Tenants, settings_of
from runfold_schemas.memories import BankConfig

RUN = {"agent_id": "desk", "run_id": "r-1"}


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, wait_timeout_seconds=20)


@pytest.fixture(scope="module")
def tenants(settings: Settings) -> Tenants:
    return registry(settings, "a", "b")


@pytest.fixture(scope="module")
def app(settings: Settings, tenants: Tenants) -> FastAPI:
    return tenants_app(settings, tenants, "a", "b", "c")


@pytest.fixture(scope="module")
async def client(settings: Settings, tenants: Tenants, app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with served_tenants(settings, app, tenants) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


@pytest.fixture
def quiet(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants are quiet after a moment."""
    monkeypatch.setattr(open_tenants(app), "_quiet_seconds", 0.2)


async def write(who: As, text: str, run_id: str = "r-1") -> dict[str, Any]:
    await who.made("POST", "/v1/runs", RUN | {"run_id": run_id})
    event = {"type": "user_message", "data": {"message": text}}
    written: dict[str, Any] = await who.made("POST", f"/v1/runs/{run_id}/events", event)
    return written


async def messages(who: As, run_id: str = "r-1", **query: object) -> str:
    response = await who("GET", f"/v1/runs/{run_id}/ledger?min_offset=1")
    assert response.status_code == 200, response.text
    return response.text


async def test_tenants_have_runs_of_one_id(client):
    for name in ("own", "a", "b"):
        await write(As(client, name), f"said by {name}")

    for name in ("own", "a", "b"):
        others = {"own", "a", "b"} - {name}
        text = await messages(As(client, name))
        assert f"said by {name}" in text
        assert not any(f"said by {other}" in text for other in others)


async def test_an_unknown_tenant_is_refused(client):
    for path in ("/v1/runs", "/v1beta1/reasoningEngines"):
        response = await As(client, "c")("GET", path)
        assert response.status_code == 403, response.text
        assert "does not exist" in response.text


async def test_concurrent_first_requests_share_one_opening(client, app, settings, monkeypatch):
    opened = []
    opening = ApiParts.__aenter__

    async def count(parts: ApiParts) -> ApiParts:
        opened.append(parts)
        return await opening(parts)

    monkeypatch.setattr(ApiParts, "__aenter__", count)
    await closed(app, settings, "b")

    answers = await asyncio.gather(*(As(client, "b")("GET", "/v1/runs") for _ in range(20)))

    assert {answer.status_code for answer in answers} == {200}
    assert len(opened) == 1


async def test_a_quiet_tenant_is_closed_and_opens_again(client, app, settings):
    b = As(client, "b")
    await write(b, "before", "r-parked")

    await closed(app, settings, "b")

    assert "before" in await messages(b, "r-parked")
    await write(b, "after", "r-after")


async def test_a_stream_keeps_its_tenant_open(client, app, settings, quiet):
    b = As(client, "b")
    await write(b, "first", "r-followed")
    headers = {"Authorization": "Bearer b"}
    async with (
        client.stream("GET", "/v1/runs/r-followed/follow", headers=headers) as response,
        aclosing(sent_events(response)) as events,
    ):
        await anext(events)
        await asyncio.sleep(1.0)
        assert name_of(settings, "b") in open_tenants(app).names
        await write(b, "second", "r-followed")
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for event in events:
                if "second" in str(event.data):
                    break
    await until(lambda: is_closed(app, settings, "b"), what="the closing of the tenant")


async def test_a_dropped_tenant_answers_no_more_and_a_new_one_of_its_name_begins_empty(
    client, app, settings, tenants, mongo
):
    put(tenants, name_of(settings, "c"), database=f"{settings.prefix}-c1")
    c, key = As(client, "c"), {"Idempotency-Key": "k-1"}
    first = await c("POST", "/v1/runs", RUN, key)
    again = await c("POST", "/v1/runs", RUN, key)
    assert (first.status_code, again.json()) == (201, first.json())

    mark_dropping(tenants, name_of(settings, "c"))
    refused = await c("GET", "/v1/runs")
    assert refused.status_code == 403

    # Its topics are not deleted here: the database alone makes it another tenant.
    registry_of_new = registry(settings)
    put(registry_of_new, name_of(settings, "c"), database=f"{settings.prefix}-c2")
    tenants.__dict__.update(registry_of_new.__dict__)
    listed = await c("GET", "/v1/runs")
    assert listed.json()["runs"] == []
    repeated = await c("POST", "/v1/runs", RUN, key)
    assert repeated.status_code == 200, "the answer of the first tenant is not repeated"


async def closed(app: FastAPI, settings: Settings, name: str) -> None:
    tenants = open_tenants(app)
    before, tenants._quiet_seconds = tenants._quiet_seconds, 0.2
    try:
        await until(lambda: is_closed(app, settings, name), what="the closing of the tenant")
    finally:
        tenants._quiet_seconds = before


async def is_closed(app: FastAPI, settings: Settings, name: str) -> bool:
    return name_of(settings, name) not in open_tenants(app).names


async def test_memories_are_generated_of_a_tenant_that_nobody_asks_for(kafka, mongo, monkeypatch):
    monkeypatch.setattr(rounds, "ROUND_SECONDS", 1.0)
    name = f"t{uuid4().hex[:8]}"
    settings = Settings(kafka=kafka, mongo=mongo, prefix=name, database=name)
    tenants, model = (
        registry(settings, "a"),
        ScriptedModel(found=[Found(fact="Likes tea", topics=["USER_PREFERENCES"])]),
    )
    app = tenants_app(settings, tenants, "a", model=model)
    of_a = settings_of(settings, tenants.all()[0])
    async with served_tenants(settings, app, tenants), Runfold.of(of_a.log()) as runfold:
        await runfold.memories.create_bank("desk", BankConfig(agents=("desk",)))
        async with runfold.run(agent_id="desk") as run:
            await run.publish(UserMessage(message="I like tea."))

        async def has_memory() -> bool:
            memories, _ = await runfold.memories.list("desk")
            return [memory.memory.fact for memory in memories] == ["Likes tea"]

        await until(has_memory, what="memories of a completed run")
