"""Records that cannot be folded are skipped, and then everybody agrees: the projections, the log
read over HTTP, the client, the commands, and a rebuild.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import pytest
from tests.faults import MARKED, faulty_projector, is_free, quarantined
from tests.forking import runfold_process
from tests.processes import Projections, environment, projections, reaches, until
from tests.querying import ready_api, sent_events

from runfold import Memory, QuarantinedError, Run, Runfold, UndecidedError, UserMessage
from runfold.local import Service
from runfold.projector.rebuild import _catching_up
from runfold.projector.rebuild_losses import RebuildLosses
from runfold.remote.memories import HttpMemories
from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings
from runfold.store.edition import Edition
from runfold.store.editions import new_edition
from runfold_projections.admission import SKIPPED
from runfold_schemas.memories import memory_key
from runfold_schemas.sessions import session_key

END_SECONDS = 180


@pytest.fixture
def settings(settings_of_one_test: Settings) -> Settings:
    return settings_of_one_test


@pytest.fixture
async def projector(settings: Settings, stored: Projections, tmp_path: Path) -> AsyncIterator[Service]:
    """A projector that fails at marked records of runs and of shared topics."""
    projector = faulty_projector(settings, tmp_path, "runs=raise,sessions=raise,memories=raise")
    await projector.start()
    yield projector
    await projector.stop()


@pytest.fixture
async def api(settings: Settings, stored: Projections) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


async def command(settings: Settings, *arguments: str) -> str:
    """The output of `runfold`, which succeeds."""
    process = await runfold_process(
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env=environment(settings) | {"NO_COLOR": "1", "COLUMNS": "200"},
    )
    async with asyncio.timeout(END_SECONDS):
        output, errors = await process.communicate()
    # A text, which pytest shows in full.
    assert process.returncode == 0, f"{arguments}: {output.decode()}{errors.decode()}"
    return output.decode()


async def outcomes_of(run: Run) -> list[tuple[int, str, str]]:
    return [(admitted.record.offset, admitted.outcome, admitted.reason) async for admitted in run.history()]


async def outcomes_over_http(api: httpx.AsyncClient, run: Run, source: str) -> list[tuple[int, str, str]]:
    answer = await api.get(f"/v1/runs/{run.run_id}/events", params={"source": source, "outcome": "all"})
    assert answer.status_code == 200, answer.text
    return [(each["offset"], each["outcome"], each.get("reason", "")) for each in answer.json()["events"]]


async def followed(api: httpx.AsyncClient, run: Run) -> list[int]:
    path = f"/v1/runs/{run.run_id}/follow"
    async with api.stream("GET", path, params={"until_end": True, "outcome": "all"}) as response:
        return [sent.id async for sent in sent_events(response) if sent.id is not None]


async def messages_over_http(api: httpx.AsyncClient, run: Run, source: str) -> Any:
    answer = await api.get(f"/v1/runs/{run.run_id}/ledger", params={"source": source})
    return answer.json()["messages"]


async def test_everybody_agrees_on_a_run_with_skipped_records(
    settings: Settings, runfold: Runfold, stored: Projections, projector: Service, api: httpx.AsyncClient
):
    run = await runfold.open_run(agent_id="a")
    await run.publish(UserMessage(message="before"))
    marked = [(await run.publish(UserMessage(message=f"{MARKED} {number}"))).offset for number in range(2)]
    await run.publish(UserMessage(message="after"))
    last = (await run.complete()).offset

    [entry] = await quarantined(stored)
    first = await command(settings, "quarantine", "skip", run.run_id, "--wait", "0")

    async def is_at_the_second() -> bool:
        entries = await stored.stores.quarantine.all()
        return [each.offset for each in entries] == [marked[1]]

    await until(is_at_the_second, what="the second record in quarantine")
    second = await command(settings, "quarantine", "skip", run.run_id)
    await until(partial(reaches, stored, run, last), what="the run")

    assert (entry.id, entry.offset) == (f"run:{run.run_id}", marked[0])
    assert "a projector acts on it within seconds" in first
    assert f"goes on at offset {marked[1] + 1}" in second
    expected = await outcomes_over_http(api, run, "snapshot")
    assert [offset for offset, _, reason in expected if reason == SKIPPED] == marked
    assert await outcomes_over_http(api, run, "log") == expected
    assert await outcomes_of(run) == expected, "the client that opened the run"
    async with Runfold.of(settings.log()) as other:
        assert await outcomes_of(await other.get_run(run.run_id)) == expected
    assert await followed(api, run) == [offset for offset, _, _ in expected]
    printed = (await command(settings, "follow", run.run_id, "--json")).splitlines()
    assert len(printed) == len(expected) - len(marked)
    replayed = json.loads(await command(settings, "replay", run.run_id, "--json"))
    assert replayed["messages"] == await messages_over_http(api, run, "snapshot")
    assert replayed["messages"] == await messages_over_http(api, run, "log")
    assert "0 differences" in await command(settings, "verify")

    await command(settings, "rebuild")

    assert await outcomes_over_http(api, run, "snapshot") == expected
    assert "0 differences" in await command(settings, "verify")


async def test_everybody_agrees_on_a_session_with_skipped_events(
    settings: Settings, runfold: Runfold, stored: Projections, projector: Service, api: httpx.AsyncClient
):
    async with HttpSessions(str(api.base_url)) as sessions:
        session = await sessions.create(app="desk", user="ann", session_id="s-1")
        other = await sessions.create(app="desk", user="ann", session_id="s-2")
        await sessions.append("s-1", UserMessage(message="before"), state_delta={"order": 1})
        await runfold.sessions.append("s-1", UserMessage(message=MARKED), state_delta={"order": 2})
        await runfold.sessions.append("s-1", UserMessage(message="after"), state_delta={"color": "red"})

        [entry] = await quarantined(stored)
        with pytest.raises(QuarantinedError) as refused:
            await until_noticed(partial(sessions.view, "s-1"))
        listed, _ = await sessions.list(app="desk")
        await sessions.append("s-2", UserMessage(message="still here"))
        await command(settings, "quarantine", "skip", entry.id)
        over_http = await sessions.view("s-1")

    directly = await runfold.sessions.view("s-1")
    assert entry.id == f"run:{session.record.run_id}"
    assert refused.value.entry_id == entry.id
    assert {each.record.session_id for each in listed} == {"s-1", other.record.session_id}
    assert dict(over_http.state) == dict(directly.state) == {"order": 1, "color": "red"}
    assert over_http.next_offset == directly.next_offset
    assert over_http.last_offset == directly.last_offset
    assert "0 differences" in await command(settings, "verify")


async def test_everybody_agrees_on_skipped_changes_of_sessions_and_memories(
    settings: Settings, runfold: Runfold, stored: Projections, projector: Service, api: httpx.AsyncClient
):
    async with (
        HttpSessions(str(api.base_url)) as sessions,
        HttpMemories(str(api.base_url)) as memories,
    ):
        await sessions.create(app="desk", user="ann", session_id="s-1")
        await memories.create_bank("b")
        memory = await memories.create("b", Memory(fact="likes tea", scope={"user": "ann"}))
        await runfold.sessions.update("s-1", labels={"mark": MARKED})
        with pytest.raises(UndecidedError, match="cannot be read"):
            await memories.update("b", memory.memory_id, {"fact": MARKED})

        entries = await quarantined(stored, count=2)
        assert {entry.id for entry in entries} == {
            f"key:{session_key('s-1')}",
            f"key:{memory_key('b', memory.memory_id)}",
        }
        with pytest.raises(QuarantinedError):
            await until_noticed(partial(sessions.view, "s-1"))
        with pytest.raises(QuarantinedError):
            await until_noticed(partial(memories.get, "b", memory.memory_id))
        other = await memories.create("b", Memory(fact="likes milk", scope={"user": "bob"}))
        before = await runfold_process(
            "verify",
            stdout=PIPE,
            env=environment(settings) | {"NO_COLOR": "1", "COLUMNS": "200"},
        )
        verified = (await before.communicate())[0].decode()
        await command(settings, "quarantine", "skip", *(entry.id for entry in entries))
        await until(partial(is_free, stored), what="the end of the quarantine")
        labels = (await sessions.view("s-1")).record.labels
        facts = {
            each: (await memories.get("b", each)).memory.fact for each in (memory.memory_id, other.memory_id)
        }
        revisions, _ = await memories.revisions("b", memory.memory_id)

    assert (before.returncode, "0 differences, 2 in quarantine" in verified) == (3, True), verified
    assert labels == (await runfold.sessions.view("s-1")).record.labels == {}
    assert facts == {memory.memory_id: "likes tea", other.memory_id: "likes milk"}
    for memory_id, fact in facts.items():
        assert (await runfold.memories.get("b", memory_id)).memory.fact == fact
    directly, _ = await runfold.memories.revisions("b", memory.memory_id)
    assert [each.fact for each in revisions] == [each.fact for each in directly] == ["likes tea"]
    assert "0 differences" in await command(settings, "verify")

    await command(settings, "rebuild")

    assert "0 differences" in await command(settings, "verify")


async def test_a_rebuild_waits_for_keys_that_are_folded_anew(settings: Settings):
    async with projections(settings) as stored:
        new = Edition.of(stored.database, new_edition())
        await stored.editions.begin(old=stored.edition, new=new.name)
        await new.quarantine.request("record:t-0:7", "refold", owner=0, is_kept=True)
        catching_up = _catching_up(stored.editions, RebuildLosses([], []), old=stored.stores, new=new)
        async with aclosing(catching_up):
            looks = [await anext(catching_up) for _ in range(3)]
            await new.quarantine.begin("record:t-0:7")
            looks.append(await anext(catching_up))

            await new.quarantine.forget(["record:t-0:7"])

            looks += [progress async for progress in catching_up]
    assert {(look.done, look.total) for look in looks} == {(0, 0)}


async def until_noticed(read: Any) -> None:
    """Reads until the query service has looked at the quarantine, which raises."""
    async with asyncio.timeout(END_SECONDS):
        while True:
            await read()
            await asyncio.sleep(0.1)
