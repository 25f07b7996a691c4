"""Statistics of agents with both drivers: the number of rows is limited for any names of tools."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from runfold.store.agents import TOOLS_MAX, sums_of_agents, sums_of_tools
from runfold.store.run_state import RunState
from runfold.store.runs import RunStore
from runfold_projections.activity import RunActivity, ToolStatistics
from runfold_projections.run import RunRecord

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMES = {"since": NOON - timedelta(days=1), "until": NOON + timedelta(days=1)}


def ran(*tools: ToolStatistics, agent_id: str = "lab") -> RunState:
    log_id = uuid4().hex
    record = RunRecord(
        run_id=f"run-{log_id}", agent_id=agent_id, status="running", started_at=NOON, next_offset=3
    )
    activity = RunActivity(tools=tools)
    return RunState(log_id=log_id, partition=0, active=True, record=record, activity=activity)


def tool(name: str | None, calls: int) -> ToolStatistics:
    return ToolStatistics(name=name, calls=calls, results=1, errors=1, buckets=((3, 1), (7, 2)))


async def test_the_tools_with_the_most_calls_have_rows_of_their_own(store):
    runs = RunStore(store, uuid4().hex)
    names = [f"$tool-{number:03}" for number in range(TOOLS_MAX + 40)]
    parts = [names[start : start + 40] for start in range(0, len(names), 40)]
    await runs.add([ran(*(tool(name, names.index(name) + 1) for name in part)) for part in parts])
    await runs.add([ran(tool(None, 5))])

    sums = await sums_of_tools(runs, ["lab"], **TIMES)
    (total,) = (await sums_of_agents(runs, **TIMES)).calls

    calls = {each["name"]: each["calls"] for each in sums.tools}
    assert set(calls) == {None, *names[40:]}
    assert calls[None] == sum(range(1, 41)) + 5
    assert (total["calls"], total["errors"]) == (sum(calls.values()), len(names) + 1)
    assert len(sums.buckets) == 2 * len(calls)
    assert {each["bucket"]: each["count"] for each in sums.buckets if each["name"] is None} == {3: 41, 7: 82}


async def test_a_few_tools_are_all_named(store):
    runs = RunStore(store, uuid4().hex)
    await runs.add([ran(tool("search", 2), tool(None, 1)), ran(tool("search", 3))])

    sums = await sums_of_tools(runs, ["lab"], **TIMES)

    assert {each["name"]: each["calls"] for each in sums.tools} == {"search": 5, None: 1}
    assert {(each["name"], each["bucket"]): each["count"] for each in sums.buckets} == {
        ("search", 3): 2,
        ("search", 7): 4,
        (None, 3): 1,
        (None, 7): 2,
    }


async def test_the_tools_of_several_agents_have_a_row_for_each(store):
    runs = RunStore(store, uuid4().hex)
    await runs.add([ran(tool("search", 2)), ran(tool("search", 3), agent_id="desk")])
    await runs.add([ran(tool("search", 5), agent_id="other")])

    everything = await sums_of_tools(runs, None, **TIMES)
    two = await sums_of_tools(runs, ["lab", "desk"], **TIMES)

    rows = {each["agent"]: each["calls"] for each in everything.tools}
    assert rows == {"lab": 2, "desk": 3, "other": 5}
    assert {each["agent"] for each in two.tools} == {"lab", "desk"}
    assert {each["bucket"]: each["count"] for each in everything.buckets} == {3: 3, 7: 6}
