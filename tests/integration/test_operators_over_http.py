"""The clients over HTTP for operators' scripts: lists of runs, agents, dead letters, operations."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.processes import append_raw, until
from tests.querying import Projected

from runfold import (
    DeadLetterNotFoundError,
    HttpOperations,
    HttpRuns,
    InvalidEventError,
    NotQuarantinedError,
    RunFailed,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)


async def test_runs_are_listed_and_agents_are_counted(url: str, stored: Projected):
    agent_id, now = "listed/agent", datetime.now(UTC)
    run_ids = []
    for number in range(3):
        run = await stored.run(
            ToolCall(tool_call_id="c", tool_name="look", arguments={}),
            ToolResult(tool_call_id="c", tool_name="look", error="no"),
            TokenUsage(input_tokens=10, model="m"),
            RunFailed(error="it timed out"),
            agent_id=agent_id,
            labels={"n": str(number)},
            started_at=now - timedelta(hours=3 - number),
        )
        run_ids.insert(0, run.run_id)

    async with HttpRuns(url) as runs:
        first, cursor = await runs.list(agent_id=agent_id, limit=2)
        second, end = await runs.list(agent_id=agent_id, limit=2, cursor=cursor)
        filtered, _ = await runs.list(
            agent_id=agent_id,
            status=["failed", "open"],
            labels={"n": "1"},
            since=timedelta(hours=9),
            failed_since="1h",
            until=now,
            is_session=False,
            text="timed",
            sort="tokens",
            ascending=True,
        )
        idle, _ = await runs.list(agent_id=agent_id, idle=timedelta(minutes=30))
        agents = await runs.agents(since=timedelta(days=1))
        agent = await runs.agent(agent_id)
        tools = await runs.tools(since=timedelta(days=1))
        with pytest.raises(InvalidEventError):
            await runs.list(idle="soon")

    assert [run.run_id for run in (*first, *second)] == run_ids
    assert (end, idle) == (None, [])
    assert [(run.run_id, run.error, run.usage.input_tokens) for run in filtered] == [
        (run_ids[1], "it timed out", 10)
    ]
    [listed] = [each for each in agents if each.agent_id == agent_id]
    assert (listed.runs, listed.failed, listed.tool_errors) == (3, 3, 3)
    assert [(tool.tool_name, tool.errors) for tool in agent.tools] == [("look", 3)]
    assert [(tool.errors, tool.agent_ids) for tool in tools if tool.tool_name == "look"] == [(3, [agent_id])]
    assert [(model.model, model.calls) for model in agent.by_model] == [("m", 3)]


async def test_dead_letters_are_listed_shown_and_published_again(url: str, stored: Projected):
    run = await stored.runfold.open_run(agent_id="desk")
    await append_raw(stored.runfold, run, b"\xff no JSON")
    letter_id = f"{stored.runfold.connection.topics.run(run.run_id, run.life.log_id)}:1"
    await run.publish(UserMessage(message="behind"))
    async with HttpOperations(url) as operations:

        async def is_listed() -> bool:
            letters, _ = await operations.dead_letters(run_id=run.run_id)
            return [letter.id for letter in letters] == [letter_id]

        await until(is_listed, what="the dead letter")
        letter = await operations.dead_letter(letter_id)

        async def is_counted() -> bool:
            return (await operations.read()).dead_letters == 1

        async def is_counted_no_longer() -> bool:
            return (await operations.read()).dead_letters == 0

        await until(is_counted, what="the number of dead letters")
        with pytest.raises(InvalidEventError, match="still cannot be decoded"):
            await operations.requeue(letter_id)
        mended = {"type": "user_message", "data": {"message": "mended"}}
        done = [await operations.requeue(letter_id, mended) for _ in range(2)]
        await until(is_counted_no_longer, what="the number without the dead letter")
        rest, _ = await operations.dead_letters(run_id=run.run_id, requeued=False)
        with pytest.raises(DeadLetterNotFoundError):
            await operations.dead_letter("nothing:0")

    assert (letter.value, letter.value_base64) == (None, "/yBubyBKU09O")
    assert done[0].requeued is not None
    assert done[0] == done[1]
    assert rest == []
    messages = [each.data.message async for each in run.events() if isinstance(each.data, UserMessage)]
    assert messages == ["behind", "mended"]


async def test_operations_and_an_empty_quarantine_are_read(url: str, stored: Projected):
    async with HttpOperations(url) as operations:
        document = await operations.read()
        entries, cursor = await operations.quarantine("run")
        for verb in (operations.quarantined, operations.retry):
            with pytest.raises(NotQuarantinedError):
                await verb("run:no/body")
        with pytest.raises(NotQuarantinedError):
            await operations.skip("run:no/body", offset=0)

    assert document.editions.current == stored.stores.name
    assert (entries, cursor) == ([], None)
