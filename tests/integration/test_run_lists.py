"""Lists of runs over HTTP and on the command line: the same filters and orders, with times, cost
and errors; and what is shown of sessions.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.commands import command
from tests.integration.test_follow_command import command as following
from tests.processes import until
from tests.querying import Projected

from runfold import RunCompleted, RunFailed, Runfold, TokenUsage, ToolCall, ToolResult, UserMessage
from runfold.settings import Settings

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def now() -> datetime:
    """When the tests begin, which may be long after this module is imported."""
    return datetime.now(UTC)


@pytest.fixture(scope="module")
async def ids(stored: Projected, now: datetime) -> dict[str, str]:
    """Runs and a session, as they are stored, by what became of them."""
    runfold, ids = stored.runfold, {}
    for name, ending, age, options in (
        ("failed", RunFailed(error="The carrier timed out"), 2 * HOUR, {"agent_id": "desk"}),
        ("completed", RunCompleted(), 5 * HOUR, {"agent_id": "desk", "labels": {"channel": "chat"}}),
        ("stuck", None, 3 * HOUR, {"agent_id": "lab"}),
    ):
        run = await runfold.open_run(run_id=f"r-{name}", started_at=now - age, **options)
        events = [run.event(TokenUsage(input_tokens=int(age.total_seconds())), timestamp=now - age)]
        if ending is not None:
            events.append(run.event(ending, timestamp=now - age + timedelta(seconds=90)))
        await run.publish_batch(events)
        ids[name] = run.run_id
    session = await runfold.sessions.create(app="desk", user="ann", session_id="s-1")
    ids["session"] = session.record.run_id

    async def are_stored() -> bool:
        states = await stored.runs.get_many(list(ids.values()))
        positions = {states[each].record.next_offset for each in ids.values() if each in states}
        return len(states) == len(ids) and positions == {1, 2, 3}

    await until(are_stored, what="the runs' states")
    return ids


async def listed(client: httpx.AsyncClient, ids: dict[str, str], **params: Any) -> list[str]:
    answer = await client.get("/v1/runs", params=params)
    assert answer.status_code == 200, answer.text
    names = {run_id: name for name, run_id in ids.items()}
    return [names[run["run_id"]] for run in answer.json()["runs"]]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ["session", "failed", "stuck", "completed"]),
        ({"status": ["failed", "completed"]}, ["failed", "completed"]),
        ({"status": "running"}, ["session", "stuck"]),
        ({"status": "running", "is_session": "false"}, ["stuck"]),
        ({"status": "open"}, ["session"]),
        ({"failed_since": "3h"}, ["failed"]),
        ({"failed_since": "1h"}, []),
        ({"ended_since": "6h"}, ["failed", "completed"]),
        ({"updated_since": "4h", "status": "failed"}, ["failed"]),
        ({"idle": "30m"}, ["stuck"]),
        ({"idle": "4h"}, []),
        ({"user_id": "ann"}, ["session"]),
        ({"text": "carrier tim"}, ["failed"]),
        ({"text": "CHAT desk"}, ["completed"]),
        ({"sort": "tokens"}, ["completed", "stuck", "failed"]),
        ({"sort": "updated", "ascending": "true"}, ["completed", "stuck", "failed", "session"]),
        ({"sort": "ended"}, ["failed", "completed"]),
        ({"since": "150m", "until": "1h"}, ["failed"]),
    ],
    ids=str,
)
async def test_runs_are_listed_by_what_became_of_them(client, ids, params, expected):
    assert await listed(client, ids, **params) == expected


async def test_a_time_may_be_a_date_instead_of_an_age(client, ids, now):
    assert await listed(client, ids, ended_since=(now - 4 * HOUR).isoformat()) == ["failed"]


async def test_a_list_says_when_runs_ended_how_long_they_took_and_what_is_a_session(client, ids, now):
    runs = {run["run_id"]: run for run in (await client.get("/v1/runs")).json()["runs"]}

    failed, stuck, session = (runs[ids[name]] for name in ("failed", "stuck", "session"))
    assert datetime.fromisoformat(failed["ended_at"]) == now - 2 * HOUR + timedelta(seconds=90)
    assert failed["duration_seconds"] == 90
    assert failed["cost"]["amount"] is None
    assert "RUNFOLD_PRICES" in failed["cost"]["reason"]
    assert (stuck["ended_at"], stuck["duration_seconds"], stuck["is_session"]) == (None, None, False)
    assert (session["status"], session["is_session"]) == ("running", True)
    record = (await client.get(f"/v1/runs/{ids['failed']}")).json()
    assert (record["ended_at"], record["duration_seconds"]) == (failed["ended_at"], 90)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"since": "yesterday"}, "since"),
        ({"idle": "-1h"}, "idle"),
        ({"idle": "0m"}, "idle"),
        ({"sort": "cost"}, "sort"),
        ({"status": "open-ish"}, "status"),
        ({"failed_since": "1h", "status": "completed"}, "failed_since"),
        ({"sort": "tokens", "cursor": "WzEsICJ4Il0="}, "cursor"),
    ],
)
async def test_a_wrong_filter_is_refused(client, params, field):
    answer = await client.get("/v1/runs", params=params)

    assert answer.status_code == 422
    assert answer.json()["field"] == field


async def test_the_command_lists_the_same(settings: Settings, ids):
    code, printed = await command(settings, "runs", "--status", "running", "--json")
    assert (code, [json.loads(line)["run_id"] for line in printed.splitlines()]) == (0, [ids["stuck"]])

    code, printed = await command(settings, "runs", "--since", "6h")
    assert code == 0
    header, *lines = printed.splitlines()
    assert header.split()[:3] == ["run", "status", "agent"]
    assert [line.split()[:3] for line in lines] == [
        [ids["session"], "open", "desk"],
        [ids["failed"], "failed", "desk"],
        [ids["stuck"], "running", "lab"],
        [ids["completed"], "completed", "desk"],
    ]
    assert "1 min 30 s" in lines[1]
    assert "7,200" in lines[1]
    assert lines[1].endswith("The carrier timed out")

    code, printed = await command(settings, "runs", "--idle", "soon")
    assert code != 0
    assert "--idle" in printed


async def test_follow_waits_for_a_run(settings: Settings, runfold: Runfold):
    async with following(settings, "follow", "r-late", "--wait") as follow:
        await follow.shows("waiting for run r-late")
        async with runfold.run(agent_id="desk", run_id="r-late") as run:
            await run.publish(UserMessage(message="here I am"))
        assert await follow.ends() == 0

    assert [who for _, who, _ in follow.said()] == ["run", "user", "run"]


async def test_tools_are_counted_as_the_log_says(stored: Projected, now: datetime):
    run = await stored.runfold.open_run(agent_id="lab", run_id="r-tools")
    await run.publish_batch(
        [
            run.event(ToolCall(tool_call_id="c1", tool_name="search"), timestamp=now),
            run.event(ToolCall(tool_call_id="c2", tool_name="search"), timestamp=now),
            run.event(
                ToolResult(tool_call_id="c1", tool_name="search", result=1),
                timestamp=now + timedelta(seconds=3),
            ),
        ]
    )
    last = await run.publish(ToolResult(tool_call_id="c2", error="no"))

    async def is_stored() -> bool:
        state = await stored.runs.get(run.run_id)
        return state is not None and state.record.next_offset > last.offset

    await until(is_stored, what="the run's state")
    state = await stored.runs.get(run.run_id)
    assert state is not None
    assert state.activity is not None
    (tool,) = state.activity.tools
    assert (tool.name, tool.calls, tool.results, tool.errors) == ("search", 2, 2, 1)
    assert sum(count for _, count in tool.buckets) == 2


async def test_agents_have_their_runs_failures_tokens_and_tools(
    client: httpx.AsyncClient, settings: Settings, ids, stored: Projected
):
    tools = await stored.runfold.get_run("r-tools")
    await tools.complete()

    async def has_ended() -> bool:
        state = await stored.runs.get("r-tools")
        return state is not None and state.ended_at is not None

    await until(has_ended, what="the end of the run")
    listed = (await client.get("/v1/agents", params={"since": "1d"})).json()
    agents = {agent["agent_id"]: agent for agent in listed["agents"]}

    desk = agents["desk"]
    known = (desk["runs"], desk["open"], desk["ended"], desk["failed"], desk["failure_rate"])
    assert known in {(3, 1, 2, 1, 0.5), (4, 1, 3, 1, 1 / 3)}  # another test may have run one
    assert desk["usage"]["input_tokens"] == 7 * 3600
    assert sum(day["failed"] for day in desk["runs_by_day"]) == 1
    assert desk["cost"]["amount"] is None
    assert desk["duration_seconds"]["p95"] == pytest.approx(90, rel=0.45)

    lab = (await client.get("/v1/agents/lab", params={"since": "1d"})).json()
    assert (lab["tool_calls"], lab["tool_errors"]) == (2, 1)
    (tool,) = lab["tools"]
    assert (tool["tool_name"], tool["calls"], tool["results"], tool["errors"]) == ("search", 2, 2, 1)
    assert tool["timed"] == sum(bucket["count"] for bucket in tool["histogram"]) == 2
    (model,) = lab["by_model"]
    assert (model["model"], model["input_tokens"], model["calls"]) == (None, 3 * 3600, 1)
    nobody = (await client.get("/v1/agents/nobody")).json()
    assert (nobody["runs"], nobody["failure_rate"], nobody["tools"]) == (0, None, [])
    assert (await client.get("/v1/agents", params={"since": "100d"})).status_code == 422

    (listed_tool,) = (await client.get("/v1/tools", params={"since": "1d"})).json()["tools"]
    assert listed_tool == {**tool, "agents": 1, "agent_ids": ["lab"]}
    assert (await client.get("/v1/tools", params={"since": "100d"})).status_code == 422

    code, printed = await command(settings, "agents", "--tools", "--since", "1d")
    assert code == 0
    assert any(line.split()[:4] == ["search", "2", "2", "1"] for line in printed.splitlines())
    code, printed = await command(settings, "agents", "lab", "--since", "1d")
    assert code == 0
    assert any(line.split()[:4] == ["search", "2", "2", "1"] for line in printed.splitlines())
    code, printed = await command(settings, "agents", "--since", "1d", "--json")
    assert {json.loads(line)["agent_id"] for line in printed.splitlines()} == {"desk", "lab"}
