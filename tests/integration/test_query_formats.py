"""Ledgers over HTTP in every provider's form, validated by its rules, and mended where it would
refuse them.
"""

import httpx
import pytest
from tests.provider_types import check
from tests.querying import Projected

from runfold import AssistantMessage, EventAmended, Thinking, ToolCall, ToolResult, UserMessage
from runfold.query import ledger_reader, requests
from runfold.query.ledger_reader import HELD_BYTES_MAX
from runfold_projections.repair import INTERRUPTED
from runfold_schemas.events import StandIn
from runfold_schemas.messages import PROVIDERS
from runfold_schemas.sessions import FrameworkEvent

ASKED = UserMessage(message="Is there a train?")
CALLED = ToolCall(tool_call_id="c 1", tool_name="the trains", payload={"to": "Lyon"})
ANSWERED = ToolResult(tool_call_id="c 1", tool_name="the trains", result=["07:04"])
SAID = AssistantMessage(message="At 07:04.")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("source", ["snapshot", "log"])
async def test_a_ledger_is_a_request_that_the_provider_takes(
    client: httpx.AsyncClient, stored: Projected, provider: str, source: str
):
    run = await stored.run(ASKED, CALLED, ANSWERED, SAID)

    answer = await client.get(
        f"/v1/runs/{run.run_id}/ledger", params={"format": provider, "source": source, "validate": provider}
    )

    assert answer.status_code == 200
    assert answer.headers["runfold-source"] == source
    assert answer.json()["next_offset"] == 5
    assert answer.json()["faults"] == answer.json()["dropped"] == []
    assert "the trains" in answer.json()["tool_names"].values()
    check(provider, answer.json()["request"])


async def test_new_messages_of_the_caller_are_part_of_the_request(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run(ASKED, SAID)
    new = {"messages": [{"role": "user", "parts": [{"type": "text", "text": "Thanks."}]}]}

    answer = await client.post(f"/v1/runs/{run.run_id}/ledger", params={"format": "openai-chat"}, json=new)

    assert [one["role"] for one in answer.json()["request"]["messages"]] == ["user", "assistant", "user"]


async def test_what_a_provider_cannot_express_is_named_and_can_be_dropped(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run(ASKED, Thinking(text="Hm.", signature="s", final=True), SAID)
    path = f"/v1/runs/{run.run_id}/ledger?format=openai-chat"

    refused = await client.get(path)
    dropped = await client.get(f"{path}&lossy=drop")

    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert (refused.json()["message_index"], refused.json()["part_index"]) == (1, 0)
    assert [(one["message_index"], one["part_index"]) for one in dropped.json()["dropped"]] == [(1, 0)]


async def test_a_session_is_one_request(client: httpx.AsyncClient, stored: Projected):
    first = await stored.run(ASKED, SAID, session_id="both")
    second = await stored.run(ASKED, SAID, session_id="both")

    answer = (await client.get("/v1/sessions/both/ledger?format=anthropic&validate=anthropic")).json()

    assert len(answer["request"]["messages"]) == 4
    assert [one["run_id"] for one in answer["runs"]] == [first.run_id, second.run_id]
    assert answer["faults"] == []


async def test_a_run_that_is_too_long_to_be_held_is_refused(
    client: httpx.AsyncClient, stored: Projected, monkeypatch: pytest.MonkeyPatch
):
    run = await stored.run(ASKED, SAID)
    monkeypatch.setattr(requests, "EVENTS_MAX", 2)

    encoded = await client.get(f"/v1/runs/{run.run_id}/ledger?format=gemini")
    judged = await client.get(f"/v1/runs/{run.run_id}/ledger?validate=gemini")

    assert (encoded.status_code, encoded.json()["field"]) == (422, "format")
    assert (judged.status_code, judged.json()["field"]) == (422, "validate")


async def test_a_mended_run_is_accepted_from_wherever_it_is_read(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run(SAID, ASKED, CALLED)
    path = f"/v1/runs/{run.run_id}/ledger"
    before = (await client.get(f"{path}?validate=bedrock")).json()
    await run.fail("the process died")

    positions = await run.repair()
    await stored.holds(run, positions[-1].offset)

    after = (await client.get(f"{path}?validate=bedrock")).json()
    assert {fault["rule"] for fault in before["faults"]} == {
        "user-after-calls",
        "call-has-result",
        "first-message-user",
    }
    assert after["faults"] == []
    assert after["messages"][-1]["parts"][0]["content"] == {"error": INTERRUPTED}
    assert (await client.get(f"{path}?source=log")).json()["messages"] == after["messages"]
    assert (await client.get(path)).json()["messages"] == after["messages"]
    assert (await client.get(f"{path}?as_of_offset=3")).json()["messages"] == before["messages"]
    assert await run.repair() == []


@pytest.mark.parametrize("source", ["snapshot", "log"])
async def test_a_response_that_broke_off_is_a_fault_until_it_is_mended(
    client: httpx.AsyncClient, stored: Projected, source: str
):
    run = await stored.run(ASKED)
    position = await run.publish(SAID, provider="anthropic", message_id="m-1")
    await stored.holds(run, position.offset)
    path = f"/v1/runs/{run.run_id}/ledger?validate=anthropic&source={source}"

    as_messages = (await client.get(path)).json()["faults"]
    as_request = (await client.get(f"{path}&format=anthropic")).json()["faults"]
    named = (await client.get(f"{path}&model=claude-opus-5-5")).json()["faults"]
    direct = await run.faults("anthropic")
    positions = await run.repair()
    await stored.holds(run, positions[-1].offset)

    assert [fault["rule"] for fault in as_messages] == ["last-message-user"]
    assert as_messages == as_request == named
    assert [fault.rule for fault in direct] == ["last-message-user"]
    assert (await client.get(path)).json()["faults"] == []
    assert await run.faults("anthropic", model="claude-opus-5-5", thinking=True) == []


@pytest.mark.parametrize("held_max", [HELD_BYTES_MAX, 0])
async def test_all_ways_agree_on_a_response_whose_events_are_replaced(
    client: httpx.AsyncClient, stored: Projected, monkeypatch: pytest.MonkeyPatch, held_max: int
):
    """An amendment finishes no response that broke off, and a framework's event is a whole one."""
    monkeypatch.setattr(ledger_reader, "HELD_BYTES_MAX", held_max)
    said = {"provider": "anthropic", "message_id": "m-1"}
    amended = await stored.run(ASKED)
    cut = await amended.publish(SAID, **said)
    stands = StandIn(type="assistant_message", data={"message": "At 07."})
    last = await amended.publish(EventAmended(offset=cut.offset, stand_ins=(stands,), reason="shorter"))
    await stored.holds(amended, last.offset)
    answered = await stored.run(ASKED)
    await answered.publish(SAID, **said)
    body = {"role": "assistant", "content": "At 07:04."}
    last = await answered.publish(FrameworkEvent(framework="openai-agents", body=body))
    await stored.holds(answered, last.offset)

    for run, expected in ((amended, ["last-message-user"]), (answered, [])):
        path = f"/v1/runs/{run.run_id}/ledger?validate=anthropic"
        for query in ("", "&format=anthropic", "&format=anthropic&fit_tokens=10000"):
            faults = (await client.get(path + query)).json()["faults"]
            assert [fault["rule"] for fault in faults] == expected
        assert [fault.rule for fault in await run.faults("anthropic")] == expected
        assert len(await run.repair()) == len(expected)


async def test_a_models_rules_are_those_of_its_name(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run(ASKED, SAID)
    path = f"/v1/runs/{run.run_id}/ledger?validate=anthropic"

    older = (await client.get(f"{path}&model=claude-sonnet-4-5")).json()
    newer = (await client.get(f"{path}&model=claude-opus-5-5")).json()

    assert [fault["rule"] for fault in older["faults"]] == []
    assert [fault["rule"] for fault in newer["faults"]] == ["last-message-user"]
    assert (await client.get(path)).json()["faults"] == []


async def test_a_large_run_is_mended_as_a_small_one(client: httpx.AsyncClient, stored: Projected):
    text = "x" * 100_000
    filling = [AssistantMessage(message=text) for _ in range(HELD_BYTES_MAX // len(text) + 2)]
    run = await stored.run(SAID, *filling, UserMessage(message="?"), CALLED)

    positions = await run.repair()
    await stored.holds(run, positions[-1].offset)

    answer = (await client.get(f"/v1/runs/{run.run_id}/ledger?validate=anthropic")).json()
    assert answer["faults"] == []
    assert [message["role"] for message in answer["messages"]] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
