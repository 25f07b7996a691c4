"""Models' responses over HTTP: recorded as they came, and ledgers mended."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.ingesting import opened
from tests.processes import until

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


CHUNKS = [
    {"object": "chat.completion.chunk", "id": "c-1", "choices": [{"index": 0, "delta": delta}]}
    for delta in ({"content": "Bonjour "}, {"content": "de Köln 🙂"})
] + [
    {
        "object": "chat.completion.chunk",
        "choices": [
            {
                "index": 0,
                "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "trains_v2"}}]},
                "finish_reason": "tool_calls",
            }
        ],
    }
]
STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


def event_stream(*chunks: Any, end: str = "\r\n\r\n") -> bytes:
    events = [f"event: chunk\r\ndata: {json.dumps(chunk, ensure_ascii=False)}{end}" for chunk in chunks]
    return (": the model thinks\n\n" + "".join(events) + "data: [DONE]").encode()


async def in_pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), size):
        yield body[begin : begin + size]


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
    assert {one.message_id for one in recorded} == {answer.json()["message_id"]}
    assert recorded[-1].data.response_id == "chatcmpl-1"
    assert answer.json()["tool_calls"] == [{"tool_call_id": "c", "tool_name": "trains"}]
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


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_stream_is_recorded_as_it_is_forwarded(
    ingest: httpx.AsyncClient, runfold: Runfold, size: int
):
    run = await opened(ingest)
    path = f"{run}/responses?tool_name=trains_v2:trains&maker=deepseek"

    answer = await ingest.post(path, content=in_pieces(event_stream(*CHUNKS), size), headers=STREAM)

    assert answer.status_code == 201, answer.text
    recorded = (await events_of(runfold, run))[1:]
    assert "".join(one.data.message for one in recorded if one.type == "assistant_message") == (
        "Bonjour de Köln 🙂"
    )
    assert {one.maker for one in recorded} == {"deepseek"}
    assert answer.json()["tool_calls"] == [{"tool_call_id": "c", "tool_name": "trains"}]
    assert len(answer.json()["positions"]) == len(recorded)
    assert recorded[-1].data.finished


async def test_a_stream_is_visible_while_it_arrives_and_kept_when_it_breaks_off(
    ingest: httpx.AsyncClient, runfold: Runfold
):
    run = await opened(ingest)

    async def breaking() -> AsyncIterator[bytes]:
        yield event_stream(CHUNKS[0]).removesuffix(b"data: [DONE]")
        await asyncio.sleep(0.4)
        yield event_stream(CHUNKS[1]).removesuffix(b"data: [DONE]")
        await until(has_begun, what="the first words")
        raise ConnectionError

    async def has_begun() -> bool:
        return len(await events_of(runfold, run)) > 1

    with pytest.raises(ConnectionError):
        await ingest.post(f"{run}/responses", content=breaking(), headers=STREAM)

    last = (await events_of(runfold, run))[-1]
    assert (last.type, last.data.finished) == ("response_recorded", False)


async def test_a_stream_that_is_sent_again_counts_once(
    ingest: httpx.AsyncClient, elsewhere: httpx.AsyncClient, runfold: Runfold
):
    run = await opened(ingest)
    headers = {**STREAM, "Idempotency-Key": "step-1"}
    answers = [
        await service.post(f"{run}/responses", content=event_stream(*CHUNKS), headers=headers)
        for service in (ingest, ingest, elsewhere)
    ]

    assert [answer.status_code for answer in answers] == [201] * 3
    assert [one.type for one in await events_of(runfold, run)] == [
        "run_opened",
        "assistant_message",
        "tool_call",
        "response_recorded",
    ]


async def test_a_broken_chunk_and_a_wrong_name_are_named(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)
    body = event_stream(CHUNKS[0]).removesuffix(b"data: [DONE]") + b"data: {nope\n\n"

    broken = await ingest.post(f"{run}/responses", content=body, headers=STREAM)
    wrong = await ingest.post(f"{run}/responses?tool_name=trains", json=RESPONSE)
    mistaken = await ingest.post(f"{run}/responses?provider=anthropic", json=RESPONSE)

    assert broken.status_code == 422
    assert "event 2 of the stream has broken JSON" in broken.json()["detail"]
    assert "the events before it are recorded" in broken.json()["detail"]
    assert (await events_of(runfold, run))[-1].data.finished is False
    assert (wrong.status_code, wrong.json()["field"]) == (422, "tool_name")
    assert (mistaken.status_code, mistaken.json()["field"]) == (422, "provider")


@pytest.mark.parametrize("body", [b"", b": the model thinks\n\n", b"data: [DONE]\n\n"])
async def test_a_stream_without_a_chunk_is_refused(ingest: httpx.AsyncClient, runfold: Runfold, body: bytes):
    run = await opened(ingest)

    answer = await ingest.post(f"{run}/responses", content=body, headers=STREAM)

    assert (answer.status_code, "no event with `data:`" in answer.json()["detail"]) == (422, True)
    assert [one.type for one in await events_of(runfold, run)] == ["run_opened"]


async def test_a_response_may_come_late(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)
    await ingest.post(f"{run}/status", json={"action": "complete"})

    refused = await ingest.post(f"{run}/responses", json=RESPONSE)
    late = await ingest.post(f"{run}/responses?late=true&model=m-1", json=RESPONSE)

    assert (refused.status_code, late.status_code) == (409, 201)
    assert (await events_of(runfold, run))[-1].type == "response_recorded"


async def test_a_retry_of_a_stream_that_broke_off_is_whole(ingest: httpx.AsyncClient, runfold: Runfold):
    run = await opened(ingest)
    headers = {**STREAM, "Idempotency-Key": "step-1"}
    half = event_stream(CHUNKS[0]).removesuffix(b"data: [DONE]") + b"data: {nope"

    broken = await ingest.post(f"{run}/responses", content=half, headers=headers)
    whole = await ingest.post(f"{run}/responses", content=event_stream(*CHUNKS), headers=headers)

    assert (broken.status_code, whole.status_code) == (422, 201)
    recorded = [one for one in await events_of(runfold, run) if one.message_id == whole.json()["message_id"]]
    assert [one.type for one in recorded] == ["assistant_message", "tool_call", "response_recorded"]
    assert recorded[0].data.message == "Bonjour de Köln 🙂"
