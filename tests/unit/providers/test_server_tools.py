"""Calls of the provider's own tools: the request has a call with its result, or neither."""

from typing import Any

import pytest
from tests.anthropic_messages import assistant, user

from runfold_projections.providers import encode, validate
from runfold_schemas.messages import (
    Message,
    OpaquePart,
    Part,
    Provider,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
CODE = {"type": "server_tool_use", "id": "s2", "name": "code_execution", "input": {"code": "look()"}}
RAN = {"type": "code_execution_tool_result", "tool_use_id": "s2", "content": {}}
REMOTE = {"type": "mcp_tool_use", "id": "m1", "name": "a", "server_name": "b", "input": {}}
TEXT = {"type": "text", "text": "wait"}
NOVA = {"toolUse": {"toolUseId": "n1", "name": "nova_grounding", "input": {}, "type": "server_tool_use"}}
NOVA_FOUND = {"toolResult": {"toolUseId": "n1", "content": [{"json": {"found": 1}}], "type": "nova_result"}}


def opaque(block: Any, provider: Provider = "anthropic") -> OpaquePart:
    return OpaquePart(provider=provider, content=block)


SAID = TextPart(text="wait")
LOOK = ToolUsePart(id="1", name="look", input={})
BY_CODE = ToolUsePart(
    id="1",
    name="look",
    input={},
    provider_data={"anthropic": {"caller": {"type": "code_execution_20260120", "tool_id": "s2"}}},
)
RESULT = ToolResultPart(tool_use_id="1", content="seen")
QUESTION = user(TextPart(text="how is it?"))


@pytest.mark.parametrize(
    "conversation",
    [
        pytest.param([assistant(SAID, opaque(SEARCH))], id="the turn was paused"),
        pytest.param([assistant(opaque(SEARCH)), assistant(opaque(FOUND), SAID), QUESTION], id="and resumed"),
        pytest.param([assistant(opaque(SEARCH), LOOK), user(RESULT)], id="a tool of the client is first"),
        pytest.param(
            [assistant(opaque(SEARCH), LOOK), user(RESULT), assistant(opaque(FOUND)), QUESTION],
            id="and the result follows it",
        ),
        pytest.param(
            [
                assistant(opaque(CODE), BY_CODE),
                user(RESULT),
                assistant(BY_CODE.model_copy(update={"id": "2"})),
                user(RESULT.model_copy(update={"tool_use_id": "2"})),
                assistant(opaque(RAN), SAID),
                QUESTION,
            ],
            id="code calls tools of the client twice",
        ),
    ],
)
def test_a_call_whose_result_may_still_come_stays(conversation: list[Message]):
    encoded = encode([QUESTION, *conversation], "anthropic")

    kept = [block for message in encoded.body["messages"] for block in message["content"]]
    blocks = [part.content for message in conversation for part in message.parts if part.type == "opaque"]
    assert [block for block in kept if block in blocks] == blocks
    assert encoded.dropped == []


@pytest.mark.parametrize("block", [SEARCH, CODE, REMOTE])
def test_a_call_that_was_cut_off_from_its_result_is_left_out_and_reported(block: Any):
    ledger = [QUESTION, assistant(SAID, opaque(block)), QUESTION]

    encoded = encode(ledger, "anthropic")

    assert encoded.body["messages"][1]["content"] == [TEXT]
    (fault,) = encoded.dropped
    assert (fault.rule, fault.message_index, fault.part_index) == ("server-call-has-result", 1, 1)
    assert [fault.rule for fault in validate(ledger, "anthropic")] == ["server-call-has-result"]


def test_a_call_that_the_resumed_turn_does_not_answer_is_left_out():
    ledger = [QUESTION, assistant(opaque(SEARCH), LOOK), user(RESULT), assistant(SAID)]

    encoded = encode(ledger, "anthropic")

    assert [block["type"] for block in encoded.body["messages"][1]["content"]] == ["tool_use"]
    assert [fault.rule for fault in encoded.dropped] == ["server-call-has-result"]


def test_a_result_without_its_call_is_left_out_and_reported():
    encoded = encode([QUESTION, assistant(opaque(FOUND), SAID)], "anthropic")

    assert encoded.body["messages"][1]["content"] == [TEXT]
    assert [fault.rule for fault in encoded.dropped] == ["server-result-has-call"]


def test_a_call_of_code_that_is_left_out_becomes_a_direct_call():
    ledger = [QUESTION, assistant(opaque(CODE), BY_CODE), user(RESULT), QUESTION]

    encoded = encode(ledger, "anthropic")

    assert encoded.body["messages"][1]["content"] == [
        {"type": "tool_use", "id": "1", "name": "look", "input": {}, "caller": {"type": "direct"}}
    ]


def test_bedrock_has_the_same_rule():
    call, result = opaque(NOVA, "bedrock"), opaque(NOVA_FOUND, "bedrock")
    parts: list[tuple[Part, ...]] = [(SAID, call), (SAID, call, result), (SAID, result)]

    bodies = [encode([QUESTION, assistant(*said), QUESTION], "bedrock").body for said in parts]

    said = [body["messages"][1]["content"] for body in bodies]
    assert said == [[{"text": "wait"}], [{"text": "wait"}, NOVA, NOVA_FOUND], [{"text": "wait"}]]
    paused = encode([QUESTION, assistant(SAID, call)], "bedrock").body["messages"]
    assert paused[1]["content"] == [{"text": "wait"}, NOVA]
