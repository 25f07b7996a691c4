"""Publishing over HTTP: what is answered, and what the log holds afterwards."""

import json
from uuid import uuid4

import httpx
import pytest
from tests.ingesting import note, opened

from runfold import Runfold
from runfold_projections.admission import Admitted
from runfold_projections.run import RunRecord, fold

NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


async def history(runfold: Runfold, run: str) -> list[Admitted]:
    run_id = run.removeprefix("/v1/runs/")
    return [admitted async for admitted in (await runfold.get_run(run_id)).history()]


async def record(runfold: Runfold, run: str) -> RunRecord:
    return fold(RunRecord(run_id=run.removeprefix("/v1/runs/")), await history(runfold, run))


async def test_a_run_is_opened_as_it_was_asked_for(ingest: httpx.AsyncClient, runfold: Runfold):
    response = await ingest.post(
        "/v1/runs",
        json={
            "agent_id": "support",
            "session_id": "s-1",
            "turn_id": "t-1",
            "labels": {"tier": "gold"},
            "pending": True,
            "started_at": "2026-01-02T03:04:05Z",
        },
    )

    opened_run = await record(runfold, response.json()["run_id"])
    assert response.status_code == 201
    assert response.headers["location"] == f"/v1/runs/{opened_run.run_id}"
    assert opened_run.agent_id == "support"
    assert opened_run.session_id == "s-1"
    assert opened_run.turn_id == "t-1"
    assert opened_run.status == "pending"
    assert opened_run.labels == {"tier": "gold"}
    assert opened_run.started_at is not None
    assert opened_run.started_at.isoformat() == "2026-01-02T03:04:05+00:00"


async def test_opening_a_run_twice_is_the_same_run(ingest: httpx.AsyncClient, runfold: Runfold):
    request = {"agent_id": "a", "run_id": "opened twice"}

    first = await ingest.post("/v1/runs", json=request)
    second = await ingest.post("/v1/runs", json=request)

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert len(await history(runfold, "opened twice")) == 1


async def test_one_event_is_answered_with_its_place_in_the_log(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)

    response = await ingest.post(f"{run}/events", json=note("hello", turn_id="t-1", labels={"k": "v"}))

    [_, admitted] = await history(runfold, run)
    assert admitted.event is not None
    assert response.status_code == 201
    assert response.json() == {
        "run_id": admitted.event.run_id,
        "offset": 1,
        "event_id": admitted.event.event_id,
    }
    assert admitted.event.turn_id == "t-1"
    assert admitted.event.labels == {"k": "v"}


async def test_what_an_event_brings_is_kept(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)
    event_id = str(uuid4())

    await ingest.post(
        f"{run}/events", json=note(event_id=event_id, timestamp="2026-01-02T03:04:05+02:00", mine={"x": 1})
    )

    [_, admitted] = await history(runfold, run)
    stored = json.loads(admitted.record.value or b"")
    assert stored["event_id"] == event_id
    assert stored["timestamp"] == "2026-01-02T03:04:05+02:00"
    assert stored["mine"] == {"x": 1}


async def test_numbers_of_a_payload_survive_exactly(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)
    text = '{"n":123456789012345678901234567890,"f":0.1,"z":-0.0,"e":[],"u":"\\u00fc\\u0000"}'

    await ingest.post(
        f"{run}/events",
        content=f'{{"type":"tool_result","data":{{"tool_call_id":"c","result":{text}}}}}',
        headers=JSON,
    )

    [_, admitted] = await history(runfold, run)
    result = json.loads(admitted.record.value or b"")["data"]["result"]
    assert repr(result) == repr(json.loads(text))


@pytest.mark.parametrize("form", ["array", "ndjson"])
async def test_a_batch_is_next_to_each_other_in_the_log(
    ingest: httpx.AsyncClient, runfold: Runfold, form: str
):
    run = await opened(ingest)
    events = [note(str(number)) for number in range(3)]

    if form == "array":
        response = await ingest.post(f"{run}/events", json=events)
    else:
        lines = "\r\n\n".join(map(json.dumps, events))
        response = await ingest.post(f"{run}/events", content=lines, headers=NDJSON)

    admitted = (await history(runfold, run))[1:]
    assert response.status_code == 201
    assert response.json()["positions"] == [
        {"offset": one.record.offset, "event_id": one.event.event_id} for one in admitted if one.event
    ]
    assert [one.event.data.note for one in admitted if one.event] == ["0", "1", "2"]  # type: ignore[union-attr]


async def test_a_run_goes_through_its_statuses(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest, pending=True)
    statuses = []

    for change in (
        {"action": "start"},
        {"action": "pause", "reason": "approval"},
        {"action": "resume", "turn_id": "t-2"},
        {"action": "fail", "error": "no tool"},
    ):
        response = await ingest.post(f"{run}/status", json=change)
        assert response.status_code == 201
        statuses.append((await record(runfold, run)).status)

    after = await record(runfold, run)
    assert statuses == ["running", "paused", "running", "failed"]
    assert (after.error, after.turn_id, after.illegal_transitions) == ("no tool", "t-2", 0)


async def test_a_status_may_also_be_published_as_an_event(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)

    await ingest.post(f"{run}/events", json=[note(), {"type": "run_completed", "data": {}}])
    refused = await ingest.post(f"{run}/events", json=note())

    assert refused.status_code == 409
    assert (await record(runfold, run)).status == "completed"


async def test_a_late_event_is_kept_and_flagged(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)
    await ingest.post(f"{run}/status", json={"action": "complete"})

    response = await ingest.post(f"{run}/events?late=true", json=note())

    assert response.status_code == 201
    assert [admitted.outcome for admitted in await history(runfold, run)] == ["accepted", "accepted", "late"]


async def test_a_lost_expected_offset_is_a_conflict_that_names_the_offset(ingest: httpx.AsyncClient):
    run = await opened(ingest)

    won = await ingest.post(f"{run}/events", json=note(expected_offset=0))
    lost = await ingest.post(f"{run}/events", json=note(expected_offset=0))

    assert (won.status_code, lost.status_code) == (201, 409)
    assert lost.json()["offset"] == 2
    assert "expected_offset is 0" in lost.json()["detail"]


async def test_a_run_id_may_hold_what_a_path_gives_a_meaning(ingest: httpx.AsyncClient, runfold: Runfold):
    run_id = "größe/50%?#events"
    response = await ingest.post("/v1/runs", json={"agent_id": "a", "run_id": run_id})

    published = await ingest.post(f"{response.headers['location']}/events", json=note())

    assert published.json()["run_id"] == run_id
    assert len(await history(runfold, run_id)) == 2


async def test_the_routes_are_described(ingest: httpx.AsyncClient):
    paths = (await ingest.get("/openapi.json")).json()["paths"]

    body = paths["/v1/runs/{run_id}/events"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "application/x-ndjson"}
    assert {"/v1/runs", "/v1/runs/{run_id}/events", "/v1/runs/{run_id}/status"} <= set(paths)
