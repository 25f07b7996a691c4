"""Quotas of tenants, counted over two processes of the API."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from tests.principals import settings_with_keys
from tests.processes import http_service, until
from tests.querying import projected
from tests.session_stores import at_work

from runfold import Runfold
from runfold.http.principal import Scope
from runfold.identity.administration import KeyAdministration
from runfold.identity.keys import KeyGrant
from runfold.local import free_port
from runfold.log.publisher import Publisher
from runfold.settings import Settings
from runfold.tenants.administration import TenantAdministration
from runfold.tenants.registry import Tenant, check_tenant, settings_of

PROCESSES = 2

REQUESTS = 30
"""A quota of requests per minute."""


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str) -> Settings:
    return settings_with_keys(kafka, mongo, partitions=2)


@pytest.fixture(scope="module")
async def apis(
    settings: Settings, publisher: Publisher, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients of two processes, with a projector behind them."""
    folder: Path = tmp_path_factory.mktemp("quotas")
    keys = KeyAdministration(settings.log(), lambda: publisher)
    key = (await keys.add(KeyGrant(name="any", scopes=tuple(Scope)), by="a test")).text
    ports = [free_port() for _ in range(PROCESSES)]
    services = [http_service("api", settings, folder / f"{port}.log", port=port) for port in ports]
    headers = {"Authorization": f"Bearer {key}"}
    async with projected(settings), at_work(services), AsyncExitStack() as stack:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        clients = [httpx.AsyncClient(base_url=url, headers=headers, timeout=60) for url in urls]
        yield [await stack.enter_async_context(client) for client in clients]


@pytest.fixture
async def limit(
    settings: Settings, publisher: Publisher, apis: list[httpx.AsyncClient]
) -> AsyncIterator[TenantAdministration]:
    """Sets quotas, which are lifted afterwards in all processes."""
    administration = TenantAdministration(settings, publisher)
    yield administration
    lifted = ("requests_per_minute", "open_runs", "bytes_per_day", "model_tokens_per_day")
    await administration.set_quotas(settings.prefix, dict.fromkeys(lifted))
    await until(partial(is_answered, apis, "POST", "/v1/runs", json={"agent_id": "a"}))


async def open_run(api: httpx.AsyncClient) -> httpx.Response:
    return await api.post("/v1/runs", json={"agent_id": "a"})


async def is_refused(apis: list[httpx.AsyncClient], method: str, path: str, **body: object) -> bool:
    """Whether all processes refuse the request."""
    answers = [await api.request(method, path, **body) for api in apis]
    return {answer.status_code for answer in answers} == {429}


async def is_answered(apis: list[httpx.AsyncClient], method: str, path: str, **body: object) -> bool:
    answers = [await api.request(method, path, **body) for api in apis]
    return 429 not in {answer.status_code for answer in answers}


def message(text: str) -> dict[str, object]:
    return {"type": "user_message", "data": {"message": text}}


async def test_requests_per_minute_are_counted_over_all_processes(settings, apis, limit, publisher):
    answered, refused = await answered_in_a_minute(apis, settings, limit, publisher)
    problem = refused.json()

    assert refused.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "urn:runfold:problem:QuotaExceeded"
    assert (problem["quota"], problem["limit"]) == ("requests_per_minute", REQUESTS)
    seconds = int(refused.headers["Retry-After"])
    assert problem["retry_after_seconds"] == seconds
    assert 1 <= seconds <= 60
    assert problem["until"].endswith("00Z")
    assert REQUESTS <= answered <= REQUESTS + 20


async def answered_in_a_minute(
    apis: list[httpx.AsyncClient],
    settings: Settings,
    administration: TenantAdministration,
    publisher: Publisher,
) -> tuple[int, httpx.Response]:
    """How many requests of a new tenant are answered in a minute, by all processes in turn, until
    one is refused, and the refusal. If a minute ends meanwhile, it tries again with another tenant.
    The pauses leave seconds for the processes to learn each other's counts.
    """
    while True:
        tenant = (await administration.add(f"t{uuid4().hex[:8]}")).name
        head = {"headers": await bearer(settings, publisher, tenant)}
        await until(partial(is_listed, apis, **head))
        await administration.set_quotas(tenant, {"requests_per_minute": 0})
        await until(partial(is_refused, apis, "GET", "/v1/runs", **head))
        minute, answered = time.time() // 60, 0
        await administration.set_quotas(tenant, {"requests_per_minute": REQUESTS})
        for api in itertools.cycle(apis):
            answer = await api.get("/v1/runs", **head)
            answered += answer.status_code == 200
            if time.time() // 60 > minute:
                break
            # A process that has not learnt of the quota yet refuses all requests.
            if answer.status_code == 429 and answer.json()["limit"] == REQUESTS:
                return answered, answer
            await asyncio.sleep(0.3)


async def test_what_has_no_quota_is_not_refused(apis, settings, limit):
    await limit.set_quotas(settings.prefix, {"bytes_per_day": 10_000_000})

    answers = await asyncio.gather(*(apis[0].get("/v1/runs") for _ in range(50)))

    assert {answer.status_code for answer in answers} == {200}


async def test_bytes_per_day_refuse_what_publishes_and_nothing_else(apis, settings, limit):
    run_id, ending = [(await open_run(apis[0])).json()["run_id"] for _ in range(2)]
    await limit.set_quotas(settings.prefix, {"bytes_per_day": 100_000})
    path = f"/v1/runs/{run_id}/events"

    await until(partial(is_refused, apis, "POST", path, json=message("x" * 30_000)))
    refused = (await apis[0].post(path, json=message("x"))).json()
    reads = [
        await apis[1].get(f"/v1/runs/{run_id}"),
        await apis[1].post(f"/v1/runs/{run_id}/ledger", json={}),
        await apis[1].get("/v1/keys"),
    ]
    ended = await apis[1].post(f"/v1/runs/{ending}/status", json={"action": "complete"})
    await limit.set_quotas(settings.prefix, {"bytes_per_day": None})

    assert (refused["quota"], refused["limit"]) == ("bytes_per_day", 100_000)
    assert refused["until"].endswith("T00:00:00Z")
    assert 429 not in {answer.status_code for answer in reads}
    assert ended.status_code == 201
    await until(partial(is_answered, apis, "POST", path, json=message("x")))


async def test_copies_of_a_fork_are_published_bytes(apis, settings, limit):
    run_id = (await open_run(apis[0])).json()["run_id"]
    for _ in range(4):
        said = await apis[0].post(f"/v1/runs/{run_id}/events", json=message("x" * 1_000_000))
        assert said.status_code == 201
    await limit.set_quotas(settings.prefix, {"bytes_per_day": 10_000_000})
    await until(partial(knows, apis, f"/v1/runs/{run_id}/events"))

    forks = [await apis[0].post(f"/v1/runs/{run_id}/fork", json={}) for _ in range(3)]
    await until(partial(is_refused, apis[:1], "POST", f"/v1/runs/{run_id}/fork", json={}))

    assert forks[0].status_code == 201


async def test_model_tokens_per_day_are_those_that_the_runs_record(apis, settings, limit):
    run_id = (await open_run(apis[0])).json()["run_id"]
    path = f"/v1/runs/{run_id}/events"
    usage = {"type": "token_usage", "data": {"input_tokens": 800, "output_tokens": 300}}
    await limit.set_quotas(settings.prefix, {"model_tokens_per_day": 1000})
    await until(partial(knows, apis, path))

    assert (await apis[0].post(path, json=usage)).status_code == 201

    async def is_used_up() -> bool:
        # A process that learns late of the quota has not counted the first.
        await apis[0].post(path, json=usage)
        return await is_refused(apis[:1], "POST", path, json=message("x"))

    await until(is_used_up)
    refused = (await apis[0].post(path, json=message("x"))).json()

    assert (refused["quota"], refused["limit"]) == ("model_tokens_per_day", 1000)
    assert (await apis[0].get(f"/v1/runs/{run_id}")).status_code == 200


async def knows(apis: list[httpx.AsyncClient], path: str) -> bool:
    """Whether all processes have learnt of the quotas that were just set: within a second."""
    await asyncio.sleep(1)
    return await is_answered(apis, "POST", path, json=message("x"))


async def test_open_runs_are_refused_until_a_run_ends(apis, settings, limit):
    run_id = (await open_run(apis[0])).json()["run_id"]
    await limit.set_quotas(settings.prefix, {"open_runs": 5})

    opening = {"json": {"agent_id": "a"}}
    await until(partial(is_refused, apis, "POST", "/v1/runs", **opening))
    refused = await open_run(apis[0])
    session = await apis[0].post("/v1/sessions", json={"app": "a", "user": "u"})
    published = await apis[0].post(f"/v1/runs/{run_id}/events", json=message("x"))

    assert (refused.json()["quota"], refused.json()["limit"]) == ("open_runs", 5)
    assert int(refused.headers["Retry-After"]) >= 1
    assert "until" not in refused.json()
    assert session.status_code == 429
    assert published.status_code == 201

    async def is_free_after_all_ended() -> bool:
        runs = (await apis[0].get("/v1/runs", params={"limit": 100})).json()["runs"]
        for run in runs:
            if run["status"] not in ("completed", "failed", "canceled"):
                path = f"/v1/runs/{run['run_id']}/status"
                assert (await apis[0].post(path, json={"action": "cancel"})).status_code in (201, 409)
        return await is_answered(apis, "POST", "/v1/runs", **opening)

    await until(is_free_after_all_ended)


async def test_open_runs_are_counted_while_no_projector_folds_them(apis, settings, limit, publisher):
    tenant = (await limit.add(f"t{uuid4().hex[:8]}")).name
    head = {"headers": await bearer(settings, publisher, tenant)}
    await until(partial(is_listed, apis, **head))
    await limit.set_quotas(tenant, {"open_runs": 3})

    own = settings_of(settings, Tenant(name=tenant, database=tenant, partitions=1))
    open_now = 0

    async def opened(api: httpx.AsyncClient, *, limit: int | None = None) -> bool:
        """Opens a run, unless the quota is used up. `limit` is the one that the refusal has to
        name: a process learns of a new quota after a while.
        """
        nonlocal open_now
        answer = await api.post("/v1/runs", json={"agent_id": "a"}, **head)
        if answer.status_code == 429:
            return limit not in (None, answer.json()["limit"])
        open_now += answer.status_code == 201
        return True

    async def are_full(limit: int) -> bool:
        return not any([await opened(api, limit=limit) for api in apis])

    async def are_counted() -> bool:
        """Whether all processes refuse the first run too many. While one of them has not counted
        what others opened, it opens more.
        """
        number = open_now
        await limit.set_quotas(tenant, {"open_runs": number})
        await until(partial(are_full, number))
        return open_now == number

    async with Runfold.of(own.log()) as runfold:
        runs = [await runfold.open_run(agent_id="a") for _ in range(PROCESSES)]
        open_now += len(runs)
        await until(partial(are_full, 3))
        assert open_now >= 3
        for api, run in zip(apis, runs, strict=True):
            await until(are_counted)
            await runfold.connection.announce(run.life.model_copy(update={"ended": True}))
            open_now -= 1
            # The process counts anew, because it cannot know of this otherwise.
            await until(partial(opened, api))
            assert not await opened(api)


async def bearer(settings: Settings, publisher: Publisher, tenant: str) -> dict[str, str]:
    keys = KeyAdministration(settings.log(), lambda: publisher, check_tenant=partial(check_tenant, settings))
    return {
        "Authorization": f"Bearer {(await keys.add(KeyGrant(name='any', tenant=tenant), by='a test')).text}"
    }


async def test_a_quota_of_one_tenant_does_not_concern_others(apis, settings, limit, publisher):
    names = [(await limit.add(f"t{uuid4().hex[:8]}")).name for _ in range(2)]
    limited, other = [{"headers": await bearer(settings, publisher, name)} for name in names]
    for head in (limited, other):
        await until(partial(is_listed, apis, **head))

    await limit.set_quotas(names[0], {"requests_per_minute": 5})

    await until(partial(is_refused, apis, "GET", "/v1/runs", **limited))
    assert await is_answered(apis, "GET", "/v1/runs", **other)
    assert await is_answered(apis, "GET", "/v1/runs")


async def is_listed(apis: list[httpx.AsyncClient], **head: object) -> bool:
    return {(await api.get("/v1/runs", **head)).status_code for api in apis} == {200}


async def test_a_refusal_has_googles_form_below_googles_paths(apis, settings, limit):
    await limit.set_quotas(settings.prefix, {"requests_per_minute": 0})
    await until(partial(is_refused, apis, "GET", "/v1/runs"))

    answer = await apis[0].get("/v1/reasoningEngines/1")

    assert answer.status_code == 429
    assert answer.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert int(answer.headers["Retry-After"]) >= 1


async def test_refusals_are_in_the_metrics(apis, settings, limit):
    await limit.set_quotas(settings.prefix, {"bytes_per_day": 0})
    await until(partial(is_refused, apis, "POST", "/v1/runs", json={"agent_id": "a"}))

    metrics = (await apis[0].get("/metrics")).text

    assert f'runfold_quota_refusals_total{{quota="bytes_per_day",tenant="{settings.prefix}"}}' in metrics
