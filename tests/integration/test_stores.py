"""Goa-AI's verbs over the log."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from runfold import (
    InvalidEventError,
    RunCompleted,
    RunConflictError,
    RunEndedError,
    Runfold,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold.stores import MemoryEvent, MemoryStore, Record, RunfoldStores, RunStore, Snapshot

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UPDATED = datetime(2026, 1, 2, 3, 5, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
async def runfold(kafka: str) -> AsyncIterator[Runfold]:
    async with Runfold(kafka, prefix=f"t{uuid4().hex[:8]}", create_topics=True) as runfold:
        yield runfold


@pytest.fixture(scope="module")
def stores(runfold: Runfold) -> RunfoldStores:
    return RunfoldStores(runfold)


@pytest.fixture(scope="module")
def memories(stores: RunfoldStores) -> MemoryStore:
    return stores


@pytest.fixture(scope="module")
def runs(stores: RunfoldStores) -> RunStore:
    return stores


async def test_appending_opens_the_run_and_loading_gives_back_what_was_appended(memories: MemoryStore):
    call = ToolCall(tool_call_id="c", tool_name="search", payload={"n": 2**70})

    await memories.append_events("a", "appended", UserMessage(message="hi"), Thinking(text="hm"))
    await memories.append_events("a", "appended", call)

    snapshot = await memories.load_run("a", "appended")
    assert [event.type for event in snapshot.events] == ["user_message", "thinking", "tool_call"]
    assert snapshot.events[2].data == call
    assert snapshot.meta["next_offset"] == 4


async def test_an_entry_may_name_its_kind_and_bring_its_time_and_labels(memories: MemoryStore):
    entry = MemoryEvent("planner_note", {"note": "n"}, timestamp=STARTED, labels={"severity": "low"})

    await memories.append_events("a", "entries", entry)

    [event] = (await memories.load_run("a", "entries")).events
    assert (event.type, event.timestamp, event.labels) == ("planner_note", STARTED, {"severity": "low"})


async def test_an_unknown_run_loads_empty(memories: MemoryStore, runs: RunStore):
    await memories.append_events("a", "of a", UserMessage(message="hi"))

    assert await memories.load_run("a", "unknown") == Snapshot("a", "unknown")
    assert await memories.load_run("b", "of a") == Snapshot("b", "of a")
    assert await runs.load_run_record("unknown") is None


async def test_a_snapshot_is_searched_by_kind(memories: MemoryStore):
    results = [ToolResult(tool_call_id=str(number), result=number) for number in range(3)]
    await memories.append_events("a", "searched", UserMessage(message="hi"), *results)

    snapshot = await memories.load_run("a", "searched")

    latest = snapshot.latest("tool_result")
    assert [event.data for event in snapshot.filter_by_type("tool_result")] == results
    assert latest is not None
    assert latest.data == results[-1]
    assert snapshot.latest("thinking") is None
    assert snapshot.filter_by_type("thinking") == []


async def test_appending_is_all_or_nothing(memories: MemoryStore):
    with pytest.raises(InvalidEventError) as refused:
        await memories.append_events(
            "a", "whole", UserMessage(message="hi"), MemoryEvent("user_message", {"message": 1})
        )

    assert refused.value.field == "data.message"
    assert (await memories.load_run("a", "whole")).events == ()


async def test_the_run_of_another_agent_cannot_be_appended_to(memories: MemoryStore):
    await memories.append_events("a", "taken", UserMessage(message="hi"))

    with pytest.raises(RunConflictError):
        await memories.append_events("b", "taken", UserMessage(message="hi"))


async def test_a_run_that_has_ended_still_takes_memories_and_no_second_end(
    memories: MemoryStore, runs: RunStore
):
    await runs.upsert_run(Record(agent_id="a", run_id="over", status="completed"))
    await memories.append_events("a", "over", UserMessage(message="late"))
    await runs.upsert_run(Record(agent_id="a", run_id="over", status="completed", labels={"late": "yes"}))

    with pytest.raises(RunEndedError):
        await memories.append_events("a", "over", RunCompleted())
    with pytest.raises(RunEndedError):
        await runs.upsert_run(Record(agent_id="a", run_id="over", status="running"))

    record = await runs.load_run_record("over")
    assert record is not None
    assert (record.status, record.labels) == ("completed", {"late": "yes"})
    assert len((await memories.load_run("a", "over")).events) == 1


async def test_a_record_that_is_upserted_is_loaded_as_it_was(runs: RunStore):
    record = Record(
        agent_id="a",
        run_id="whole record",
        session_id="s",
        turn_id="t-1",
        status="running",
        started_at=STARTED,
        updated_at=UPDATED,
        labels={"tier": "gold"},
        metadata={"attempt": 2**70, "nested": {"$a.b": [None]}},
    )

    await runs.upsert_run(record)

    assert await runs.load_run_record("whole record") == record


async def test_upserting_again_publishes_what_changed_and_nothing_else(runfold: Runfold, runs: RunStore):
    record = Record(
        agent_id="a", run_id="again", turn_id="t-1", labels={"a": "1", "b": "1"}, metadata={"x": 1}
    )
    changed = record.model_copy(
        update={"turn_id": "t-2", "labels": {"b": "2"}, "metadata": {"x": 1, "y": [2]}, "status": "paused"}
    )

    await runs.upsert_run(record)
    await runs.upsert_run(record)
    await runs.upsert_run(changed)
    await runs.upsert_run(changed)

    loaded = await runs.load_run_record("again")
    events = [event async for event in (await runfold.get_run("again")).events()]
    assert loaded is not None
    assert (loaded.turn_id, loaded.status) == ("t-2", "paused")
    assert loaded.labels == {"a": "1", "b": "2"}
    assert loaded.metadata == {"x": 1, "y": [2]}
    assert [event.type for event in events] == [
        "run_opened",
        "run_labeled",
        "run_labeled",
        "run_started",
        "run_paused",
    ]
    assert events[2].data.model_dump() == {"labels": {"b": "2"}, "metadata": {"y": [2]}}


async def test_a_run_goes_through_its_statuses_by_upserts(runfold: Runfold, runs: RunStore):
    for status in ("pending", "running", "paused", "running", "failed"):
        await runs.upsert_run(
            Record(agent_id="a", run_id="statuses", status=status, metadata={"error": "no tool"})
        )
        loaded = await runs.load_run_record("statuses")
        assert loaded is not None
        assert loaded.status == status

    last = [event async for event in (await runfold.get_run("statuses")).events()][-1]
    assert last.data.model_dump() == {"error": "no tool"}


async def test_a_run_does_not_become_pending_again(runs: RunStore):
    await runs.upsert_run(Record(agent_id="a", run_id="begun", status="running"))

    with pytest.raises(InvalidEventError):
        await runs.upsert_run(Record(agent_id="a", run_id="begun", status="pending"))
