"""The trace of a run, made of its log."""

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.builders import EPOCH, event, event_id
from tests.records import admit, record

from runfold.prices import PriceTable
from runfold.tracer.run_trace import RunTrace
from runfold.tracer.trace_span import TraceSpan
from runfold_schemas.catalog import Life
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AssistantMessage,
    ResponseRecorded,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.runs import ForkedFrom, RunCompleted, RunFailed, RunOpened
from runfold_schemas.sessions import FrameworkEvent
from runfold_schemas.usage import TokenUsage

LIFE = Life(run_id="run-1", log_id="log-1", agent_id="desk", session_id="s-1", user_id="ann")
OPENED = RunOpened(agent_id="desk", log_id="log-1", labels={"env": "test"})
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"

Entry = tuple[Data, dict[str, Any]]


def trace_of(*entries: Data | Entry, headers: dict[int, str] | None = None, **options: Any) -> RunTrace:
    """The trace of a log with an event each second. `headers` are `traceparent`s by offset."""
    log = []
    for offset, entry in enumerate((OPENED, *entries)):
        data, envelope = entry if isinstance(entry, tuple) else (entry, {})
        made = event(data, timestamp=EPOCH + timedelta(seconds=offset), event_id=event_id(offset), **envelope)
        parents = ((headers or {}).get(offset),)
        pairs = tuple(("traceparent", each.encode()) for each in parents if each)
        log.append(record(made, offset, headers=pairs))
    trace = RunTrace(LIFE, **options)
    for admitted in admit(log):
        assert admitted.outcome == "accepted", admitted.reason
        trace.take(admitted)
    return trace


def seconds(span: TraceSpan) -> tuple[float, float]:
    return (span.start - EPOCH).total_seconds(), (span.end - EPOCH).total_seconds()


def named(trace: RunTrace) -> dict[str, TraceSpan]:
    return {span.name: span for span in trace.spans()}


CONVERSATION = (
    UserMessage(message="Where is A17?"),
    (Thinking(text="look it up", final=True), {"message_id": "m-1", "provider": "anthropic"}),
    (ToolCall(tool_call_id="c1", tool_name="track", payload={"id": "A17"}), {"message_id": "m-1"}),
    (
        TokenUsage(model="claude", input_tokens=100, cache_read_tokens=10, output_tokens=20),
        {"message_id": "m-1", "provider": "anthropic"},
    ),
    (
        ResponseRecorded(model="claude", stop_reason="tool_use", response_id="msg_1"),
        {"message_id": "m-1", "provider": "anthropic"},
    ),
    ToolResult(tool_call_id="c1", tool_name="track", result="at sea"),
    (AssistantMessage(message="At sea."), {"message_id": "m-2"}),
    RunCompleted(),
)


def test_the_trace_of_a_fork_has_no_spans_of_its_copies():
    log_id = "a" * 32
    origin = ForkedFrom(run_id="run-0", log_id=log_id, offset=9, events=2)
    opening = OPENED.model_copy(update={"forked_from": origin})
    month = timedelta(days=30)
    log = [
        (opening, month),
        (ToolCall(tool_call_id="c1", tool_name="old"), timedelta()),
        (ToolResult(tool_call_id="c1", result=1), timedelta(seconds=2)),
        (ToolCall(tool_call_id="c2", tool_name="new"), month + timedelta(seconds=3)),
        (AssistantMessage(message="hi"), month + timedelta(seconds=4)),
        (RunCompleted(), month + timedelta(seconds=5)),
    ]
    trace = RunTrace(LIFE)
    made = [
        event(data, timestamp=EPOCH + at, event_id=event_id(offset)) for offset, (data, at) in enumerate(log)
    ]
    for admitted in admit([record(each, offset) for offset, each in enumerate(made)]):
        trace.take(admitted)

    run, *others = trace.spans()
    assert (run.start, run.end) == (EPOCH + month, EPOCH + month + timedelta(seconds=5))
    assert run.attributes["runfold.forked_from.run_id"] == "run-0"
    assert {span.name for span in others} == {"chat", "execute_tool new"}
    assert min(span.start for span in others) >= run.start
    assert trace.next_offset == len(log)


def test_the_spans_of_a_run_are_limited(monkeypatch):
    monkeypatch.setattr("runfold.tracer.run_trace.SPANS_MAX", 3)
    calls = [
        (ToolCall(tool_call_id=f"c{number}", tool_name="x"), {"turn_id": f"t{number}"})
        for number in range(20)
    ]

    trace = trace_of(*calls, ToolResult(tool_call_id="c0", result=1), RunCompleted())

    assert len(trace.spans()) <= 1 + 4
    assert trace.spans()[0].attributes["runfold.trace.truncated"] is True


def test_a_run_has_spans_for_itself_its_responses_and_its_tools_by_the_conventions():
    trace = trace_of(*CONVERSATION)
    run, first, second, tool = trace.spans()

    assert [span.name for span in (run, first, second, tool)] == [
        "invoke_agent desk",
        "chat claude",
        "chat",
        "execute_tool track",
    ]
    assert [seconds(span) for span in (run, first, second, tool)] == [(0, 8), (1, 5), (6, 7), (3, 6)]
    assert {span.parent_id for span in (first, second, tool)} == {run.span_id}
    assert run.parent_id is None
    assert run.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.id": "desk",
        "gen_ai.agent.name": "desk",
        "gen_ai.conversation.id": "s-1",
        "session.id": "s-1",
        "user.id": "ann",
        "openinference.span.kind": "AGENT",
        "runfold.run.id": "run-1",
        "runfold.run.status": "completed",
        "runfold.label.env": "test",
    }
    assert {name: first.attributes[name] for name in first.attributes if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "s-1",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude",
        "gen_ai.response.model": "claude",
        "gen_ai.response.id": "msg_1",
        "gen_ai.response.finish_reasons": ("tool_use",),
        "gen_ai.usage.input_tokens": 110,
        "gen_ai.usage.cache_read.input_tokens": 10,
        "gen_ai.usage.output_tokens": 20,
    }
    assert tool.attributes["gen_ai.tool.call.id"] == "c1"
    assert tool.attributes["openinference.span.kind"] == "TOOL"
    text = repr(trace.spans())
    for content in ("A17", "look it up", "at sea", "At sea"):
        assert content not in text


def test_equal_logs_have_equal_traces_and_other_logs_have_other_ids():
    one, two = trace_of(*CONVERSATION), trace_of(*CONVERSATION)
    assert one.spans() == two.spans()
    assert one.trace_id == two.trace_id
    other = RunTrace(LIFE.model_copy(update={"log_id": "log-2"}))
    assert other.trace_id != one.trace_id
    ids = [span.span_id for span in one.spans()]
    assert len({*ids}) == len(ids)
    assert {len(each) for each in ids} == {16}
    assert len(one.trace_id) == 32


def test_the_beginning_of_a_log_has_the_same_ids_as_the_whole():
    whole = {span.span_id for span in trace_of(*CONVERSATION).spans()}
    for end in range(len(CONVERSATION)):
        assert {span.span_id for span in trace_of(*CONVERSATION[:end]).spans()} <= whole


def test_contents_are_exported_on_request():
    run, first, second, tool = trace_of(*CONVERSATION, with_contents=True).spans()

    def messages(span: TraceSpan, name: str) -> Any:
        return json.loads(str(span.attributes[f"gen_ai.{name}.messages"]))

    asked = [{"role": "user", "parts": [{"type": "text", "content": "Where is A17?"}]}]
    assert messages(run, "input") == messages(first, "input") == asked
    assert messages(first, "output") == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "look it up"},
                {"type": "tool_call", "id": "c1", "name": "track", "arguments": {"id": "A17"}},
            ],
            "finish_reason": "tool_use",
        }
    ]
    [response] = messages(second, "input")
    assert response["role"] == "tool"
    assert messages(second, "output")[0]["parts"] == [{"type": "text", "content": "At sea."}]
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"id":"A17"}'
    assert tool.attributes["gen_ai.tool.call.result"] == '"at sea"'


def test_turns_are_spans_and_an_event_without_a_turn_belongs_to_the_turn_before_it():
    trace = trace_of(
        (UserMessage(message="1"), {"turn_id": "t-1"}),
        AssistantMessage(message="one"),
        (UserMessage(message="2"), {"turn_id": "t-2"}),
        AssistantMessage(message="two"),
        headers={3: OTHER},
    )
    run, one, two, first, second = trace.spans()
    assert [span.attributes["runfold.turn.id"] for span in (one, two)] == ["t-1", "t-2"]
    assert [seconds(span) for span in (one, two)] == [(1, 2), (3, 4)]
    assert one.parent_id == two.parent_id == run.span_id
    assert (first.parent_id, second.parent_id) == (one.span_id, two.span_id)
    assert (one.link, two.link) == (None, OTHER)


def test_the_context_of_the_opening_is_the_parent():
    trace = trace_of(UserMessage(message="1"), headers={0: TRACEPARENT, 1: OTHER})
    assert trace.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert trace.spans()[0].parent_id == "00f067aa0ba902b7"
    for wrong in ("00-" + "0" * 32 + "-00f067aa0ba902b7-01", "garbage", TRACEPARENT.upper()):
        assert trace_of(headers={0: wrong}).spans()[0].parent_id is None


def test_errors_of_runs_tools_and_responses():
    trace = trace_of(
        ToolCall(tool_call_id="c1", tool_name="a"),
        (ResponseRecorded(finished=False), {"message_id": "m"}),
        ToolResult(tool_call_id="c1", error="secret"),
        ToolCall(tool_call_id="c2", tool_name="b"),
        RunFailed(error="secret too"),
    )
    spans = named(trace)
    assert spans["invoke_agent desk"].error == "run_failed"
    assert spans["execute_tool a"].error == "tool_error"
    assert spans["execute_tool b"].error == "no_result"
    assert seconds(spans["execute_tool b"]) == (4, 5)
    assert [span.error for span in trace.spans() if span.kind == "chat"].count("incomplete") == 1
    assert "secret" not in repr(trace.spans())


def test_a_call_without_a_result_waits_for_the_end_of_the_run():
    assert "execute_tool a" not in named(trace_of(ToolCall(tool_call_id="c1", tool_name="a")))


def test_calls_of_a_tool_that_is_an_agent_are_within_its_span():
    spans = named(
        trace_of(
            ToolCall(tool_call_id="outer", tool_name="agent"),
            ToolCall(tool_call_id="inner", tool_name="tool", parent_tool_call_id="outer"),
            ToolResult(tool_call_id="inner"),
            ToolResult(tool_call_id="outer"),
        )
    )
    assert spans["execute_tool tool"].parent_id == spans["execute_tool agent"].span_id


def test_costs_follow_the_table_of_prices():
    prices = PriceTable.model_validate(
        {"date": "2026-01-01", "models": [{"model": "claude", "input": 3, "output": 15, "cache_read": 1}]}
    )
    spans = named(trace_of(*CONVERSATION, prices=prices))
    expected = (Decimal(100) * 3 + 10 + Decimal(20) * 15) / 1_000_000
    assert spans["chat claude"].attributes["gen_ai.usage.cost"] == float(expected)
    assert "gen_ai.usage.cost" not in spans["chat"].attributes


def test_tokens_that_are_published_last_belong_to_the_response_before():
    spans = trace_of(
        AssistantMessage(message="a"), UserMessage(message="b"), TokenUsage(model="m", output_tokens=3)
    ).spans()
    assert [span.name for span in spans] == ["invoke_agent desk", "chat m"]


def test_events_of_frameworks_are_traced_as_what_they_say():
    body = {
        "id": "x",
        "invocationId": "i-1",
        "author": "desk",
        "content": {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "track", "args": {}}}]},
    }
    trace = trace_of(FrameworkEvent(framework="adk", body=body), RunCompleted())
    assert [span.name for span in trace.spans()] == [
        "invoke_agent desk",
        "invoke_agent desk",
        "chat",
        "execute_tool track",
    ]
