"""A run that is no session's own is deleted with its log, over Kafka and over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.processes import until
from tests.querying import Projected, ready_api

from runfold import (
    Admitted,
    InvalidIdError,
    Runfold,
    RunNotFoundError,
    SessionNotFoundError,
    UserMessage,
    sync,
)
from runfold.client.run_log import RunLog
from runfold.client.session_log import LogSessionReader
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


async def test_a_run_that_is_deleted_behind_an_event_is_not_found(
    runfold: Runfold, stored: Projected, monkeypatch: pytest.MonkeyPatch
):
    """The outcome of the event is read after its append, because another one may have won."""
    run = await stored.run(UserMessage(message="one"))
    history = RunLog.history

    async def history_of_deleted(log: RunLog, **part: Any) -> AsyncIterator[Admitted]:
        monkeypatch.undo()
        await runfold.delete_run(run.run_id)
        await runfold.connection.delete_topic(log.topic)
        async for admitted in history(log, **part):
            yield admitted

    monkeypatch.setattr(RunLog, "history", history_of_deleted)
    with pytest.raises(RunNotFoundError):
        await run.publish(UserMessage(message="two"), expected_offset=0)


async def test_a_session_that_is_deleted_behind_an_event_is_not_found(
    settings: Settings, runfold: Runfold, stored: Projected, monkeypatch: pytest.MonkeyPatch
):
    """The log is read for an ending, because another process has appended since."""
    session = await runfold.sessions.create(app="shop", user="ann")
    await runfold.sessions.append(session.session_id, UserMessage(message="one"))
    async with Runfold.of(settings.log()) as other:
        await other.sessions.append(session.session_id, UserMessage(message="two"))
    ended_before = RunLog.ended_before

    async def ended_before_deleted(log: RunLog, offset: int, **part: Any) -> bool:
        monkeypatch.undo()
        await runfold.sessions.delete(session.session_id)
        await runfold.connection.delete_topic(log.topic)
        return await ended_before(log, offset, **part)

    monkeypatch.setattr(RunLog, "ended_before", ended_before_deleted)
    with pytest.raises(SessionNotFoundError):
        await runfold.sessions.append(session.session_id, UserMessage(message="three"))


async def test_a_session_that_is_deleted_under_its_reader_is_not_found(runfold: Runfold, stored: Projected):
    session = await runfold.sessions.create(app="shop", user="ann")
    reader = LogSessionReader(runfold.connection)
    record = await reader.find(session.session_id)
    assert record is not None

    await runfold.sessions.delete(session.session_id)
    topic = runfold.connection.topics.run(record.run_id, record.log_id)
    await until(lambda: is_deleted(runfold, topic), what="the end of the session's topic")

    with pytest.raises(SessionNotFoundError):
        await reader.view(record, None)


async def is_deleted(runfold: Runfold, topic: str) -> bool:
    return topic not in await runfold.connection.admin.list_run_topics()


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
