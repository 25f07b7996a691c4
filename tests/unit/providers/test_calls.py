"""Calls of tools: without a payload, with members that only their maker has, and with equal ids."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.builders import event
from tests.openai_ledgers import ledger_of

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode, recorder
from runfold_schemas.events import ToolCall, ToolResult, UserMessage
from runfold_schemas.messages import PROVIDERS, Message, Provider

SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


def function(tool_id: str = "a", arguments: str = "{}", **members: Any) -> dict[str, Any]:
    return {
        "id": tool_id,
        "type": "function",
        "function": {"name": "look", "arguments": arguments},
        **members,
    }


def response(*calls: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    return {"id": "c-1", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def chunk(*calls: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": finish_reason}
    return {"id": "c-1", "choices": [choice]}


def streamed(*chunks: Any) -> list[Message]:
    recording = recorder("openai-chat")
    events = [data for each in chunks for data in recording.feed(each)]
    return ledger_of([*events, *recording.blocks.end()], "openai-chat")


def calls_again(ledger: list[Message], provider: Provider = "openai-chat") -> Any:
    return encode(ledger, provider).body["messages"][0]["tool_calls"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_call_without_a_payload_has_no_arguments(provider: Provider):
    def request(call: ToolCall) -> Any:
        said = [UserMessage(message="Hi"), call, ToolResult(tool_call_id="a", result="ok")]
        return encode(build_messages_from_events([event(data) for data in said]), provider).body

    assert request(ToolCall(tool_call_id="a", tool_name="look")) == request(
        ToolCall(tool_call_id="a", tool_name="look", payload={})
    )


def test_arguments_that_are_null_go_back_as_null():
    ledger = ledger_of(recorder("openai-chat").response(response(function(arguments="null"))), "openai-chat")

    assert calls_again(ledger) == [function(arguments="null")]


@pytest.mark.parametrize("as_object", [False, True])
def test_members_that_openai_does_not_have_go_back_with_their_call(as_object: bool):
    made_by_google = function(**SIGNED)
    made_by_litellm = function("b", provider_specific_fields={"thought_signature": "c2ln"})
    made_by_litellm["function"]["provider_specific_fields"] = {"thought_signature": "c2ln"}
    answer: Any = response(made_by_google, made_by_litellm)
    answer = ChatCompletion.construct(**answer) if as_object else answer

    ledger = ledger_of(recorder("openai-chat").response(answer), "openai-chat")

    assert calls_again(ledger) == [made_by_google, made_by_litellm]


@pytest.mark.parametrize("as_object", [False, True])
def test_members_of_a_streamed_call_go_back_with_it(as_object: bool):
    def piece(index: int, arguments: str, **members: Any) -> dict[str, Any]:
        return {"index": index, "function": {"arguments": arguments}, **members}

    first = {"index": 0, **function("a", '{"n"', extra_content={"google": {}})}
    chunks: list[Any] = [
        chunk(first, {"index": 1, **function("b", "{")}),
        chunk(piece(0, ":1}", **SIGNED), piece(1, "}", extra_content=None)),
        chunk(finish_reason="tool_calls"),
    ]

    ledger = streamed(*([ChatCompletionChunk.construct(**each) for each in chunks] if as_object else chunks))

    assert calls_again(ledger) == [function("a", '{"n":1}', **SIGNED), function("b")]


def test_members_of_a_call_do_not_go_to_another_maker():
    said = recorder("openai-chat").response(response(function(**SIGNED)))
    recorded = [event(data, message_id="m", provider="openai-chat", maker="google") for data in said]
    ledger = build_messages_from_events(recorded)

    (call,) = encode(ledger, "openai-chat", maker="groq").body["messages"][0]["tool_calls"]

    assert call == function()


def test_what_the_helpers_of_the_sdk_have_parsed_does_not_go_back():
    call = function(arguments='{"n":1}')
    call["function"]["parsed_arguments"] = {"n": 1}
    answer = response(call)
    answer["choices"][0]["message"]["parsed"] = {"city": "Oslo"}

    (message,) = encode(
        ledger_of(recorder("openai-chat").response(answer), "openai-chat"), "openai-chat"
    ).body["messages"]

    assert message == {"role": "assistant", "content": None, "tool_calls": [function(arguments='{"n":1}')]}


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk({"index": 0, **function(arguments='{"n":1}')}, {"index": 1, **function(arguments='{"n":2}')})],
        [
            chunk({"index": 0, **function(arguments='{"n":1}')}),
            chunk({"index": 1, **function(arguments='{"n":')}),
            chunk({"index": 1, "function": {"arguments": "2}"}}),
        ],
    ],
)
def test_calls_with_equal_ids_are_two_calls_with_ids_of_their_own_in_the_request(chunks: list[Any]):
    ledger = streamed(*chunks, chunk(finish_reason="tool_calls"))

    calls = calls_again(ledger)

    assert [call["id"] for call in calls] == ["a", "a-2"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"n": 1}, {"n": 2}]
