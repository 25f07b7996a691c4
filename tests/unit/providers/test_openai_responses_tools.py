"""Calls of the Responses API that the caller executes: their outputs, in the form of the official
types, and what stands in their place after a crash.
"""

from typing import Any, cast

import pytest
from tests.builders import event
from tests.openai_ledgers import PNG
from tests.provider_types import check

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode, openai_responses, validate
from runfold_projections.providers.openai_responses_tools import (
    failed_output,
    opaque_answer_id,
    opaque_call_id,
)
from runfold_projections.repair import repair
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent, ProviderPart, ToolCall, ToolResult, UserMessage
from runfold_schemas.messages import ImagePart, Message

Item = dict[str, Any]

SCREEN = ImagePart(media_type="image/png", data=PNG)
SCREEN_URL = f"data:image/png;base64,{PNG}"
EXIT = {"type": "exit", "exit_code": 0}

computer: Item = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"type": "click", "button": "left", "x": 1, "y": 2},
    "pending_safety_checks": [],
}
shell: Item = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"commands": ["ls"], "max_output_length": 99},
    "environment": {"type": "local"},
}
local_shell: Item = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
patch: Item = {
    "type": "apply_patch_call",
    "id": "apc_1",
    "call_id": "call_1",
    "status": "completed",
    "operation": {"type": "delete_file", "path": "a.txt"},
}
search: Item = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": "call_1",
    "status": "completed",
    "execution": "client",
    "arguments": {"goal": "mail"},
}
approval: Item = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "name": "find",
    "arguments": "{}",
    "server_label": "kb",
}
CALLS = [computer, shell, local_shell, patch, search, approval]


def call_of(item: Item) -> ToolCall:
    """The call that is recorded for the item, alone in a response."""
    response = {"object": "response", "status": "completed", "output": [item]}
    call, *_ = openai_responses.ResponsesRecorder({}).response(response)
    assert isinstance(call, ToolCall)
    return call


def log(*said: Data) -> list[AnyEvent]:
    """A log of a question and `said`."""
    members = {"provider": "openai-responses", "message_id": "m-1"}
    return [
        event(UserMessage(message="Go.")),
        *(event(each, **({} if isinstance(each, ToolResult) else members)) for each in said),
    ]


def ledger(*said: Data) -> list[Message]:
    return build_messages_from_events(log(*said))


def items(messages: list[Message]) -> list[Item]:
    """The items of the request after the user's message."""
    body = encode(messages, "openai-responses").body
    # The official type of a local shell's output has another member for the id of the call.
    checked = [item for item in body["input"] if item.get("type") != "local_shell_call_output"]
    check("openai-responses", {"input": checked})
    return cast("list[Item]", body["input"][1:])


def answer(item: Item, **result: Any) -> Item:
    """The item after the call `item`, for its result."""
    call = call_of(item)
    said, output = items(ledger(call, ToolResult(tool_call_id=call.tool_call_id, **result)))

    assert said == item
    return output


@pytest.mark.parametrize("item", CALLS, ids=lambda item: item["type"])
def test_a_call_goes_back_as_it_was_and_its_missing_result_is_a_fault(item: Item):
    messages = ledger(call_of(item))

    assert items(messages) == [item]
    assert [fault.rule for fault in validate(messages, "openai-responses")] == ["call-has-result"]


@pytest.mark.parametrize("item", CALLS, ids=lambda item: item["type"])
@pytest.mark.parametrize("provider", ["openai-responses", "openai-chat", "anthropic", "gemini", "bedrock"])
def test_a_call_without_its_result_is_repaired_for_every_provider(item: Item, provider: Any):
    events = log(call_of(item))

    events += [event(data) for data in repair(list(enumerate(events)))]

    messages = build_messages_from_events(events)
    assert validate(messages, provider) == []
    if provider == "openai-responses":
        assert len(items(messages)) == 2
    else:
        check(provider, encode(messages, provider).body)


@pytest.mark.parametrize(
    "result",
    [
        {"result": "ok", "attachments": (SCREEN,)},
        {"result": {"type": "computer_screenshot", "image_url": SCREEN_URL}},
        {
            "result": {
                "type": "computer_call_output",
                "call_id": "?",
                "output": {"type": "computer_screenshot", "image_url": SCREEN_URL},
            }
        },
    ],
)
def test_the_output_of_a_computer_is_its_screenshot(result: Item):
    assert answer(computer, **result) == {
        "type": "computer_call_output",
        "call_id": "call_1",
        "output": {"type": "computer_screenshot", "image_url": SCREEN_URL},
    }


def test_safety_checks_that_the_user_acknowledged_are_said():
    checks = [{"id": "sc_1", "code": "malicious", "message": "Mind."}]
    own = {"openai-responses": {"item": {"acknowledged_safety_checks": checks}}}

    output = answer(computer, attachments=(SCREEN,), provider_data=own)

    assert output["acknowledged_safety_checks"] == checks


def test_a_computer_that_failed_has_no_screenshot_so_its_call_is_a_function_call():
    call = call_of(computer)

    said, output = items(ledger(call, ToolResult(tool_call_id="call_1", error="The screen is locked.")))

    assert (said["type"], said["name"], output["type"]) == (
        "function_call",
        "computer",
        "function_call_output",
    )
    assert output["output"] == '{"error": "The screen is locked."}'


@pytest.mark.parametrize(
    ("result", "outputs"),
    [
        ({"result": "a.txt"}, [{"stdout": "a.txt", "stderr": "", "outcome": EXIT}]),
        ({"result": {"stdout": "a.txt"}}, [{"stdout": "a.txt", "stderr": "", "outcome": EXIT}]),
        (
            {
                "result": [
                    {"stdout": "", "stderr": "no", "exit_code": 2},
                    {"stdout": "a", "outcome": {"type": "timeout"}},
                ]
            },
            [
                {"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 2}},
                {"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        ),
        ({"error": "no"}, [{"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 1}}]),
    ],
)
def test_the_output_of_a_shell_has_both_streams_and_the_outcome(result: Item, outputs: list[Item]):
    assert answer(shell, **result) == {
        "type": "shell_call_output",
        "call_id": "call_1",
        "output": outputs,
        "max_output_length": 99,
    }


def test_the_output_of_a_local_shell_is_text():
    assert answer(local_shell, result="a.txt") == {
        "type": "local_shell_call_output",
        "call_id": "call_1",
        "output": "a.txt",
    }


@pytest.mark.parametrize(
    ("result", "status", "output"),
    [({"result": "Done"}, "completed", "Done"), ({"error": "no"}, "failed", "no")],
)
def test_the_output_of_a_patch_says_whether_it_failed(result: Item, status: str, output: str):
    assert answer(patch, **result) == {
        "type": "apply_patch_call_output",
        "call_id": "call_1",
        "status": status,
        "output": output,
    }


def test_the_output_of_a_search_for_tools_has_the_tools():
    mail = {"type": "function", "name": "mail", "parameters": {}, "strict": True}

    for found in ([mail], {"tools": [mail]}):
        assert answer(search, result=found) == {
            "type": "tool_search_output",
            "call_id": "call_1",
            "execution": "client",
            "status": "completed",
            "tools": [mail],
        }


@pytest.mark.parametrize(
    ("result", "members"),
    [
        ({"result": True}, {"approve": True}),
        ({"result": {"approve": True}}, {"approve": True}),
        ({"result": False}, {"approve": False}),
        ({"result": {"approve": False, "reason": "Too much."}}, {"approve": False, "reason": "Too much."}),
        ({"result": "yes"}, {"approve": False, "reason": "yes"}),
        ({"error": "Nobody answered."}, {"approve": False, "reason": "Nobody answered."}),
    ],
)
def test_only_a_clear_yes_approves_a_call_to_mcp(result: Item, members: Item):
    response = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"}

    assert answer(approval, **result) == {**response, **members}


def test_outputs_name_the_program_that_made_the_call():
    program = {"type": "program", "caller_id": "call_9"}

    assert answer(shell | {"caller": program}, result="")["caller"] == program
    function = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"}
    assert answer(function | {"caller": program}, result="ok") == {
        "type": "function_call_output",
        "call_id": "call_1",
        "caller": program,
        "output": "ok",
    }


def test_a_call_that_broke_off_is_no_part_of_the_ledger():
    recorder = openai_responses.ResponsesRecorder({})
    added = {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": shell | {"status": "in_progress"},
    }

    events = [*recorder.feed(added), *recorder.blocks.end(finished=False)]

    assert isinstance(events[0], ProviderPart)
    assert not events[0].finished
    assert len(ledger(*events)) == 1


HOSTED = [
    shell | {"environment": {"type": "container_reference", "container_id": "cntr_1"}},
    search | {"execution": "server", "call_id": None},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
]


@pytest.mark.parametrize("item", HOSTED, ids=lambda item: item["type"])
def test_what_the_server_executed_needs_no_output(item: Item):
    response = {"object": "response", "status": "completed", "output": [item]}
    messages = ledger(*openai_responses.ResponsesRecorder({}).response(response))

    assert items(messages) == [item]
    assert validate(messages, "openai-responses") == []
    assert opaque_call_id(item) is None


def test_opaque_items_name_the_call_that_they_are_or_answer():
    assert [opaque_call_id(item) for item in CALLS] == ["call_1"] * 5 + ["mcpr_1"]
    outputs = [failed_output(item, "Gone.") for item in CALLS]

    assert outputs[0] is None
    assert [opaque_answer_id(output) for output in outputs[1:]] == ["call_1"] * 4 + ["mcpr_1"]
    assert [opaque_answer_id(item) for item in [*CALLS, {}, None, {"type": ["x"]}]] == [None] * 9
    assert [opaque_call_id(item) for item in ({}, None, {"type": 1}, {"type": "computer_call"})] == [None] * 4
