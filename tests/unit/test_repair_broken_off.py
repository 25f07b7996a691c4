"""After a response that broke off, the repaired ledger ends with words of the user, and holds no
half of a provider's own tool.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event, events
from tests.records import modest

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode, validate
from runfold_projections.repair import CONTINUE, repair
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    ProviderPart,
    ResponseRecorded,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import PROVIDERS, Message, Provider
from runfold_schemas.sessions import FrameworkEvent

ASKED = event(UserMessage(message="Is there a train?"))
AGAIN = UserMessage(message="And tomorrow?")
TEXT = AssistantMessage(message="There is ", content_index=0)
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "train"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
MCP = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "ask", "server_name": "s", "input": {}}
CODE = {
    "toolUse": {"toolUseId": "t-1", "name": "nova_code_interpreter", "type": "server_tool_use", "input": {}}
}
RAN = {"toolResult": {"toolUseId": "t-1", "type": "nova_code_interpreter_result", "content": [{"text": "1"}]}}


def recorded(*data: Data, provider: Provider = "anthropic", message_id: str = "m-1") -> list[AnyEvent]:
    return events(*data, provider=provider, message_id=message_id)


def mended(*log: AnyEvent) -> tuple[list[Data], list[Message]]:
    appended = repair(list(enumerate(log)))
    after = [*log, *events(*appended)]
    assert repair(list(enumerate(after))) == []
    return appended, build_messages_from_events(after)


@pytest.mark.parametrize("end", [[], [ResponseRecorded(finished=False)]])
def test_a_text_that_broke_off_is_followed_by_words_of_the_user(end: list[Data]):
    appended, messages = mended(ASKED, *recorded(TEXT, *end))

    assert appended == [UserMessage(message=CONTINUE)]
    assert [message.role for message in messages] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    "log",
    [
        [ASKED, *recorded(TEXT, ResponseRecorded(stop_reason="end_turn"))],
        [ASKED, *events(TEXT)],
        [ASKED, *recorded(TEXT), event(AGAIN)],
        [
            ASKED,
            event(FrameworkEvent(framework="openai-agents", body={"role": "assistant", "content": "Hi."})),
        ],
    ],
    ids=["finished", "published by hand", "the user went on", "a framework's answer"],
)
def test_an_answer_that_did_not_break_off_waits_for_the_user(log: list[AnyEvent]):
    assert repair(list(enumerate(log))) == []


def test_a_call_that_broke_off_gets_its_result_alone():
    call = ToolCall(tool_call_id="c", tool_name="trains", payload={})

    appended, messages = mended(ASKED, *recorded(TEXT, call, ResponseRecorded(finished=False)))

    assert [type(data) for data in appended] == [ToolResult]
    assert messages[-1].role == "user"


@pytest.mark.parametrize(
    ("provider", "block"), [("anthropic", SEARCH), ("anthropic", MCP), ("bedrock", CODE)]
)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_call_of_a_server_tool_that_broke_off_is_left_out(
    provider: Provider, block: dict[str, Any], goes_on: bool
):
    log = [ASKED, *recorded(TEXT, ProviderPart(content=block), provider=provider)]
    log += [event(AGAIN)] if goes_on else [event(ResponseRecorded(finished=False), message_id="m-1")]

    appended, messages = mended(*log)

    assert [type(data) for data in appended] == [EventAmended, *([] if goes_on else [UserMessage])]
    assert [part.type for message in messages for part in message.parts] == ["text", "text", "text"]
    assert validate(messages, provider) == []


def test_a_server_tools_call_alone_leaves_no_message():
    _, messages = mended(ASKED, *recorded(ProviderPart(content=SEARCH), ResponseRecorded(finished=False)))

    assert [message.role for message in messages] == ["user"]


@pytest.mark.parametrize(("provider", "blocks"), [("anthropic", [SEARCH, FOUND]), ("bedrock", [CODE, RAN])])
def test_a_call_of_a_server_tool_stays_with_its_result(provider: Provider, blocks: list[dict[str, Any]]):
    parts = [ProviderPart(content=block) for block in blocks]

    appended, _ = mended(ASKED, *recorded(*parts, TEXT, ResponseRecorded(), provider=provider), event(AGAIN))

    assert appended == []


def test_a_paused_turn_is_resumed():
    """`pause_turn` ends with the call of the server's tool."""
    paused = recorded(TEXT, ProviderPart(content=SEARCH), ResponseRecorded(stop_reason="pause_turn"))

    assert repair(list(enumerate([ASKED, *paused]))) == []


def test_a_result_whose_call_was_cut_off_is_left_out():
    broken = ProviderPart(content={**SEARCH, "input": '{"que'}, finished=False)

    _, messages = mended(ASKED, *recorded(broken, ProviderPart(content=FOUND), TEXT, ResponseRecorded()))

    assert [part.type for part in messages[-1].parts] == ["text"]


@pytest.mark.parametrize("provider", ["anthropic", "openai-responses"])
def test_thinking_at_the_end_of_what_broke_off_is_left_out(provider: Provider):
    item = {"openai-responses": {"item": {"id": "rs_1", "summary": []}}}
    signed = {"provider_data": item} if provider == "openai-responses" else {"signature": "s"}
    thoughts = [Thinking(text=text, **signed) for text in ("before", "after")]

    _, messages = mended(ASKED, *recorded(thoughts[0], TEXT, thoughts[1], provider=provider))

    assert [part.type for part in messages[1].parts] == ["thinking", "text"]


def test_thinking_at_the_end_of_a_finished_response_stays():
    paused = recorded(TEXT, Thinking(text="Well", signature="s"), ResponseRecorded(stop_reason="pause_turn"))

    assert repair(list(enumerate([ASKED, *paused]))) == []


@pytest.mark.parametrize(
    ("item", "output"),
    [
        (
            {"type": "local_shell_call", "id": "lsh_1", "call_id": "c-1", "action": {}},
            "local_shell_call_output",
        ),
        ({"type": "shell_call", "call_id": "c-1", "action": {"commands": ["ls"]}}, "shell_call_output"),
        ({"type": "apply_patch_call", "call_id": "c-1", "operation": {}}, "apply_patch_call_output"),
        ({"type": "mcp_approval_request", "id": "mcpr_1", "name": "ask"}, "mcp_approval_response"),
        ({"type": "computer_call", "call_id": "c-1", "action": {}}, None),
    ],
)
def test_an_item_that_the_caller_executes_gets_the_output_that_it_was_interrupted(
    item: dict[str, Any], output: str | None
):
    log = [ASKED, *recorded(ProviderPart(content=item), ResponseRecorded(), provider="openai-responses")]
    before = build_messages_from_events(log)

    _, messages = mended(*log)

    kinds = [part.content["type"] for message in messages for part in message.parts if part.type == "opaque"]
    assert kinds == ([item["type"], output] if output else [])
    assert [fault.rule for fault in validate(before, "openai-responses")] == ["call-has-result"]
    assert validate(messages, "openai-responses") == []


_blocks = st.sampled_from(
    [
        TEXT,
        AssistantMessage(message=" \n", content_index=1),
        Thinking(text="hm", signature="s"),
        Thinking(text="hm"),
        ToolCall(tool_call_id="c", tool_name="look", payload={}),
        ToolCall(tool_call_id="d", tool_name="look"),
        ToolResult(tool_call_id="c", result=1),
        ProviderPart(content=SEARCH),
        ProviderPart(content=FOUND),
        ProviderPart(content=MCP),
        ProviderPart(content=CODE),
        ProviderPart(content=RAN),
        ResponseRecorded(),
        ResponseRecorded(finished=False),
    ]
)
_said = st.one_of(
    st.builds(event, _blocks, provider=st.just("anthropic"), message_id=st.sampled_from(["m", "n"])),
    st.builds(event, _blocks, provider=st.just("bedrock"), message_id=st.just("o")),
)


@modest
@given(st.lists(_said | st.builds(event, st.just(AGAIN)), max_size=12))
def test_every_log_that_broke_off_is_accepted_once_it_is_repaired(log: list[AnyEvent]):
    for end in range(len(log) + 1):
        _, messages = mended(ASKED, *log[:end])
        for provider in PROVIDERS:
            encode(messages, provider, lossy="drop")
            # Another provider's thinking and blocks are for the caller to drop.
            assert {fault.rule for fault in validate(messages, provider)} <= {"inexpressible"}
