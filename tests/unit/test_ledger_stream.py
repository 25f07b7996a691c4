"""Laws of the ledger, for any log: nothing is lost or reordered, and streaming it gives what
building gives.
"""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event, events

from runfold_projections.exchanges import ResultPlan, ResultPlanner, inspect_results, plan_results
from runfold_projections.ledger import Draft, LedgerStream, build_messages_from_events
from runfold_projections.portions import PortionFold
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    PlannerNote,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import Message, TextPart, ThinkingPart, ToolResultPart, ToolUsePart

# Few ids and texts, so that they repeat, and "" among them.
_texts = st.sampled_from(["", "a", "b", "c"])
_ids = st.sampled_from(["", "1", "2", "3"])
_data = st.one_of(
    st.builds(AssistantMessage, message=_texts),
    st.builds(Thinking, text=_texts, signature=_texts, redacted=st.sampled_from([None, "", "AAEC"])),
    st.builds(ToolCall, tool_call_id=_ids, tool_name=st.just("search"), payload=st.integers()),
    st.builds(ToolResult, tool_call_id=_ids, result=st.integers(), error=st.sampled_from([None, "", "e"])),
    st.builds(UserMessage, message=_texts),
    st.builds(SystemMessage, message=_texts),
    st.builds(PlannerNote, note=_texts),
)
logs = st.lists(st.builds(event, _data, message_id=st.sampled_from([None, None, "m", "n"])), max_size=30)


@given(logs)
def test_streaming_gives_what_building_gives(log):
    # Offsets of a real log start anywhere and have gaps.
    by_offset = {7 + 3 * position: each for position, each in enumerate(log)}

    drafts = [draft for _, draft in streamed(by_offset)]

    messages = [draft.message({offset: by_offset[offset] for offset in draft.late}) for draft in drafts]
    assert messages == build_messages_from_events(log)


@given(logs, st.integers(1, 7))
def test_portions_give_the_drafts_of_the_stream(log, size):
    places = list(enumerate(log))
    fold = PortionFold(plan_results(places))

    drafts = [
        draft for begin in range(0, len(places), size) for draft in fold.feed(places[begin : begin + size])
    ]

    assert [*drafts, *fold.finish()] == [draft for _, draft in streamed(dict(places))]


@given(logs)
def test_a_fold_from_its_last_offset_gives_the_drafts_that_were_not_closed(log):
    places = list(enumerate(log))
    plan = plan_results(places)
    whole, rest = PortionFold(plan), PortionFold(plan)
    drafts = [*whole.feed(places), *whole.finish()]

    again = [*rest.feed(places[whole.offset :]), *rest.finish()]

    assert again == drafts[whole.closed :]


@given(logs)
def test_a_draft_refers_to_nothing_but_results_further_on(log):
    by_offset = dict(enumerate(log))

    for emitted_at, draft in streamed(by_offset):
        assert [part for part in draft.parts if isinstance(part, int)] == list(draft.late)
        assert all(offset > emitted_at and by_offset[offset].type == "tool_result" for offset in draft.late)


@given(logs)
def test_no_text_is_lost_and_no_order_changed(log):
    messages = build_messages_from_events(log)

    for role, kind in (("assistant", AssistantMessage), ("user", UserMessage), ("system", SystemMessage)):
        said = "".join(each.data.message for each in log if isinstance(each.data, kind))
        assert "".join(part.text for part in _parts(messages, TextPart, role)) == said


@given(logs)
def test_every_call_is_kept_in_the_order_of_the_log(log):
    messages = build_messages_from_events(log)

    made = [(each.data.tool_call_id, each.data.payload) for each in log if isinstance(each.data, ToolCall)]
    assert [(part.id, part.input) for part in _parts(messages, ToolUsePart, "assistant")] == made


@given(logs)
def test_signed_and_redacted_thinking_is_kept_at_the_head_of_messages(log):
    messages = build_messages_from_events(log)

    thoughts = [each.data for each in log if isinstance(each.data, Thinking)]
    kept = [
        (each.redacted or each.text) for each in thoughts if each.redacted or (each.text and each.signature)
    ]
    assert [part.redacted or part.text for part in _parts(messages, ThinkingPart, "assistant")] == kept
    for message in messages:
        heads = [isinstance(part, ThinkingPart) for part in message.parts]
        assert heads == sorted(heads, reverse=True)


@given(logs)
def test_the_last_result_of_each_call_is_there_once_and_no_other_but_orphans(log):
    messages = build_messages_from_events(log)

    expected = [_content(log[position]) for position in (*winners(log).values(), *orphans(log))]
    found = [part.content for part in _parts(messages, ToolResultPart, "user")]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


@given(logs)
def test_results_stand_right_after_their_calls_in_their_order(log):
    log = [each for each in log if not isinstance(each.data, ToolResult) or each.data.tool_call_id]
    orphaned = set(orphans(log))
    messages = build_messages_from_events([each for at, each in enumerate(log) if at not in orphaned])

    for index, message in enumerate(messages):
        results = [part.tool_use_id for part in message.parts if isinstance(part, ToolResultPart)]
        if results:
            called = [part.id for part in messages[index - 1].parts if isinstance(part, ToolUsePart)]
            assert message.role == "user"
            assert len(results) == len(message.parts)
            assert [called.index(tool_id) for tool_id in results] == sorted(map(called.index, results))


@given(logs)
def test_every_prefix_builds_and_says_what_the_whole_says_so_far(log):
    spoken = _spoken(build_messages_from_events(log))

    for length in range(len(log)):
        assert spoken.startswith(_spoken(build_messages_from_events(log[:length])))


@given(logs)
def test_building_twice_gives_the_same(log):
    assert build_messages_from_events(log) == build_messages_from_events(log)


@given(logs)
def test_no_message_is_empty(log):
    assert all(message.parts for message in build_messages_from_events(log))


@given(logs)
def test_the_plan_and_the_faults_are_those_of_the_rule(log):
    plan = plan_results(enumerate(log))
    faulty = {fault.offset for fault in inspect_results(enumerate(log))}

    unanswered = {at for at, each in enumerate(log) if isinstance(each.data, ToolCall)} - set(winners(log))
    nameless = {
        at for at, each in enumerate(log) if each.type == "tool_result" and not each.data.tool_call_id
    }
    assert plan == ResultPlan(results=winners(log), orphans=frozenset(orphans(log)))
    assert faulty == unanswered | nameless | set(orphans(log))


def test_a_complete_log_has_no_faults():
    exchange = [ToolCall(tool_call_id="1", tool_name="t"), ToolResult(tool_call_id="1", result="r")]
    log = events(UserMessage(message="hi"), *exchange, *exchange)

    assert inspect_results(enumerate(log)) == []


def test_what_is_missing_is_reported_with_its_offset_in_the_order_of_the_log():
    log = events(
        ToolResult(tool_call_id="1", result="too early"),
        ToolCall(tool_call_id="1", tool_name="t"),
        ToolCall(tool_call_id="1", tool_name="t"),
        ToolResult(tool_call_id="1", result="r"),
        ToolResult(tool_call_id="x", result="r"),
        ToolCall(tool_call_id="", tool_name="t"),
        ToolResult(tool_call_id="", result="r"),
        ToolCall(tool_call_id="2", tool_name="t"),
    )

    faults = inspect_results(enumerate(log, start=100))

    assert [(fault.offset, fault.rule, fault.tool_use_id) for fault in faults] == [
        (100, "result-after-call", "1"),
        (101, "call-has-result", "1"),
        (104, "result-has-call", "x"),
        (105, "call-has-id", ""),
        (106, "result-has-id", ""),
        (107, "call-has-result", "2"),
    ]


def test_a_plan_does_not_change_with_what_is_fed_later():
    call, result = events(ToolCall(tool_call_id="1", tool_name="t"), ToolResult(tool_call_id="1", result="r"))
    planner = ResultPlanner()
    planner.feed(0, call)

    plan = planner.plan()
    planner.feed(1, result)

    assert plan == ResultPlan(results={}, orphans=frozenset())
    assert planner.plan() == ResultPlan(results={0: 1}, orphans=frozenset())


def test_a_message_comes_out_when_it_is_closed_and_waits_for_no_late_result():
    call, text, result = events(
        ToolCall(tool_call_id="1", tool_name="t"),
        UserMessage(message="hurry"),
        ToolResult(tool_call_id="1", result="r"),
    )
    stream = LedgerStream(plan_results([(10, call), (11, text), (12, result)]))

    assert stream.feed(10, call) == ()
    said, answered, asked = stream.feed(11, text)

    assert said.late == asked.late == ()
    assert answered == Draft("user", [12], late=(12,), place=10)
    assert answered.message({12: result}) == Message(
        role="user", parts=(ToolResultPart(tool_use_id="1", content="r"),)
    )
    assert stream.feed(12, result) == ()
    assert stream.finish() == ()


def test_results_that_came_while_their_message_was_open_are_not_read_again():
    exchange = events(
        ToolCall(tool_call_id="1", tool_name="t"), ToolResult(tool_call_id="1", result="r"), message_id="m"
    )
    log = dict(enumerate(exchange * 2))

    assert [draft.late for _, draft in streamed(log)] == [(), ()]


def test_a_late_part_takes_no_event_but_a_tool_result():
    with pytest.raises(TypeError, match="user_message"):
        Draft("user", [1], late=(1,)).message({1: event(UserMessage(message="hi"))})


def test_a_long_log_is_streamed_in_little_memory():
    exchanges, size = 2_000, 10_000
    planner = ResultPlanner()
    for offset, each in enumerate(_long_log(exchanges, size)):
        planner.feed(offset, each)
    stream = LedgerStream(planner.plan())

    tracemalloc.start()
    emitted = sum(len(stream.feed(offset, each)) for offset, each in enumerate(_long_log(exchanges, size)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert emitted + len(stream.finish()) == 3 * exchanges
    assert peak_bytes < 20 * size


def streamed(by_offset: dict[int, AnyEvent]) -> Iterator[tuple[int, Draft]]:
    """Each draft of the stream with the offset at which it came out."""
    stream = LedgerStream(plan_results(by_offset.items()))
    last = -1
    for last, each in by_offset.items():
        for draft in stream.feed(last, each):
            yield last, draft
    for draft in stream.finish():
        yield last, draft


def winners(log: list[AnyEvent]) -> dict[int, int]:
    """Position of each answered call -> position of its result, by the rule taken at its word."""
    return {
        call: at
        for at, each in enumerate(log)
        if _names(each) and (call := _latest_call(log, at)) is not None
    }


def orphans(log: list[AnyEvent]) -> list[int]:
    return [at for at, each in enumerate(log) if _names(each) and _latest_call(log, at) is None]


def _names(each: AnyEvent) -> bool:
    return isinstance(each.data, ToolResult) and each.data.tool_call_id != ""


def _latest_call(log: list[AnyEvent], result: int) -> int | None:
    calls = (at for at in reversed(range(result)) if isinstance(log[at].data, ToolCall))
    return next((at for at in calls if log[at].data.tool_call_id == log[result].data.tool_call_id), None)


def _content(each: AnyEvent) -> Any:
    result, error = each.data.result, each.data.error
    return result if error is None else {"result": result, "error": error}


def _parts(messages: list[Message], kind: type, role: str) -> list:
    return [
        part
        for message in messages
        if message.role == role
        for part in message.parts
        if isinstance(part, kind)
    ]


def _spoken(messages: list[Message]) -> str:
    return "".join(part.text for message in messages for part in message.parts if isinstance(part, TextPart))


def _long_log(exchanges: int, size: int) -> Iterator[AnyEvent]:
    """A run that keeps nothing in memory; `size` is the length of each text."""
    for number in range(exchanges):
        yield event(UserMessage(message="?" * size))
        yield event(ToolCall(tool_call_id=f"call-{number}", tool_name="search"))
        yield event(ToolResult(tool_call_id=f"call-{number}", result="!" * size))
