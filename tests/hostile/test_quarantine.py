"""Data that cannot be folded or stored: only what it is about waits, and it can be tried again or
skipped.
"""

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.faults import MARKED, faulty_projector, goes_on, health_of, is_free, quarantined, skip
from tests.memory_verbs import check_memories_rebuild, opened_memories
from tests.processes import DEADLINE_SECONDS, Projections, projections, reaches, until
from tests.querying import projected
from tests.session_verbs import check_rebuild, opened

from runfold import (
    BankNotFoundError,
    Memory,
    MemoryNotFoundError,
    QuarantinedError,
    Runfold,
    SessionNotFoundError,
    UserMessage,
)
from runfold.client.memories import Memories
from runfold.client.session import SessionVerbs
from runfold.local import Service
from runfold.projector.rebuild import rebuild
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.verify.memories import verify_memories
from runfold.verify.sessions import verify_sessions
from runfold_schemas.memories import memory_key
from runfold_schemas.sessions import session_key


@pytest.fixture
def settings(settings_of_one_test: Settings) -> Settings:
    return settings_of_one_test


def check_undisturbed(projector: Service, pid: int | None) -> None:
    assert projector.running
    assert projector.pid == pid
    assert "trying again in" not in projector.logged()


@pytest.mark.parametrize("fault", ["runs=raise", "runs=memory", "pages=raise", "states=raise"])
async def test_a_run_that_cannot_be_folded_or_stored_waits_alone(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path, fault: str
):
    projector = faulty_projector(settings, tmp_path, fault)
    await projector.start()
    pid = projector.pid
    bad, good = [await runfold.open_run(agent_id="a") for _ in range(2)]
    await bad.publish(UserMessage(message="before"))
    offset = (await bad.label(mark=MARKED)).offset
    last = (await bad.publish(UserMessage(message="after"))).offset

    entries = await quarantined(stored)
    await goes_on(stored, good)
    before = await stored.runs.get(bad.run_id)
    async with httpx.AsyncClient(timeout=60) as client:
        ready = await client.get(health_of(projector))
    check_undisturbed(projector, pid)
    await projector.stop()
    mended = faulty_projector(settings, tmp_path)
    await mended.start()
    try:
        still = await stored.stores.quarantine.all()
        await stored.stores.quarantine.request(entries[0].id, "retry", owner=entries[0].owner)
        await until(partial(is_free, stored), what="the end of the quarantine")
        await until(partial(reaches, stored, bad, last), what="the run")
        await goes_on(stored, bad)
        differences = await stored.differences()
    finally:
        await mended.stop()

    assert [(entry.id, entry.offset, entry.next_offset) for entry in entries] == [
        (f"run:{bad.run_id}", offset, offset + 1)
    ]
    assert ("MemoryError" if "memory" in fault else "injected by a test") in entries[0].reason
    assert before is not None
    assert before.record.next_offset == offset, "everything before the record is stored"
    assert ready.status_code == 200
    assert ready.json()["status"] == "degraded"
    assert any(entries[0].id in reason for reason in ready.json()["reasons"])
    assert [entry.id for entry in still] == [entries[0].id], "a restart forgets nothing"
    assert differences == []


async def test_a_memory_that_cannot_be_folded_waits_alone(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "memory_folds=raise")
    await projector.start()
    pid = projector.pid
    async with opened_memories(settings) as memories:
        await memories.create_bank("b")
        for name in ("bad", "good"):
            await memories.create("b", Memory(fact="before", scope={"user": "u"}), memory_id=name)
        # No answer comes while the change is not folded.
        changing = asyncio.create_task(memories.update("b", "bad", {"fact": MARKED}))
        entries = await quarantined(stored)
        await memories.update("b", "good", {"fact": "still here"})
        # A client refuses to read it from the moment in which it notices the quarantine.
        key = memory_key("b", "bad")
        before = (await stored.stores.memories.get([key], now=datetime.now(UTC)))[key]
        check_undisturbed(projector, pid)
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        await projector.stop()

        mended = faulty_projector(settings, tmp_path)
        await mended.start()
        try:
            await stored.stores.quarantine.request(entries[0].id, "retry", owner=entries[0].owner)
            await until(partial(is_free, stored), what="the end of the quarantine")
            await memories.update("b", "bad", {"metadata": {}})
            after = await memories.get("b", "bad")
            differences = (
                await verify_memories(settings.log(), stored.stores, wait_seconds=DEADLINE_SECONDS)
            )[1]
        finally:
            await mended.stop()

    assert [(entry.kind, entry.name) for entry in entries] == [("key", memory_key("b", "bad"))]
    assert before.memory.fact == "before", "the last good state is kept"
    assert after.memory.fact == MARKED
    assert differences == []
    await check_memories_rebuild(settings)


async def test_a_session_that_cannot_be_folded_waits_alone(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "session_folds=raise")
    await projector.start()
    pid = projector.pid
    bad = await runfold.sessions.create(app="a", user="u", session_id="bad", labels={"mark": MARKED})
    await runfold.sessions.append(bad.session_id, UserMessage(message="?"), state_delta={"app:x": 1})

    entries = await quarantined(stored)
    good = await runfold.sessions.create(app="a", user="u", session_id="good")
    async with opened("stored", settings) as sessions:
        await until(partial(exists, sessions, good.session_id), what="the other session")
    check_undisturbed(projector, pid)
    await asyncio.sleep(3 * settings.sweep_seconds)  # the sweep must not take the run for an orphan
    await projector.stop()

    mended = faulty_projector(settings, tmp_path)
    await mended.start()
    try:
        key = next(entry for entry in entries if entry.kind == "key")
        await stored.stores.quarantine.request(key.id, "retry", owner=key.owner)
        await until(partial(is_free, stored), what="the end of the quarantine")
        async with opened("stored", settings) as sessions:
            await until(partial(exists, sessions, bad.session_id), what="the session")
        differences = [
            *await stored.differences(),
            *(await verify_sessions(settings.log(), stored.stores, wait_seconds=DEADLINE_SECONDS))[1],
        ]
    finally:
        await mended.stop()

    assert key.name == session_key("bad")
    assert differences == []
    await check_rebuild(settings)


async def exists(sessions: SessionVerbs, session_id: str) -> bool:
    try:
        await sessions.view(session_id)
    except SessionNotFoundError:
        return False
    return True


async def test_a_catalog_record_that_cannot_be_stored_stops_no_other(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "catalog=raise")
    await projector.start()
    pid = projector.pid
    bad = await runfold.open_run(agent_id="a", run_id=f"run-{MARKED}")
    last = (await bad.publish(UserMessage(message="?"))).offset
    good = await runfold.open_run(agent_id="a")

    entries = await quarantined(stored)
    await goes_on(stored, good)
    check_undisturbed(projector, pid)
    await projector.stop()
    mended = faulty_projector(settings, tmp_path)
    await mended.start()
    try:
        for entry in entries:
            await stored.stores.quarantine.request(entry.id, "retry", owner=entry.owner)
        await until(partial(is_free, stored), what="the end of the quarantine")
        await until(partial(reaches, stored, bad, last), what="the run")
        differences = await stored.differences()
    finally:
        await mended.stop()

    assert [(entry.kind, entry.topic) for entry in entries] == [("record", runfold.connection.topics.catalog)]
    assert differences == []


@pytest.mark.parametrize("fault", ["runs=raise", "states=raise"])
async def test_a_skipped_record_counts_for_nothing_in_every_replay(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path, fault: str
):
    projector = faulty_projector(settings, tmp_path, fault)
    await projector.start()
    bad = await runfold.open_run(agent_id="a")
    await bad.label(mark=MARKED)
    last = (await bad.publish(UserMessage(message="after"))).offset
    entries = await quarantined(stored)

    await skip(runfold, entries[0])
    await until(partial(is_free, stored), what="the end of the quarantine")
    await until(partial(reaches, stored, bad, last), what="the run")
    folded = await stored.runs.get(bad.run_id)
    differences = await stored.differences()
    await rebuild(settings, report=lambda _: None, switched=lambda: None)
    await projector.stop()
    async with projections(settings) as rebuilt:
        again = await rebuilt.runs.get(bad.run_id)
        differences += await rebuilt.differences()

    assert folded is not None
    assert folded.record.labels == {}
    assert again is not None
    assert again.record == folded.record
    assert differences == []


async def test_a_skipped_change_of_a_memory_counts_for_nothing_in_every_replay(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "memory_folds=raise")
    await projector.start()
    try:
        async with opened_memories(settings) as memories:
            await memories.create_bank("b")
            await memories.create("b", Memory(fact="before", scope={"user": "u"}), memory_id="bad")
            changing = asyncio.create_task(memories.update("b", "bad", {"fact": MARKED}))
            entries = await quarantined(stored)
            await skip(runfold, entries[0])
            await until(partial(is_free, stored), what="the end of the quarantine")
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
            await memories.update("b", "bad", {"fact": "after"})
            after = await memories.get("b", "bad")
        differences = (await verify_memories(settings.log(), stored.stores, wait_seconds=DEADLINE_SECONDS))[1]
    finally:
        await projector.stop()

    # Without MongoDB's data, a projector folds the change before it knows of the skip.
    async with connect(settings.mongo, settings.database) as database:
        await Editions(database).drop_all()
    async with projected(settings) as anew, opened_memories(settings) as memories:
        await until(partial(has_fact, memories, "after"), what="the memory without the change")
        await until(partial(is_verified, settings, anew.stores), what="what the log says")

    assert after.memory.fact == "after"
    assert differences == []


async def has_fact(memories: Memories, fact: str) -> bool:
    """Whether the memory has the fact. While it is folded anew, it is in quarantine or not
    found.
    """
    try:
        return (await memories.get("b", "bad")).memory.fact == fact
    except (MemoryNotFoundError, BankNotFoundError, QuarantinedError):
        return False


async def is_verified(settings: Settings, stores: Edition) -> bool:
    return not (await verify_memories(settings.log(), stores, wait_seconds=DEADLINE_SECONDS))[1]
