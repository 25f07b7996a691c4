"""Forks: new runs that begin with the events of another run."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.commands import command
from tests.processes import until
from tests.querying import Projected, projected

from runfold import (
    AssistantMessage,
    InvalidEventError,
    InvalidIdError,
    PlannerNote,
    Run,
    RunConflictError,
    Runfold,
    RunNotFoundError,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold.client import forking
from runfold.projector import sweep
from runfold.settings import Settings
from runfold_schemas.messages import PROVIDERS
from runfold_schemas.runs import RunOpened


async def conversation(runfold: Runfold, **options: Any) -> Run:
    """A run with two turns, of which only the questions name their turn."""
    run = await runfold.open_run(agent_id="desk", **options)
    await run.publish(UserMessage(message="To Lyon?"), turn_id="turn-1")
    await run.publish(AssistantMessage(message="07:04"), state_delta={"to": "Lyon", "user:city": "Lyon"})
    await run.publish(TokenUsage(input_tokens=10, output_tokens=5))
    await run.publish(UserMessage(message="And back?"), turn_id="turn-2")
    await run.publish(ToolCall(tool_call_id="c1", tool_name="trains", payload={"to": "Paris"}))
    await run.publish(ToolResult(tool_call_id="c1", tool_name="trains", result=["19:00"]))
    await run.publish(AssistantMessage(message="19:00"))
    return run


async def events(run: Run) -> list[tuple[str, str]]:
    return [(event.type, event.event_id) async for event in run.events()]


async def test_a_fork_begins_with_the_events_before_a_turn(runfold: Runfold):
    source = await conversation(runfold)

    fork = await source.fork(before_turn="turn-2")
    await fork.publish(UserMessage(message="And to Nice?"))

    assert fork.is_new
    assert [part.text for message in await fork.ledger() for part in message.parts] == [
        "To Lyon?",
        "07:04",
        "And to Nice?",
    ]
    assert (await events(fork))[1:3] == (await events(source))[1:3]
    origin = (await opening(fork)).forked_from
    assert origin is not None
    assert origin.model_dump() == {
        "run_id": source.run_id,
        "log_id": source.life.log_id,
        "offset": 3,
        "events": 2,
    }


async def opening(run: Run) -> RunOpened:
    async for admitted in run.history(end=1):
        assert admitted.event is not None
        assert isinstance(admitted.event.data, RunOpened)
        return admitted.event.data
    raise AssertionError


async def test_a_cut_between_a_call_and_its_result_is_repaired(runfold: Runfold):
    source = await conversation(runfold)

    fork = await source.fork(at=5)
    open_call = await source.fork(at=5, repair=False)

    for provider in PROVIDERS:
        assert await fork.faults(provider) == []
        assert "call-has-result" in {fault.rule for fault in await open_call.faults(provider)}
    await open_call.publish(ToolResult(tool_call_id="c1", tool_name="trains", result=["21:00"]))
    assert await open_call.faults("anthropic") == []


async def test_repeating_a_fork_with_an_id_yields_the_same_run(runfold: Runfold):
    source = await conversation(runfold)
    run_id = f"{source.run_id}-again"

    fork = await source.fork(at=3, run_id=run_id)
    again = await source.fork(at=3, run_id=run_id)
    by_turn = await source.fork(before_turn="turn-2", run_id=run_id)

    assert (fork.is_new, again.is_new, by_turn.is_new) == (True, False, False)
    assert {fork.life.log_id, again.life.log_id, by_turn.life.log_id} == {fork.life.log_id}
    assert again.forked_from == fork.forked_from
    with pytest.raises(InvalidIdError, match=r"is a fork of .* at offset 3: choose another id"):
        await source.fork(at=2, run_id=run_id)
    with pytest.raises(RunConflictError):
        await source.fork(run_id=source.run_id)


async def test_a_place_that_the_run_does_not_have_is_refused(runfold: Runfold):
    source = await conversation(runfold)

    with pytest.raises(InvalidEventError, match="has no offset 8: its log ends at 8") as beyond:
        await source.fork(at=8)
    with pytest.raises(InvalidEventError, match="has no turn 'turn-3'") as unknown:
        await source.fork(before_turn="turn-3")
    with pytest.raises(InvalidEventError, match="only one of at and before_turn"):
        await source.fork(at=2, before_turn="turn-2")

    assert (beyond.value.field, unknown.value.field) == ("at", "before_turn")


async def test_a_fork_of_a_run_that_goes_on_has_a_fixed_end(
    runfold: Runfold, monkeypatch: pytest.MonkeyPatch
):
    """More is appended to the source while batches are copied."""
    source = await runfold.open_run(agent_id="desk")
    await source.publish_batch([PlannerNote(note=str(number)) for number in range(1000)])
    monkeypatch.setattr(forking, "_BATCH_EVENTS", 100)
    appended = 0
    batches = forking._batches

    def appending(copies: Any) -> Any:
        nonlocal appended
        for batch in batches(copies):
            appended += 1
            yield batch

    monkeypatch.setattr(forking, "_batches", appending)

    sent = [await source.send(PlannerNote(note="later")) for _ in range(3)]
    fork = await source.fork(at=1000)
    await source.flush()

    assert appended == 10
    assert len(sent) == 3
    assert [event.event_id async for event in fork.events()][1:] == [
        event.event_id async for event in source.events()
    ][1:1001]


async def test_the_record_says_where_the_run_comes_from_and_usage_counts_once(
    runfold: Runfold, stored: Projected, client: httpx.AsyncClient
):
    source = await conversation(runfold, labels={"channel": "chat"})
    await source.label(tier="gold")

    fork = await source.fork(labels={"why": "debug"})
    offset = (await fork.publish(UserMessage(message="more"))).offset

    record = (await client.get(f"/v1/runs/{fork.run_id}", params={"min_offset": offset})).json()
    assert record["forked_from"] == {
        "run_id": source.run_id,
        "log_id": source.life.log_id,
        "offset": 8,
        "events": 6,
    }
    assert record["labels"] == {"channel": "chat", "tier": "gold", "why": "debug"}
    assert record["status"] == "running"
    assert record["usage"]["input_tokens"] == 0
    source_record = (await client.get(f"/v1/runs/{source.run_id}", params={"min_offset": 8})).json()
    assert "forked_from" not in source_record
    assert source_record["usage"]["input_tokens"] == 10

    async def is_listed() -> bool:
        runs = (await client.get("/v1/runs", params={"label": "why:debug"})).json()["runs"]
        return [run.get("forked_from", {}).get("events") for run in runs] == [6]

    await until(is_listed, what="the fork in the list")


async def test_a_fork_over_http_is_repeatable_by_its_key(runfold: Runfold, url: str):
    source = await conversation(runfold)
    path, key = f"/v1/runs/{source.run_id}/fork", {"Idempotency-Key": source.run_id}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        first = await client.post(path, json={"before_turn": "turn-2"}, headers=key)
        again = await client.post(path, json={"before_turn": "turn-2"}, headers=key)
        named = await client.post(path, json={"before_turn": "turn-2", "run_id": first.json()["run_id"]})
        other = await client.post(path, json={"at": 1, "run_id": first.json()["run_id"]})
        unknown = await client.post(path, json={"before_turn": "turn-9"})
        missing = await client.post("/v1/runs/no-run/fork", json={})
        ledger = await client.get(f"/v1/runs/{first.json()['run_id']}/ledger", params={"min_offset": 2})

    assert [each.status_code for each in (first, again, named)] == [201, 201, 200]
    assert first.json() == again.json() == named.json()
    assert first.headers["location"] == f"/v1/runs/{first.json()['run_id']}"
    assert first.json()["forked_from"]["offset"] == 3
    assert first.json()["next_offset"] == 3
    assert [message["role"] for message in ledger.json()["messages"]] == ["user", "assistant"]
    assert (other.status_code, unknown.status_code, missing.status_code) == (422, 422, 404)
    assert unknown.json()["field"] == "before_turn"


async def test_the_command_forks_a_run(runfold: Runfold, settings: Settings):
    source = await conversation(runfold)
    run_id = f"{source.run_id}-forked"

    code, output = await command(settings, "fork", source.run_id, "--at", "5", "--id", run_id)

    assert code == 0
    assert output.splitlines()[0] == run_id
    assert f"4 events of {source.run_id} up to offset 5" in output
    assert (await runfold.get_run(run_id)).life.agent_id == "desk"
    code, output = await command(settings, "replay", run_id)
    assert code == 0
    assert source.life.log_id in output


async def test_a_fork_of_a_session_keeps_its_state_and_changes_none(runfold: Runfold):
    sessions = runfold.sessions
    session = await sessions.create(app="shop", user="ann", state={"step": 1, "user:city": "Lyon"})
    await sessions.append(session.session_id, UserMessage(message="Hello"), state_delta={"step": 2})
    run = await runfold.get_run(session.record.run_id)

    fork = await run.fork()
    await sessions.delete_user_state("shop", "ann")
    position = await fork.publish(UserMessage(message="Hi"), state_delta={"step": 3})

    assert fork.life.user_id == "ann"
    assert fork.life.session_id is None
    assert [event.state_delta async for event in fork.events()] == [
        None,
        {"step": 1},
        {"step": 2},
        {"step": 3},
    ]
    assert position.offset == 3
    assert (await sessions.view(session.session_id)).state == {"step": 2}
    other = await sessions.create(app="shop", user="bob")
    with pytest.raises(InvalidEventError, match="is of another user"):
        await run.fork(session_id=other.session_id)


async def test_a_fork_that_was_never_completed_is_deleted_by_the_sweep(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
):
    """The process dies after a batch: nothing of it can announce or delete the topic."""
    quick = settings.model_copy(update={"sweep_seconds": 0.2, "prefix": f"{settings.prefix}q"})
    quick = quick.model_copy(update={"database": quick.prefix})
    monkeypatch.setattr(sweep, "_ORPHAN_TIMEOUTS", 0.02)
    monkeypatch.setattr(forking, "_BATCH_EVENTS", 2)
    async with Runfold.of(quick.log()) as client:
        source = await conversation(client)
        complete = await source.fork()

        def dying(copies: Any) -> Any:
            yield copies[:2]
            raise ConnectionAbortedError

        async def nothing(*_: Any) -> None:
            return

        monkeypatch.setattr(forking, "_batches", dying)
        monkeypatch.setattr(forking._Forking, "_discard", nothing)
        with pytest.raises(ConnectionAbortedError):
            await source.fork(run_id="unfinished")

        async def topics() -> set[str]:
            parse = client.connection.topics.parse_run
            names = await client.connection.admin.list_run_topics()
            return {run.run_id for name in names if (run := parse(name)) is not None}

        async def is_cleared() -> bool:
            return await topics() == {source.run_id, complete.run_id}

        assert await topics() == {source.run_id, complete.run_id, "unfinished"}
        async with projected(quick):
            await until(is_cleared, what="the deletion of the fork's topic")
            with pytest.raises(RunNotFoundError):
                await client.get_run("unfinished")


async def test_of_two_forks_with_one_id_there_is_one(runfold: Runfold):
    source = await conversation(runfold)
    run_id = f"{source.run_id}-both"

    forks = await asyncio.gather(*(source.fork(at=3, run_id=run_id) for _ in range(3)))

    assert len({fork.life.log_id for fork in forks}) == 1
    assert sum(fork.is_new for fork in forks) == 1
    assert len(await events(forks[0])) == 3


async def test_a_fork_of_a_run_that_is_deleted_meanwhile_is_deleted(
    runfold: Runfold, stored: Projected, monkeypatch: pytest.MonkeyPatch
):
    source = await conversation(runfold)
    fill = forking._Forking._fill

    async def filling(fork: Any, *rest: Any) -> None:
        await fill(fork, *rest)
        await runfold.delete_run(source.run_id)

    monkeypatch.setattr(forking._Forking, "_fill", filling)
    run_id = f"{source.run_id}-late"

    with pytest.raises(RunNotFoundError, match=source.run_id):
        await source.fork(run_id=run_id)

    async def is_deleted() -> bool:
        life = await runfold.connection.catalog.lookup(run_id)
        return life is not None and life.deleted

    await until(is_deleted, what="the deletion of the fork")


async def test_a_fork_of_a_run_whose_session_comes_later_is_of_that_session(runfold: Runfold):
    source = await conversation(runfold, session_id=f"later-{uuid4()}")

    fork = await source.fork()
    again = await (await runfold.get_run(fork.run_id)).fork()

    assert (fork.life.user_id, fork.life.session_id) == (None, source.life.session_id)
    assert again.life.session_id == source.life.session_id
