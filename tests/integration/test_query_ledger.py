"""Reading ledgers over HTTP: from both places, as of any moment, with new messages, checked, and
large.
"""

import json
import random
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.querying import Projected, query

from runfold import AssistantMessage, Message, Run, SystemMessage, Thinking, ToolCall, ToolResult, UserMessage
from runfold.query import ledger_reader
from runfold.query.faults import Rules, Validation
from runfold.settings import Settings
from runfold_projections.ledger import build_messages_from_events
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AnyEvent,
    EventAmended,
)
from runfold_schemas.messages import TextPart, ToolResultPart, ToolUsePart
from runfold_schemas.sessions import FrameworkEvent

BIG = 123456789012345678901234567890


def exchange(number: int) -> list[Data]:
    """A turn with a tool call: user, thinking, text, call, result, answer."""
    return [
        UserMessage(message=f"question {number}"),
        Thinking(text="hm", signature="sig", final=True),
        AssistantMessage(message="Let me look."),
        ToolCall(tool_call_id="call", tool_name="look", payload={"number": BIG + number}),
        ToolResult(tool_call_id="call", tool_name="look", result=[number]),
        AssistantMessage(message=f"answer {number}"),
    ]


def said_within_a_framework(chance: random.Random) -> Data:
    """An event that stands as several, whose calls and results cross other events."""
    parts: list[dict[str, Any]] = [
        {"text": "hm"},
        {"functionCall": {"id": chance.choice("xyz"), "name": "t", "args": {}}},
        {"functionCall": {"id": chance.choice("xyz"), "name": "t", "args": {}}},
        {"functionResponse": {"id": chance.choice("xyzn"), "name": "t", "response": {"at": chance.random()}}},
        {"functionResponse": {"id": chance.choice("xyzn"), "name": "t", "response": {"at": chance.random()}}},
    ]
    content = {"role": chance.choice(["user", "model"]), "parts": chance.sample(parts, chance.randrange(6))}
    return FrameworkEvent(framework="adk", body={"author": "agent", "content": content})


async def ledger(client: httpx.AsyncClient, run: Run, **params: Any) -> list[Message]:
    return [
        Message.model_validate(message) for message in (await answered(client, run, **params))["messages"]
    ]


async def answered(client: httpx.AsyncClient, run: Run, **params: Any) -> Any:
    response = await client.get(f"/v1/runs/{run.run_id}/ledger", params=params)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("source", ["snapshot", "log"])
async def test_the_ledger_is_that_of_the_log(client: httpx.AsyncClient, stored: Projected, source: str):
    run = await stored.run(SystemMessage(message="Be kind."), *exchange(1), *exchange(2))

    answer = await answered(client, run, source=source)

    assert [Message.model_validate(message) for message in answer["messages"]] == await run.ledger()
    assert answer["run_id"] == run.run_id
    assert answer["next_offset"] == 14
    assert answer["messages"][2]["parts"][2]["input"] == {"number": BIG + 1}


async def test_the_ledger_is_the_same_from_pages_of_one_event_each(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run()
    for data in (*exchange(1), *exchange(2)):
        await stored.publish(run, data)

    assert await ledger(client, run) == await run.ledger()


@pytest.mark.parametrize("source", ["snapshot", "log"])
async def test_a_large_ledger_is_streamed_and_its_late_results_are_found(
    client: httpx.AsyncClient, stored: Projected, source: str
):
    text = "x" * 20_000
    run = await stored.run()
    for number in range(10):
        said = [AssistantMessage(message=f"{number}.{part} {text}") for part in range(20)]
        called = ToolCall(tool_call_id=str(number), tool_name="slow", payload=number)
        await stored.publish(
            run, UserMessage(message="?"), called, UserMessage(message="still there?"), *said
        )
    # Every result comes long after its message was closed.
    await stored.publish(
        run, *(ToolResult(tool_call_id=str(number), result=[number]) for number in range(10))
    )

    async with client.stream("GET", f"/v1/runs/{run.run_id}/ledger", params={"source": source}) as response:
        body = b"".join([chunk async for chunk in response.aiter_raw()])

    assert "content-length" not in response.headers
    assert [Message.model_validate(one) for one in json.loads(body)["messages"]] == await run.ledger()


async def test_a_prefix_is_the_run_as_it_was(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run()
    last = [await stored.publish(run, *exchange(number), turn_id=f"t-{number}") for number in range(3)]
    at_offset = await ledger(client, run, as_of_offset=last[1])

    assert len(at_offset) == 8
    assert await ledger(client, run, as_of_turn="t-1") == at_offset
    assert await ledger(client, run, before_turn="t-2") == at_offset
    assert await ledger(client, run, before_turn="t-0") == []
    assert len(await ledger(client, run, as_of_turn="t-2")) == 12
    assert await ledger(client, run, as_of_turn="t-1", source="log") == at_offset
    assert (await answered(client, run, before_turn="t-2"))["next_offset"] == last[1] + 1


async def test_a_time_shows_what_had_been_appended_by_then(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run()
    await stored.publish(run, UserMessage(message="1"))
    later = await stored.publish(run, UserMessage(message="2"))
    page = await client.get(f"/v1/runs/{run.run_id}/events", params={"first_offset": later})
    appended = page.json()["events"][0]["log_time"]

    def at(milliseconds: int) -> str:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")

    for source in ("snapshot", "log"):
        assert len(await ledger(client, run, as_of_time=at(appended), source=source)) == 2
        assert len(await ledger(client, run, as_of_time=at(appended - 1), source=source)) < 2
        assert await ledger(client, run, as_of_time="2020-01-01T00:00:00Z", source=source) == []


async def test_an_unknown_turn_is_named(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run(UserMessage(message="hi"), turn_id="t-1")

    for parameter in ("as_of_turn", "before_turn"):
        response = await client.get(f"/v1/runs/{run.run_id}/ledger", params={parameter: "t-9"})

        assert response.status_code == 422
        assert response.json()["field"] == parameter


async def test_what_was_published_is_in_the_ledger_at_once(client: httpx.AsyncClient, stored: Projected):
    run = await stored.runfold.open_run(agent_id="a")

    for number in range(10):
        position = await run.publish(UserMessage(message=str(number)))
        assert len(await ledger(client, run, min_offset=position.offset)) == number + 1


@pytest.mark.parametrize("events_at_once_bytes", [10_000_000, 5_000, 300])
async def test_a_ledger_that_grows_is_at_each_step_that_of_the_log(
    client: httpx.AsyncClient,
    stored: Projected,
    monkeypatch: pytest.MonkeyPatch,
    chance: random.Random,
    events_at_once_bytes: int,
):
    monkeypatch.setattr(ledger_reader, "HELD_BYTES_MAX", events_at_once_bytes)
    run = await stored.run()
    kinds = [
        lambda: UserMessage(message=chance.choice(["", "hello"])),
        lambda: AssistantMessage(message=chance.choice(["a", "b"])),
        lambda: ToolCall(tool_call_id=chance.choice("xyz"), tool_name="t", payload=chance.random()),
        lambda: ToolResult(tool_call_id=chance.choice("xyzn"), result=chance.random()),
        lambda: said_within_a_framework(chance),
        lambda: FrameworkEvent(framework="openai-agents", body={"role": "assistant", "content": "c"}),
    ]
    events: list[AnyEvent] = []
    for _ in range(80):
        data = [chance.choice(kinds)() for _ in range(chance.randrange(1, 4))]
        ids = [chance.choice([None, None, "m-1", "m-2"]) for _ in data]
        new = [run.event(one, message_id=message_id) for one, message_id in zip(data, ids, strict=True)]
        events += new
        await run.publish_batch(new)

        assert await ledger(client, run, min_offset=len(events)) == build_messages_from_events(events)
    half = len(events) // 2
    assert await ledger(client, run, as_of_offset=half) == build_messages_from_events(events[:half])


@pytest.mark.parametrize("events_at_once_bytes", [10_000_000, 300])
async def test_an_amended_ledger_is_that_of_the_log_however_it_is_read(
    client: httpx.AsyncClient,
    stored: Projected,
    monkeypatch: pytest.MonkeyPatch,
    chance: random.Random,
    events_at_once_bytes: int,
):
    monkeypatch.setattr(ledger_reader, "HELD_BYTES_MAX", events_at_once_bytes)
    run = await stored.run()
    for _ in range(10):
        said = [said_within_a_framework(chance) for _ in range(10)]
        await stored.publish(run, *said, UserMessage(message="?"))
        amended = EventAmended(offset=chance.randrange(10), reason="popped")

        end = await stored.publish(run, amended)

        assert await ledger(client, run, min_offset=end) == await run.ledger()


async def test_the_log_completes_what_is_not_projected_yet(settings: Settings, stored: Projected):
    run = await stored.run(*exchange(1))
    empty = settings.model_copy(update={"database": f"{settings.database}-empty"})

    async with query(empty) as client:
        for params in ({}, {"min_offset": 6}):
            response = await client.get(f"/v1/runs/{run.run_id}/ledger", params=params)

            assert response.headers["runfold-source"] == "log"
            assert len(response.json()["messages"]) == 4


async def test_new_messages_stand_behind_the_ledger_and_are_checked_with_it(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run(UserMessage(message="hi"), ToolCall(tool_call_id="c", tool_name="t"))
    result = Message(role="user", parts=(ToolResultPart(tool_use_id="c", content=BIG),))
    path = f"/v1/runs/{run.run_id}/ledger"

    alone = (await client.get(path, params={"validate": "strict"})).json()
    both = (
        await client.post(path, params={"validate": "strict"}, json={"messages": [result.model_dump()]})
    ).json()
    wrong = await client.post(path, json={"messages": [{"role": "robot", "parts": []}]})
    call = {"type": "tool_use", "id": "c", "name": "t", "input": float("nan")}
    no_json = await client.post(
        path,
        content=json.dumps({"messages": [{"role": "assistant", "parts": [call]}]}),
        headers={"Content-Type": "application/json"},
    )

    assert [fault["rule"] for fault in alone["faults"]] == ["call-has-result"]
    assert both["faults"] == []
    assert Message.model_validate(both["messages"][-1]) == result
    assert len(await ledger(client, run)) == 2
    assert wrong.status_code == 422
    assert wrong.json()["field"] == "messages.0.role"
    assert no_json.status_code == 422
    assert no_json.json()["field"] == "messages"


async def test_bedrock_asks_for_thinking_first_only_with_thinking_on(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run(
        UserMessage(message="hi"),
        ToolCall(tool_call_id="c", tool_name="t", payload={}),
        ToolResult(tool_call_id="c"),
    )

    on = await answered(client, run, validate="bedrock", thinking=True)
    off = await answered(client, run, validate="bedrock")

    assert on["faults"] == [
        {
            "rule": "thinking-first",
            "text": "bedrock: assistant message with tool_use must start with thinking",
            "message_index": 1,
        }
    ]
    assert off["faults"] == []
    assert "faults" not in await answered(client, run)


@pytest.mark.parametrize("rules", [Rules("strict", {}), Rules("bedrock", {"thinking": True})])
def test_messages_checked_in_a_stream_have_the_faults_of_the_whole(rules: Rules, chance: random.Random):
    parts = [
        TextPart(text="t"),
        *(ToolUsePart(id=one, name="n") for one in ("a", "b", "")),
        *(ToolResultPart(tool_use_id=one) for one in ("a", "b", "c", "")),
    ]
    for _ in range(300):
        messages = [
            Message(
                role=chance.choice(["user", "assistant", "system"]), parts=tuple(chance.choices(parts, k=3))
            )
            for _ in range(chance.randrange(12))
        ]
        validation = Validation(rules)

        for message in messages:
            validation.feed([message])

        assert validation.finish() == rules.faults(messages)
