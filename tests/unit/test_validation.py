"""What the validators find, beyond the recorded cases: every fault, with its place and its rule."""

import pytest

from runfold_projections.validation import Fault, validate_bedrock, validate_strict
from runfold_schemas.messages import Message, TextPart, ThinkingPart, ToolResultPart, ToolUsePart


def assistant(*parts) -> Message:
    return Message(role="assistant", parts=parts)


def user(*parts) -> Message:
    return Message(role="user", parts=parts)


def call(tool_id) -> ToolUsePart:
    return ToolUsePart(id=tool_id, name="search", input={})


def result(tool_id) -> ToolResultPart:
    return ToolResultPart(tool_use_id=tool_id, content="ok")


def test_bedrock_lists_every_fault_in_the_order_of_the_messages():
    messages = [
        assistant(call("1"), call("2")),
        user(result("1"), result("8"), result("9")),
        assistant(call("3")),
        assistant(TextPart(text="x"), call("4")),
    ]

    faults = validate_bedrock(messages, thinking=True)

    assert [(fault.message_index, fault.rule, fault.tool_use_id) for fault in faults] == [
        (0, "thinking-first", None),
        (1, "no-more-results-than-calls", None),
        (1, "results-match-calls", "8"),
        (1, "results-match-calls", "9"),
        (2, "thinking-first", None),
        (2, "user-after-calls", None),
        (3, "thinking-first", None),
        (3, "user-after-calls", None),
    ]


def test_bedrock_asks_for_thinking_only_where_it_is_on_and_tools_are_called():
    messages = [assistant(TextPart(text="x")), assistant(call("1")), user(result("1"))]

    assert [fault.message_index for fault in validate_bedrock(messages, thinking=True)] == [1]
    assert validate_bedrock(messages, thinking=False) == []


def test_bedrock_ignores_calls_and_results_in_messages_of_other_roles():
    messages = [user(call("1")), assistant(result("9")), Message(role="system", parts=(call("2"),))]

    assert validate_bedrock(messages, thinking=True) == []


def test_bedrock_reports_an_unknown_id_once_however_often_it_answers():
    messages = [assistant(call("1"), call("2")), user(result("9"), result("9"))]

    assert validate_bedrock(messages, thinking=False) == [
        Fault(
            rule="results-match-calls",
            text="bedrock: tool_result id does not match prior assistant tool_use id",
            message_index=1,
            tool_use_id="9",
        )
    ]


def test_a_complete_ledger_passes_the_strict_rules():
    messages = [
        user(TextPart(text="hi")),
        assistant(ThinkingPart(text="t", signature="s"), call("1"), call("2")),
        user(result("2"), result("1")),
        assistant(call("1")),
        user(result("1"), TextPart(text="and then?")),
    ]

    assert validate_strict(messages) == []


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([assistant(call("1"))], [(0, "call-has-result", "1")], id="call at the end"),
        pytest.param(
            [assistant(call("1")), user(TextPart(text="x")), user(result("1"))],
            [(0, "call-has-result", "1"), (2, "result-has-call", "1")],
            id="result not right after its call",
        ),
        pytest.param(
            [assistant(call("1")), user(result("1"), result("1"))],
            [(1, "one-result-per-call", "1")],
            id="two results",
        ),
        pytest.param(
            [assistant(call("1"), call("1")), user(result("1"))],
            [(0, "call-id-unique", "1")],
            id="one id twice",
        ),
        pytest.param(
            [assistant(call("")), user(result(""))],
            [(0, "call-has-id", ""), (1, "result-has-id", "")],
            id="no ids",
        ),
        pytest.param(
            [assistant(call("1")), assistant(result("1"))],
            [(0, "call-has-result", "1"), (1, "result-has-call", "1")],
            id="answered by the assistant",
        ),
        pytest.param(
            [user(call("1")), user(result("1"))],
            [(0, "call-has-result", "1"), (1, "result-has-call", "1")],
            id="called by the user",
        ),
    ],
)
def test_the_strict_rules_find(messages, expected):
    faults = validate_strict(messages)

    assert [(fault.message_index, fault.rule, fault.tool_use_id) for fault in faults] == expected
