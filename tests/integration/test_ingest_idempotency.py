"""`Idempotency-Key`: a request that is sent again counts once, to this process and to another."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.ingesting import note, opened

from runfold import Runfold

KEY = {"Idempotency-Key": '"7d3f"'}


async def outcomes(runfold: Runfold, run: str) -> list[str]:
    history = (await runfold.get_run(run.removeprefix("/v1/runs/"))).history()
    return [admitted.outcome async for admitted in history]


async def test_a_request_that_is_sent_again_gets_the_first_answer(
    ingest: httpx.AsyncClient, runfold: Runfold
):
    run = await opened(ingest)
    batch = [note("1"), note("2")]

    first = await ingest.post(f"{run}/events", json=batch, headers=KEY)
    again = await ingest.post(f"{run}/events", json=batch, headers={"Idempotency-Key": "7d3f"})

    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert await outcomes(runfold, run) == ["accepted"] * 3


@pytest.mark.parametrize(
    ("route", "body"), [("events", note()), ("events", [note(), note()]), ("status", {"action": "pause"})]
)
async def test_another_process_appends_copies_that_do_not_count(
    ingest: httpx.AsyncClient, elsewhere: httpx.AsyncClient, runfold: Runfold, route: str, body: Any
):
    run = await opened(ingest)

    first = await ingest.post(f"{run}/{route}", json=body, headers=KEY)
    again = await elsewhere.post(f"{run}/{route}", json=body, headers=KEY)

    count = len(first.json().get("positions", "1"))
    assert (first.status_code, again.status_code) == (201, 201)
    assert event_ids(first) == event_ids(again)
    assert await outcomes(runfold, run) == ["accepted"] * (1 + count) + ["duplicate"] * count


async def test_the_end_of_a_run_may_be_sent_again_to_another_process(
    ingest: httpx.AsyncClient, elsewhere: httpx.AsyncClient, runfold: Runfold
):
    run = await opened(ingest)
    await elsewhere.post(f"{run}/events", json=note(), headers=KEY)
    first = await ingest.post(f"{run}/status", json={"action": "complete"}, headers=KEY)
    await elsewhere.post(f"{run}/events", json={"type": "run_canceled", "data": {}})

    again = await elsewhere.post(f"{run}/status", json={"action": "complete"}, headers=KEY)
    other = await elsewhere.post(f"{run}/events", json=note(), headers={"Idempotency-Key": "other"})

    assert (again.status_code, again.json()) == (201, first.json())
    assert other.status_code == 409
    assert await outcomes(runfold, run) == ["accepted"] * 3 + ["rejected"]


async def test_a_key_decides_which_run_is_opened(ingest: httpx.AsyncClient, elsewhere: httpx.AsyncClient):
    request = {"agent_id": "a", "labels": {"k": "v"}}

    first = await ingest.post("/v1/runs", json=request, headers=KEY)
    again = await ingest.post("/v1/runs", json=request, headers=KEY)
    there = await elsewhere.post("/v1/runs", json=request, headers=KEY)
    other = await ingest.post("/v1/runs", json=request, headers={"Idempotency-Key": "other"})

    assert (first.status_code, again.status_code, there.status_code, other.status_code) == (
        201,
        201,
        200,
        201,
    )
    assert first.json() == again.json() == there.json()
    assert other.json()["run_id"] != first.json()["run_id"]


async def test_a_key_with_another_body_is_refused(ingest: httpx.AsyncClient):
    run = await opened(ingest)
    await ingest.post(f"{run}/events", json=note("1"), headers=KEY)

    refused = await ingest.post(f"{run}/events", json=note("2"), headers=KEY)

    assert refused.status_code == 422
    assert refused.json()["type"] == "urn:runfold:problem:IdempotencyKeyReused"


async def test_a_key_whose_first_request_is_on_its_way_is_a_conflict(
    ingest: httpx.AsyncClient, runfold: Runfold
):
    run = await opened(ingest)

    responses = await asyncio.gather(
        *(ingest.post(f"{run}/events", json=note(), headers=KEY) for _ in range(3))
    )

    assert sorted(response.status_code for response in responses) == [201, 409, 409]
    assert await outcomes(runfold, run) == ["accepted"] * 2


async def test_a_request_that_was_refused_may_be_corrected_under_its_key(ingest: httpx.AsyncClient):
    run = await opened(ingest)

    wrong = await ingest.post(f"{run}/events", json=note(event_id="x"), headers=KEY)
    right = await ingest.post(f"{run}/events", json=note(), headers=KEY)

    assert (wrong.status_code, right.status_code) == (422, 201)


@pytest.mark.parametrize("key", ["", '""', "k" * 256])
async def test_a_key_that_is_none_is_a_bad_request(ingest: httpx.AsyncClient, key: str):
    response = await ingest.post("/v1/runs", json={"agent_id": "a"}, headers={"Idempotency-Key": key})

    assert response.status_code == 400


def event_ids(response: httpx.Response) -> list[str]:
    positions = response.json().get("positions", [response.json()])
    return [position["event_id"] for position in positions]
