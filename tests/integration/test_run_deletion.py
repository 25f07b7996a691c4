"""A run that is no session's own is deleted with its log, over Kafka and over HTTP."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.processes import until
from tests.querying import Projected, ready_api

from runfold import InvalidIdError, Runfold, RunNotFoundError, UserMessage, sync
from runfold.log.ends import LogEnds
from runfold.settings import Settings
from runfold_schemas.topics import RunTopic


@pytest.fixture(scope="module")
async def api(settings: Settings, stored: Projected) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


async def has_topic(settings: Settings, run: RunTopic) -> bool:
    async with LogEnds.connect(settings.log()) as ends:
        return run in (await ends.run_topics()).values()


async def is_cleared(settings: Settings, stored: Projected, run: RunTopic) -> bool:
    pages = [page async for page in stored.pages.documents(run.log_id)]
    return not pages and not await has_topic(settings, run)


async def test_a_deleted_run_is_gone_at_once_and_its_data_soon(settings, runfold, stored):
    run = await stored.run(UserMessage(message="secret"), run_id="deleted-run")

    await runfold.delete_run(run.run_id)

    with pytest.raises(RunNotFoundError):
        await runfold.get_run(run.run_id)
    with pytest.raises(RunNotFoundError):
        await run.publish(UserMessage(message="more"))
    with pytest.raises(RunNotFoundError):
        await runfold.delete_run(run.run_id)
    with pytest.raises(InvalidIdError):
        await runfold.open_run(agent_id="agent-1", run_id=run.run_id)
    life = RunTopic(run.run_id, run.life.log_id)
    await until(lambda: is_cleared(settings, stored, life), what="the end of the run's data")


async def test_a_run_is_deleted_over_http_and_hidden_in_the_next_answer(settings, api, stored):
    run = await stored.run(UserMessage(message="secret"))

    response = await api.delete(f"/v1/runs/{run.run_id}")

    assert response.status_code == 204, response.text
    assert (await api.get(f"/v1/runs/{run.run_id}")).status_code == 404
    assert (await api.delete(f"/v1/runs/{run.run_id}")).status_code == 404
    life = RunTopic(run.run_id, run.life.log_id)
    await until(lambda: is_cleared(settings, stored, life), what="the end of the run's data")


async def test_the_run_of_a_session_is_deleted_with_its_session_only(api):
    session = (await api.post("/v1/sessions", json={"app": "shop", "user": "ann"})).json()

    response = await api.delete(f"/v1/runs/{session['run_id']}")

    assert (response.status_code, response.json()["name"]) == (422, "run_id")
    assert (await api.get(f"/v1/sessions/{session['session_id']}")).status_code == 200


async def test_a_run_that_names_a_session_can_be_deleted_alone(api, stored):
    session = (await api.post("/v1/sessions", json={"app": "shop", "user": "ann"})).json()
    run = await stored.run(UserMessage(message="hello"), session_id=session["session_id"])

    assert (await api.delete(f"/v1/runs/{run.run_id}")).status_code == 204

    runs = (await api.get(f"/v1/sessions/{session['session_id']}/runs")).json()["runs"]
    assert run.run_id not in [each["run_id"] for each in runs]


async def test_the_client_without_await_deletes_a_run(settings, stored, runfold: Runfold):
    run = await runfold.open_run(agent_id="desk")
    with sync.Runfold(settings.kafka, prefix=settings.prefix) as client:
        await asyncio.to_thread(client.delete_run, run.run_id)
    with pytest.raises(RunNotFoundError):
        await runfold.get_run(run.run_id)
