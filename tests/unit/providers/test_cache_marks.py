"""Marks of the prompt cache: Anthropic's `cache_control` and Bedrock's `cachePoint`."""

from typing import Any, Unpack

import pytest
from tests.anthropic_messages import assistant, check, user
from tests.bedrock import check as check_bedrock
from tests.builders import events
from tests.ledgers import PNG

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import EncodeOptions, encode
from runfold_schemas.events import SystemMessage, ToolCall, ToolResult, UserMessage
from runfold_schemas.messages import Message, Provider, TextPart, ToolResultPart, ToolUsePart

EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
POINT = {"type": "default"}
MARK: dict[str, Any] = {"anthropic": {"cache_control": EPHEMERAL}, "bedrock": {"cachePoint": POINT}}
HERE = {"cachePoint": POINT}
NAMES: dict[Provider, str] = {"anthropic": "cache_control", "bedrock": "cachePoint"}


def conversation() -> list[Message]:
    """A conversation with a mark on everything that can have one, from its events."""
    return build_messages_from_events(
        events(
            SystemMessage(message="be kind", provider_data=MARK),
            UserMessage(message="see", parts=(TextPart(text="see", provider_data=MARK),)),
            ToolCall(tool_call_id="1", tool_name="look", payload={}, provider_data=MARK),
            ToolResult(tool_call_id="1", result="seen", provider_data=MARK),
        )
    )


def test_anthropic_gets_marks_on_instructions_texts_calls_and_results():
    body = encode(conversation(), "anthropic").body

    check(body)
    blocks = [*body["system"], *(block for message in body["messages"] for block in message["content"])]
    assert [block["cache_control"] for block in blocks] == [EPHEMERAL] * 4


def test_bedrock_gets_a_point_behind_instructions_texts_calls_and_results():
    body = encode(conversation(), "bedrock").body

    check_bedrock(body)
    call = {"toolUse": {"toolUseId": "1", "name": "look", "input": {}}}
    result = {"toolResult": {"toolUseId": "1", "content": [{"text": "seen"}]}}
    assert body["system"] == [{"text": "be kind"}, HERE]
    assert [message["content"] for message in body["messages"]] == [
        [{"text": "see"}, HERE],
        [call, HERE],
        [result, HERE],
    ]


def test_other_providers_get_no_marks():
    for provider in ("openai-chat", "openai-responses", "gemini"):
        assert "cache" not in str(encode(conversation(), provider).body)


def test_the_newest_marks_remain_because_a_request_has_four_at_most():
    ledger = [
        Message(role="system", parts=(TextPart(text="be kind", provider_data=MARK),)),
        *(message for number in range(4) for message in _turn(number)),
    ]

    anthropic, bedrock = encode(ledger, "anthropic").body, encode(ledger, "bedrock").body

    check(anthropic)
    check_bedrock(bedrock)
    marked = [
        index
        for index, message in enumerate(anthropic["messages"])
        if "cache_control" in str(message["content"])
    ]
    assert ("cache_control" in anthropic["system"][0], marked) == (True, [2, 4, 6])
    points = [index for index, message in enumerate(bedrock["messages"]) if HERE in message["content"]]
    assert (HERE in bedrock["system"], points) == (True, [2, 4, 6])


def test_marks_within_results_count_too():
    pictures = tuple(PNG.model_copy(update={"provider_data": MARK}) for _ in range(6))
    ledger = [
        assistant(ToolUsePart(id="1", name="look", input={})),
        user(ToolResultPart(tool_use_id="1", content="", attachments=pictures)),
    ]

    content = encode(ledger, "anthropic").body["messages"][1]["content"][0]["content"]

    assert ["cache_control" in block for block in content] == [False, False, True, True, True, True]


def test_points_of_bedrock_do_not_stand_between_results():
    ledger = [
        assistant(*(ToolUsePart(id=name, name="look", input={}) for name in "123")),
        user(*(ToolResultPart(tool_use_id=name, content="seen", provider_data=MARK) for name in "12")),
        user(ToolResultPart(tool_use_id="3", content="seen"), TextPart(text="now", provider_data=MARK)),
    ]

    body = encode(ledger, "bedrock").body

    check_bedrock(body)
    kinds = [next(iter(block)) for block in body["messages"][1]["content"]]
    assert kinds == ["toolResult", "toolResult", "toolResult", "cachePoint", "text", "cachePoint"]


def _turn(number: int) -> list[Message]:
    return [
        user(TextPart(text=f"question {number}", provider_data=MARK)),
        assistant(TextPart(text=f"answer {number}")),
    ]


def marks(provider: Provider, messages: list[Message], **options: Unpack[EncodeOptions]) -> int:
    return str(encode(messages, provider, **options).body).count(NAMES[provider])


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"])
def test_marks_of_the_caller_leave_fewer_to_the_messages(provider: Provider):
    assert [marks(provider, conversation(), cache_marks=number) for number in range(5)] == [4, 3, 2, 1, 0]
    body = encode(conversation(), provider, cache_marks=3).body
    assert NAMES[provider] in str(body["system"]), "the instructions come before the messages"


@pytest.mark.parametrize("provider", ["anthropic", "bedrock"])
def test_instructions_alone_have_four_marks_at_most(provider: Provider):
    instructions = [TextPart(text=f"rule {number}", provider_data=MARK) for number in range(6)]
    ledger = [Message(role="system", parts=tuple(instructions)), *conversation()[1:]]

    assert marks(provider, ledger) == 4
    system = encode(ledger, provider).body["system"]
    assert NAMES[provider] in str(system[-1])
