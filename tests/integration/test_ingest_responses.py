"""Models' responses over HTTP: recorded as they came, and ledgers mended."""

import httpx
from tests.ingesting import opened

from runfold import Runfold
from runfold_projections.ledger import build_messages_from_events
from runfold_projections.repair import INTERRUPTED

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


async def events_of(runfold: Runfold, run: str) -> list:
    return [one async for one in (await runfold.get_run(run.removeprefix("/v1/runs/"))).events()]


async def test_a_response_becomes_events_of_its_run(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)

    answer = await ingest.post(f"{run}/responses?turn_id=turn-1", json=RESPONSE)

    events = await events_of(runfold, run)
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


async def test_a_response_that_is_sent_again_counts_once(
    ingest: httpx.AsyncClient, elsewhere: httpx.AsyncClient, runfold: Runfold
):
    run = await opened(ingest)
    for service in (ingest, ingest, elsewhere):
        answer = await service.post(f"{run}/responses", json=RESPONSE, headers={"Idempotency-Key": "key"})
        assert answer.status_code == 201

    assert len(await events_of(runfold, run)) == 5


async def test_what_is_nobodys_response_is_refused_unless_somebody_is_named(
    ingest: httpx.AsyncClient, runfold: Runfold
):
    run = await opened(ingest)

    unknown = await ingest.post(f"{run}/responses", json={"text": "hi"})
    named = await ingest.post(f"{run}/responses?provider=anthropic", json={"text": "hi"})
    wrong = await ingest.post(f"{run}/responses?provider=nobody", json=RESPONSE)

    assert (unknown.status_code, unknown.json()["field"]) == (422, "provider")
    assert named.status_code == 201
    assert (wrong.status_code, wrong.json()["field"]) == (422, "provider")
    assert (await events_of(runfold, run))[-1].data.faults


async def test_a_ledger_is_mended_also_when_its_run_has_ended(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)
    await ingest.post(f"{run}/events", json={"type": "user_message", "data": {"message": "?"}})
    await ingest.post(f"{run}/responses", json=RESPONSE)
    await ingest.post(f"{run}/status", json={"action": "fail", "error": "the process died"})

    mended = await ingest.post(f"{run}/repair")
    again = await ingest.post(f"{run}/repair")

    last = build_messages_from_events(await events_of(runfold, run))[-1]
    assert (mended.status_code, len(mended.json()["offsets"])) == (200, 1)
    assert again.json()["offsets"] == []
    assert last.parts[0].content == {"error": INTERRUPTED}
