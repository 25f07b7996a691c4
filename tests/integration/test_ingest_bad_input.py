"""What the ingest service refuses: always with a problem document that says what and where, and
never half of a batch.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.ingesting import note, opened
from tests.partitions import partition_of
from tests.processes import until

from runfold import Runfold
from runfold.log.catalog import life_record
from runfold_schemas.topics import RECORD_BYTES_MAX

NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def run(ingest: httpx.AsyncClient) -> str:
    return await opened(ingest)


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    document: dict[str, Any] = response.json()
    assert response.status_code == document["status"] == status
    assert response.headers["content-type"] == "application/problem+json"
    assert document["title"]
    assert document["detail"]
    return document


async def offset_of_next(ingest: httpx.AsyncClient, run: str) -> int:
    """Where the log goes on: one more than how much is in it."""
    offset: int = (await ingest.post(f"{run}/events", json=note())).json()["offset"]
    return offset


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ({"type": "telepathy", "data": {}}, "type"),
        ({"data": {}}, "type"),
        ({"type": 7, "data": {}}, "type"),
        ({"type": "run_opened", "data": {"agent_id": "a", "log_id": "l"}}, "type"),
        ({"type": "user_message"}, "data"),
        ({"type": "user_message", "data": {"message": 5}}, "data.message"),
        ({"type": "tool_result", "data": {"tool_call_id": "c", "duration_ms": -1}}, "data.duration_ms"),
        ({"type": "thinking", "data": {"redacted": "not base64!"}}, "data.redacted"),
        (note(event_id="one"), "event_id"),
        (note(timestamp="yesterday"), "timestamp"),
        (note(timestamp="2026-01-02T03:04:05"), "timestamp"),
        (note(labels={"n": 1}), "labels.n"),
        (note(labels={"n": "x" * 513}), "labels.n"),
        (note(turn_id="x" * 201), "turn_id"),
        ({"type": "run_labeled", "data": {"labels": {"n": "é" * 500_000}}}, "data.labels.n"),
        (note(run_id="another"), "run_id"),
        (note(expected_offset=-2), "expected_offset"),
    ],
)
async def test_an_event_that_is_none_names_its_field(
    ingest: httpx.AsyncClient, run: str, event: dict[str, Any], field: str
):
    alone = problem(await ingest.post(f"{run}/events", json=event), 422)
    second = problem(await ingest.post(f"{run}/events", json=[note(), event]), 422)
    lines = f"{json.dumps(note())}\n\n{json.dumps(event)}\n"
    third = problem(await ingest.post(f"{run}/events", content=lines, headers=NDJSON), 422)

    assert (alone["field"], second["field"], third["field"]) == (field, field, field)
    assert (second["index"], third["line"]) == (1, 3)
    assert await offset_of_next(ingest, run) == 1


@pytest.mark.parametrize(
    ("body", "headers", "line"),
    [
        ('{"type": "planner_note",', JSON, 1),
        ("[" + json.dumps(note()) + ',\n{"type": planner_note}]', JSON, 2),
        (json.dumps(note()) + '\n{"type": \n' + json.dumps(note()), NDJSON, 2),
        (json.dumps(note()) + '\n{"type": "planner_note", "data": {"note": NaN}}', NDJSON, 2),
        ('{"type": "tool_call", "data": {"payload": Infinity}}', JSON, 1),
        (b'{"type": "planner_note", "data": {"note": "\xff"}}', JSON, 1),
        (json.dumps(note()) + "\n[]", NDJSON, 2),
        ("", JSON, 1),
    ],
)
async def test_broken_json_names_its_line(
    ingest: httpx.AsyncClient, run: str, body: str | bytes, headers: dict[str, str], line: int
):
    refused = problem(await ingest.post(f"{run}/events", content=body, headers=headers), 422)

    assert refused["line"] == line
    assert await offset_of_next(ingest, run) == 1


async def test_a_number_too_large_for_json_names_its_place(ingest: httpx.AsyncClient, run: str):
    huge = '{"type":"tool_call","data":{"tool_call_id":"c","tool_name":"t","payload":1e400}}'

    refused = problem(
        await ingest.post(f"{run}/events", content=f"{json.dumps(note())}\n{huge}", headers=NDJSON), 422
    )

    assert (refused["line"], refused["field"]) == (2, "data")
    assert await offset_of_next(ingest, run) == 1


@pytest.mark.parametrize(("body", "headers"), [("[]", JSON), ("\n \n", NDJSON), ("", NDJSON), ("7", JSON)])
async def test_a_body_without_events_is_refused(
    ingest: httpx.AsyncClient, run: str, body: str, headers: dict[str, str]
):
    problem(await ingest.post(f"{run}/events", content=body, headers=headers), 422)


async def test_nothing_of_a_batch_follows_the_end_of_its_run(ingest: httpx.AsyncClient, run: str):
    batch = [note(), {"type": "run_completed", "data": {}}, note()]

    refused = problem(await ingest.post(f"{run}/events", json=batch), 422)

    assert (refused["index"], refused["field"]) == (2, "type")
    assert await offset_of_next(ingest, run) == 1


async def test_a_batch_is_not_split_by_expected_offsets(ingest: httpx.AsyncClient, run: str):
    refused = problem(await ingest.post(f"{run}/events", json=[note(expected_offset=9), note()]), 422)

    assert (refused["index"], refused["field"]) == (0, "expected_offset")
    assert await offset_of_next(ingest, run) == 1


async def test_an_oversize_event_and_an_oversize_batch_are_too_large(ingest: httpx.AsyncClient, run: str):
    half = note("x" * (RECORD_BYTES_MAX // 2))

    event = problem(await ingest.post(f"{run}/events", json=note("x" * RECORD_BYTES_MAX)), 413)
    batch = problem(await ingest.post(f"{run}/events", json=[half, half]), 413)

    assert event["limit"] == batch["limit"] == RECORD_BYTES_MAX
    assert event["size"] > RECORD_BYTES_MAX
    assert await offset_of_next(ingest, run) == 1


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_is_not_read_beyond_the_limit(ingest: httpx.AsyncClient, run: str, announced: bool):
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(40):
            sent += 1
            yield b" " * (1024 * 1024)

    headers = {"Content-Length": str(40 * 1024 * 1024)} if announced else {}
    problem(await ingest.post(f"{run}/events", content=chunks(), headers={**JSON, **headers}), 413)

    assert sent == (0 if announced else 33)


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}])
async def test_another_content_type_is_unsupported(
    ingest: httpx.AsyncClient, run: str, headers: dict[str, str]
):
    for route in ("/v1/runs", f"{run}/events", f"{run}/status"):
        problem(await ingest.post(route, content=b"{}", headers=headers), 415)


@pytest.mark.parametrize("run_id", ["x" * 101, "ü" * 51, "nul\0", "", "_" * 90])
async def test_an_illegal_run_id_is_refused(ingest: httpx.AsyncClient, run_id: str):
    refused = problem(await ingest.post("/v1/runs", json={"agent_id": "a", "run_id": run_id}), 422)

    assert refused["name"] == "run_id"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({}, "agent_id"),
        ({"agent_id": "a", "labels": {"n": 1}}, "labels.n"),
        ({"agent_id": "a", "labels": {"n": "x" * 513}}, "labels.n"),
        ({"agent_id": "a", "turn_id": "x" * 201}, "turn_id"),
        ({"agent_id": "a", "x": 1}, "x"),
    ],
)
async def test_a_run_that_cannot_be_opened_names_the_field(
    ingest: httpx.AsyncClient, request_: dict[str, Any], field: str
):
    refused = problem(await ingest.post("/v1/runs", json=request_), 422)

    assert refused["field"] == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, "action"),
        ({"action": "fly"}, "action"),
        ({"action": "fail"}, "error"),
        ({"action": "complete", "error": "e"}, "error"),
        ({"action": "resume", "reason": "r"}, "reason"),
        ({"action": "resume", "turn_id": "x" * 201}, "turn_id"),
    ],
)
async def test_a_change_of_status_that_is_none_names_the_field(
    ingest: httpx.AsyncClient, run: str, change: dict[str, Any], field: str
):
    refused = problem(await ingest.post(f"{run}/status", json=change), 422)

    assert refused["field"] == field


async def test_the_run_of_another_agent_is_a_conflict(ingest: httpx.AsyncClient):
    await opened(ingest, run_id="mine")

    refused = problem(await ingest.post("/v1/runs", json={"agent_id": "b", "run_id": "mine"}), 409)

    assert refused["agent_id"] == "a"


async def test_a_run_that_does_not_exist_is_not_found(ingest: httpx.AsyncClient):
    problem(await ingest.post("/v1/runs/nobody/events", json=note()), 404)
    problem(await ingest.post("/v1/runs/nobody/status", json={"action": "complete"}), 404)


async def test_a_run_that_has_ended_takes_no_events_and_no_second_end(ingest: httpx.AsyncClient, run: str):
    await ingest.post(f"{run}/status", json={"action": "complete"})

    problem(await ingest.post(f"{run}/events", json=note()), 409)
    problem(await ingest.post(f"{run}/status", json={"action": "cancel"}), 409)
    problem(
        await ingest.post(f"{run}/events?late=true", json={"type": "run_failed", "data": {"error": ""}}), 409
    )


async def test_a_run_that_ended_elsewhere_is_known_once_the_catalog_says_so(
    ingest: httpx.AsyncClient, runfold: Runfold, run: str
):
    await ingest.post(f"{run}/events", json=note())
    await announce_end(runfold, run.removeprefix("/v1/runs/"))

    async def refused() -> bool:
        return (await ingest.post(f"{run}/events", json=note())).status_code == 409

    await until(refused, what="the refusal")


async def announce_end(runfold: Runfold, run_id: str) -> None:
    """Ends the run, and does what the projector that owns it does after it has folded the end."""
    run = await runfold.get_run(run_id)
    await run.complete()
    record = life_record(run.life.model_copy(update={"ended": True}))
    ack = await runfold.connection.publisher.send(
        runfold.connection.topics.catalog, record, partition=partition_of(run_id)
    )
    await runfold.connection.publisher.wait(ack)
