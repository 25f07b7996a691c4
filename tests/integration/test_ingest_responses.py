"""Models' responses over HTTP: recorded as they came, and ledgers mended."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
from tests.ingesting import opened, ready_ingest

from runfold import Runfold
from runfold_projections.ledger import build_messages_from_events
from runfold_projections.repair import INTERRUPTED

PREFIX = f"t{uuid4().hex[:8]}"
RESPONSE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "trains", "arguments": '{"to": "Lyon"}'},
                    }
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
}


@pytest.fixture(scope="module")
async def client(kafka: str) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_ingest(kafka=kafka, prefix=PREFIX) as client:
        yield client


async def events_of(kafka: str, run: str) -> list:
    async with Runfold(kafka, prefix=PREFIX) as runfold:
        return [one async for one in (await runfold.get_run(run.removeprefix("/v1/runs/"))).events()]


async def test_a_response_becomes_events_of_its_run(client: httpx.AsyncClient, kafka: str):
    run = await opened(client)

    answer = await client.post(f"{run}/responses?turn_id=turn-1", json=RESPONSE)

    events = await events_of(kafka, run)
    recorded = events[1:]
    assert answer.status_code == 201
    assert [one["offset"] for one in answer.json()["positions"]] == [1, 2, 3, 4]
    assert [one.type for one in recorded] == [
        "assistant_message",
        "tool_call",
        "token_usage",
        "response_recorded",
    ]
    assert {one.turn_id for one in recorded} == {"turn-1"}
    assert {one.message_id for one in recorded} == {"chatcmpl-1"}
    assert {one.provider for one in recorded} == {"openai-chat"}


async def test_a_response_that_is_sent_again_counts_once(client: httpx.AsyncClient, kafka: str):
    run = await opened(client)
    async with ready_ingest(kafka=kafka, prefix=PREFIX) as elsewhere:
        for service in (client, client, elsewhere):
            answer = await service.post(f"{run}/responses", json=RESPONSE, headers={"Idempotency-Key": "key"})
            assert answer.status_code == 201

    assert len(await events_of(kafka, run)) == 5


async def test_what_is_nobodys_response_is_refused_unless_somebody_is_named(
    client: httpx.AsyncClient, kafka: str
):
    run = await opened(client)

    unknown = await client.post(f"{run}/responses", json={"text": "hi"})
    named = await client.post(f"{run}/responses?provider=anthropic", json={"text": "hi"})
    wrong = await client.post(f"{run}/responses?provider=nobody", json=RESPONSE)

    assert (unknown.status_code, unknown.json()["field"]) == (422, "provider")
    assert named.status_code == 201
    assert (wrong.status_code, wrong.json()["field"]) == (422, "provider")
    assert (await events_of(kafka, run))[-1].data.faults


async def test_a_ledger_is_mended_also_when_its_run_has_ended(client: httpx.AsyncClient, kafka: str):
    run = await opened(client)
    await client.post(f"{run}/events", json={"type": "user_message", "data": {"message": "?"}})
    await client.post(f"{run}/responses", json=RESPONSE)
    await client.post(f"{run}/status", json={"action": "fail", "error": "the process died"})

    mended = await client.post(f"{run}/repair")
    again = await client.post(f"{run}/repair")

    last = build_messages_from_events(await events_of(kafka, run))[-1]
    assert (mended.status_code, len(mended.json()["offsets"])) == (200, 1)
    assert again.json()["offsets"] == []
    assert last.parts[0].content == {"error": INTERRUPTED}
