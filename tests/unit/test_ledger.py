"""The rules of the ledger, one by one: by hand (`Ledger`) and from events. Messages are compared in
shorthand.
"""

import copy

import pytest
from pydantic import ValidationError
from tests.builders import event, events

from runfold_projections.ledger import Ledger, build_messages_from_events
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AssistantMessage,
    PlannerNote,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import Message, Part, TextPart, ThinkingPart, ToolResultPart, ToolUsePart
from runfold_schemas.runs import (
    PhaseChanged,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunOpened,
    RunPaused,
    RunResumed,
    RunStarted,
)
from runfold_schemas.usage import TokenUsage


def test_results_that_add_nothing_leave_the_assistant_message_open():
    ledger = Ledger()

    ledger.append_text("a")
    ledger.append_user_tool_results([])
    ledger.append_user_tool_results([ToolResultPart(tool_use_id="", content=1)])
    ledger.append_text("b")

    assert shape(ledger.build_messages()) == ["assistant: ab"]


def test_results_flush_the_assistant_message_first():
    ledger = Ledger()

    ledger.declare_tool_use("1", "search", {})
    ledger.append_user_tool_results([ToolResultPart(tool_use_id="1", content="ok")])

    assert shape(ledger.build_messages()) == ["assistant: call 1", "user: result 1=ok"]


def test_texts_of_user_and_system_are_messages_of_their_own():
    ledger = Ledger()

    ledger.append_system_text("be kind")
    ledger.append_user_text("hello")
    ledger.append_user_text("")
    ledger.append_user_text("anybody there?")
    ledger.append_text("yes")
    ledger.append_user_text("good")

    assert shape(ledger.build_messages()) == [
        "system: be kind",
        "user: hello",
        "user: anybody there?",
        "assistant: yes",
        "user: good",
    ]


def test_building_includes_the_open_message_and_changes_nothing():
    ledger = Ledger()
    ledger.append_thinking("why", "signed", final=True)
    ledger.append_text("be")

    first = ledger.build_messages()
    second = ledger.build_messages()
    ledger.append_text("cause")

    assert first == second
    assert shape(first) == ["assistant: thinking why, be"]
    assert shape(ledger.build_messages()) == ["assistant: thinking why, because"]


def test_a_flushed_message_of_unsigned_thinking_leaves_no_trace():
    ledger = Ledger()

    ledger.append_thinking("hmm")
    ledger.flush_assistant()
    ledger.append_text("a")

    assert shape(ledger.build_messages()) == ["assistant: a"]


def test_empty_redacted_bytes_do_not_hide_signed_thinking():
    ledger = Ledger()

    ledger.append_thinking("why", "signed", redacted="")

    assert ledger.build_messages() == [
        Message(role="assistant", parts=(ThinkingPart(text="why", signature="signed"),))
    ]


def test_redacted_thinking_that_is_no_base64_is_refused():
    with pytest.raises(ValidationError):
        Ledger().append_thinking(redacted="not base64")


def test_thinking_goes_to_the_head_of_its_message_in_the_order_of_the_calls():
    messages = build(
        says("a"),
        Thinking(text="first", signature="s", content_index=7, final=True),
        call("1"),
        Thinking(redacted="AAEC", content_index=2, final=True),
    )

    assert shape(messages) == ["assistant: thinking first, redacted AAEC, a, call 1"]


def test_thinking_is_emitted_if_signed_or_redacted_final_or_not():
    messages = build(
        Thinking(text="le"),
        Thinking(text="t me", final=True),
        Thinking(signature="s", final=True),
        Thinking(text="let me", signature="s"),
    )

    assert shape(messages) == ["assistant: thinking let me"]


def test_deltas_of_text_join_and_a_call_parts_them():
    messages = build(says("Hel"), says(""), says("lo"), call("1"), says("wait"))

    assert shape(messages) == ["assistant: Hello, call 1, wait"]


def test_deltas_join_over_events_that_are_no_part_of_the_ledger():
    silent = [
        PlannerNote(note="n"),
        TokenUsage(input_tokens=3),
        RunOpened(agent_id="a", log_id="l"),
        RunStarted(),
        RunPaused(),
        RunResumed(),
        PhaseChanged(phase="planning"),
        RunLabeled(labels={"k": "v"}),
        RunCompleted(),
        RunFailed(error="e"),
        RunCanceled(),
    ]

    messages = build(says("one "), *silent, says("message"))

    assert shape(messages) == ["assistant: one message"]


def test_a_system_message_stands_where_it_was_said():
    messages = build(SystemMessage(message="be kind"), says("a"), SystemMessage(message="now be brief"))

    assert shape(messages) == ["system: be kind", "assistant: a", "system: now be brief"]


def test_each_user_message_is_its_own_and_starts_another_turn():
    messages = build(asks("one"), asks("two"), says("a"), asks(""), says("b"))

    assert shape(messages) == ["user: one", "user: two", "assistant: a", "assistant: b"]


def test_what_the_assistant_says_after_results_is_another_message():
    messages = build(call("1"), result("1", "r"), says("done"))

    assert shape(messages) == ["assistant: call 1", "user: result 1=r", "assistant: done"]


def test_results_stand_in_the_order_of_their_calls():
    messages = build(call("1"), call("2"), result("2", "b"), result("1", "a"))

    assert shape(messages) == ["assistant: call 1, call 2", "user: result 1=a, result 2=b"]


def test_a_result_that_comes_after_the_users_text_stands_before_it():
    messages = build(call("1"), call("2"), result("2", "b"), asks("hurry"), says("I do"), result("1", "a"))

    assert shape(messages) == [
        "assistant: call 1, call 2",
        "user: result 1=a, result 2=b",
        "user: hurry",
        "assistant: I do",
    ]


def test_a_late_result_does_not_part_the_message_that_it_arrives_in():
    messages = build(call("1"), asks("hurry"), says("I "), result("1", "a"), says("do"))

    assert shape(messages) == ["assistant: call 1", "user: result 1=a", "user: hurry", "assistant: I do"]


def test_a_result_ends_its_message_even_if_a_later_one_replaces_it():
    messages = build(call("1"), result("1", "first try"), says("hm"), result("1", "second try"))

    assert shape(messages) == ["assistant: call 1", "user: result 1=second try", "assistant: hm"]


def test_a_repeated_id_is_answered_in_its_own_exchange():
    messages = build(call("1"), result("1", "old"), call("1"), result("1", "new"))

    assert shape(messages) == [
        "assistant: call 1",
        "user: result 1=old",
        "assistant: call 1",
        "user: result 1=new",
    ]


def test_the_last_result_wins_within_its_exchange_only():
    messages = build(
        call("1"),
        result("1", "first try"),
        asks("again"),
        result("1", "second try"),
        call("1"),
        result("1", "other call"),
    )

    assert shape(messages) == [
        "assistant: call 1",
        "user: result 1=second try",
        "user: again",
        "assistant: call 1",
        "user: result 1=other call",
    ]


def test_one_id_twice_in_a_message_is_answered_once_at_its_first_place():
    messages = build(call("1"), call("2"), call("1"), result("2", "b"), result("1", "a"))

    assert shape(messages) == ["assistant: call 1, call 2, call 1", "user: result 1=a, result 2=b"]


def test_events_with_one_message_id_are_one_message_around_a_fast_result():
    log = [
        event(call("1"), message_id="m"),
        event(result("1", "a")),
        event(says("and"), message_id="m"),
        event(call("2"), message_id="m"),
        event(result("2", "b")),
        event(says("done"), message_id="n"),
    ]

    assert shape(build_messages_from_events(log)) == [
        "assistant: call 1, and, call 2",
        "user: result 1=a, result 2=b",
        "assistant: done",
    ]


def test_an_event_without_message_id_does_not_take_the_messages_id_from_it():
    log = [
        event(says("a"), message_id="m"),
        event(call("1")),
        event(result("1", "r")),
        event(says("b"), message_id="m"),
    ]

    assert shape(build_messages_from_events(log)) == ["assistant: a, call 1, b", "user: result 1=r"]


def test_one_id_answered_twice_within_a_message_keeps_both_answers():
    log = [
        event(call("1"), message_id="m"),
        event(result("1", "a")),
        event(call("1"), message_id="m"),
        event(result("1", "b")),
    ]

    assert shape(build_messages_from_events(log)) == [
        "assistant: call 1, call 1",
        "user: result 1=a, result 1=b",
    ]


def test_another_message_id_opens_another_message():
    log = [event(says("a"), message_id="m"), event(says("b"), message_id="n")]

    assert shape(build_messages_from_events(log)) == ["assistant: a", "assistant: b"]


def test_an_event_without_message_id_goes_with_the_open_message_until_a_result():
    log = [
        event(Thinking(text="why", signature="s", final=True)),
        event(says("a"), message_id="m"),
        event(call("1")),
        event(result("1", "r")),
        event(says("b")),
    ]

    assert shape(build_messages_from_events(log)) == [
        "assistant: thinking why, a, call 1",
        "user: result 1=r",
        "assistant: b",
    ]


def test_the_user_ends_a_message_whatever_its_message_id():
    log = [event(says("a"), message_id="m"), event(asks("stop")), event(says("b"), message_id="m")]

    assert shape(build_messages_from_events(log)) == ["assistant: a", "user: stop", "assistant: b"]


def test_a_result_without_a_call_stands_alone_where_it_came():
    messages = build(asks("hi"), result("x", "r"), says("a"))

    assert shape(messages) == ["user: hi", "user: result x=r", "assistant: a"]


def test_a_result_without_a_call_stands_behind_those_of_the_open_message():
    messages = build(call("1"), result("x", "r"), result("1", "a"))

    assert shape(messages) == ["assistant: call 1", "user: result 1=a, result x=r"]


def test_a_call_without_an_id_is_kept_and_a_result_without_one_is_not():
    messages = build(call(""), result("", "r"), says("a"))

    assert shape(messages) == ["assistant: call , a"]


@pytest.mark.parametrize("error", ["", False, 0, {"Message": "denied"}])
def test_a_result_is_an_error_if_its_error_is_not_null(error):
    messages = build(call("1"), ToolResult(tool_call_id="1", error=error))

    assert messages[1].parts == (ToolResultPart(tool_use_id="1", content={"error": error}, is_error=True),)


def test_an_error_beside_a_result_keeps_both():
    messages = build(call("1"), ToolResult(tool_call_id="1", result=[], error="half done"))

    assert messages[1].parts == (
        ToolResultPart(tool_use_id="1", content={"result": [], "error": "half done"}, is_error=True),
    )


def test_building_from_events_leaves_them_as_they_were():
    log = events(asks("hi"), ToolCall(tool_call_id="1", tool_name="t", payload={"q": [1]}))
    before = copy.deepcopy(log)

    assert build_messages_from_events(log) == build_messages_from_events(log)
    assert log == before


def asks(text: str) -> UserMessage:
    return UserMessage(message=text)


def says(text: str) -> AssistantMessage:
    return AssistantMessage(message=text)


def call(tool_id: str) -> ToolCall:
    return ToolCall(tool_call_id=tool_id, tool_name="search")


def result(tool_id: str, content: str) -> ToolResult:
    return ToolResult(tool_call_id=tool_id, result=content)


def build(*data: Data) -> list[Message]:
    return build_messages_from_events(events(*data))


def shape(messages: list[Message]) -> list[str]:
    return [f"{message.role}: {', '.join(map(_shorthand, message.parts))}" for message in messages]


def _shorthand(part: Part) -> str:
    match part:
        case TextPart(text=text):
            return text
        case ThinkingPart(redacted=None, text=text):
            return f"thinking {text}"
        case ThinkingPart(redacted=redacted):
            return f"redacted {redacted}"
        case ToolUsePart(id=tool_id):
            return f"call {tool_id}"
        case ToolResultPart(tool_use_id=tool_id, content=content):
            return f"result {tool_id}={content}"
