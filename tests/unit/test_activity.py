"""The activity of a run: the statistics of its tools and its end are the same however the log is
divided and decoded, and their size is limited.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event, event_id
from tests.records import admit, portions, record

from runfold.store.run_state import RunState, document_of, read_document
from runfold_projections.activity import (
    BOUNDS_US,
    NO_ACTIVITY,
    OPEN_CALLS_MAX,
    TOOLS_MAX,
    RunActivity,
    ToolStatistics,
    activity_after,
    fold_activity,
    quantile,
)
from runfold_projections.admission import Admission
from runfold_projections.run import RunRecord, fold
from runfold_projections.tally import admit_all
from runfold_schemas.codec import Record
from runfold_schemas.data import Data
from runfold_schemas.events import ToolCall, ToolResult, UserMessage
from runfold_schemas.runs import ForkedFrom, RunCompleted, RunFailed, RunOpened
from runfold_schemas.sessions import FrameworkEvent

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OPENED = RunOpened(agent_id="agent-1", log_id="log-1")


def logged(*steps: tuple[Data, float], opening: RunOpened = OPENED, before: int = 0) -> list[Record]:
    """The log of a run whose events come so many seconds after noon. The first steps, as many as
    `before`, are before its opening.
    """
    log = [*steps[:before], (opening, 0.0), *steps[before:]]
    events = [
        event(data, event_id=event_id(number), timestamp=NOON + timedelta(seconds=seconds))
        for number, (data, seconds) in enumerate(log)
    ]
    return [record(each, offset) for offset, each in enumerate(events)]


def activity_of(*steps: tuple[Data, float]) -> RunActivity:
    return fold_activity(NO_ACTIVITY, admit(logged(*steps)))


FORKED = OPENED.model_copy(
    update={"forked_from": ForkedFrom(run_id="run-0", log_id="0" * 32, offset=9, events=4)}
)

ADK_CALL = FrameworkEvent(
    framework="adk",
    body={
        "author": "desk",
        "invocationId": "i-1",
        "content": {"role": "model", "parts": [{"functionCall": {"id": "a1", "name": "track", "args": {}}}]},
    },
)
ADK_RESULT = FrameworkEvent(
    framework="adk",
    body={
        "author": "desk",
        "invocationId": "i-1",
        "content": {
            "role": "user",
            "parts": [{"functionResponse": {"id": "a1", "name": "track", "response": {"error": "lost"}}}],
        },
    },
)
OPENAI_CALL = FrameworkEvent(
    framework="openai-agents",
    body={"type": "function_call", "call_id": "o1", "name": "book", "arguments": "{}"},
)
OPENAI_RESULT = FrameworkEvent(
    framework="openai-agents", body={"type": "function_call_output", "call_id": "o1", "output": "done"}
)


def call(call_id: str, name: str = "search") -> ToolCall:
    return ToolCall(tool_call_id=call_id, tool_name=name)


def result(call_id: str, **fields: Any) -> ToolResult:
    return ToolResult(tool_call_id=call_id, **fields)


def test_a_tool_has_its_calls_results_errors_and_durations():
    activity = activity_of(
        (call("c1"), 1), (call("c2"), 1), (result("c2", error="no"), 2), (result("c1", duration_ms=5), 9)
    )

    (tool,) = activity.tools
    assert (tool.name, tool.calls, tool.results, tool.errors) == ("search", 2, 2, 1)
    bounds = [(BOUNDS_US[index - 1], BOUNDS_US[index]) for index, _ in tool.buckets]
    assert [low < us <= high for (low, high), us in zip(bounds, (5_000, 1_000_000), strict=True)] == [
        True
    ] * 2
    assert activity.open_calls == ()


def test_a_result_without_a_call_counts_for_the_tool_that_it_names():
    activity = activity_of((result("c1", tool_name="search", error=""), 1), (result("c2"), 1))

    assert activity.tools == (ToolStatistics(name="search", results=1, errors=1),)


@pytest.mark.parametrize(
    ("called", "ended", "name", "errors"),
    [
        (ADK_CALL, ADK_RESULT, "track", 1),
        (
            ADK_CALL.model_copy(update={"framework": "vertex", "body": {"rawEvent": ADK_CALL.body}}),
            ADK_RESULT.model_copy(update={"framework": "vertex", "body": {"rawEvent": ADK_RESULT.body}}),
            "track",
            1,
        ),
        (OPENAI_CALL, OPENAI_RESULT, "book", 0),
    ],
)
def test_the_tools_of_frameworks_count(called, ended, name, errors):
    activity = activity_after(NO_ACTIVITY, admit_all(Admission("run-1"), logged((called, 1), (ended, 3))))

    (tool,) = activity.tools
    assert (tool.name, tool.calls, tool.results, tool.errors) == (name, 1, 1, errors)
    assert sum(count for _, count in tool.buckets) == 1


def test_the_tools_of_copies_count_in_their_source_only():
    log = logged(*((call(f"c{number}"), number) for number in range(7)), opening=FORKED, before=1)

    activity = fold_activity(NO_ACTIVITY, admit(log))

    assert activity.tools[0].calls == 7 - FORKED.forked_from.events


def test_the_first_end_counts():
    assert activity_of((UserMessage(message="hi"), 1)).ended_at is None
    ended = activity_of((RunFailed(error="no"), 3), (RunCompleted(), 5), (call("late"), 7))
    assert ended.ended_at == NOON + timedelta(seconds=3)
    assert ended.tools[0].calls == 1


def test_tools_and_open_calls_are_limited():
    activity = activity_of(*((call(f"c{number}", f"tool-{number}"), 1) for number in range(300)))

    assert len(activity.tools) == TOOLS_MAX + 1
    assert activity.tools[-1] == ToolStatistics(name=None, calls=300 - TOOLS_MAX)
    assert len(activity.open_calls) == OPEN_CALLS_MAX
    assert activity.open_calls[-1].tool_call_id == "c299"
    longest = activity_of((call("c" * 5_000, "t" * 5_000), 1))
    assert len(longest.model_dump_json()) < 500


steps = st.lists(
    st.tuples(
        st.one_of(
            st.builds(call, st.sampled_from("abc"), st.sampled_from(["search", "book"])),
            st.builds(
                result,
                st.sampled_from("abc"),
                tool_name=st.sampled_from(["", "book"]),
                error=st.sampled_from([None, "", {"code": 1}]),
                duration_ms=st.sampled_from([None, 0.0, 2.5, 1e300]),
            ),
            st.sampled_from([RunCompleted(), RunFailed(error="no"), UserMessage(message="hi")]),
            st.sampled_from([ADK_CALL, ADK_RESULT, OPENAI_CALL, OPENAI_RESULT]),
        ),
        st.floats(0, 100_000),
    ),
    max_size=30,
)


@given(steps, st.sampled_from([OPENED, FORKED]), st.integers(0, 3), st.data())
def test_any_division_of_the_log_gives_the_same(log, opening, before, data):
    records = logged(*log, opening=opening, before=before)
    whole = fold_activity(NO_ACTIVITY, admit(records))

    divided, admission = NO_ACTIVITY, Admission("run-1")
    for portion in data.draw(portions(records)):
        divided = activity_after(divided, admit_all(admission, portion))

    assert divided == whole
    assert RunActivity.model_validate_json(whole.model_dump_json()) == whole


@given(steps)
def test_the_activity_is_stored_with_the_state(log):
    admitted = admit(logged(*log))
    record = fold(RunRecord(run_id="run-1"), admitted)
    activity = fold_activity(NO_ACTIVITY, admitted)
    state = RunState(log_id="log-1", partition=0, active=True, record=record, activity=activity)

    document = {"_id": "run-1", **document_of(state)}

    assert read_document(document).activity == activity
    assert read_document(document | {"activity": None}).activity is None
    assert read_document(document | {"next_offset": 99, "activity": [99, "{}", 1]}).activity is None
    assert document["ended_us"] is None or document["duration_us"] is not None


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_quantile_is_near_the_true_one(share):
    seconds = [0.01 * number for number in range(1, 1000)]
    buckets: dict[int, int] = {}
    for each in seconds:
        index = next(index for index, bound in enumerate(BOUNDS_US) if each * 1e6 <= bound)
        buckets[index] = buckets.get(index, 0) + 1

    assert quantile(sorted(buckets.items()), share) == pytest.approx(seconds[int(share * 999)], rel=0.15)
    assert quantile([], share) is None
