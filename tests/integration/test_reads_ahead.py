"""Reads of events that are in the log and not in MongoDB yet: nobody waits for the projector, and
each record has the outcome that the projector gives it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.processes import DEADLINE_SECONDS
from tests.querying import Projected, projected, query_and_reading

from runfold import AssistantMessage, PlannerNote, Run, Runfold, UserMessage
from runfold.log.leaders import Leaders
from runfold.log.newest import NEWEST_BYTES, newest
from runfold.query import recent, runs
from runfold.query.history import History, LogHistory, SnapshotHistory
from runfold.query.reading import Reading
from runfold.query.runs import RunReader
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold_schemas.catalog import Skip
from runfold_schemas.topics import Partition

TALK = [UserMessage(message="1"), AssistantMessage(message="2"), PlannerNote(note="3")]


@pytest.fixture
def settings(kafka: str, mongo: str) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, wait_timeout_seconds=20)


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_QUICK_SECONDS", 10.0)


@pytest.fixture
async def reading(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, Reading]]:
    async with query_and_reading(settings) as serving:
        yield serving


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def stored_run(settings: Settings, runfold: Runfold) -> Run:
    """A run of four records whose projector has ended."""
    async with projected(settings) as stored:
        run = await runfold.open_run(agent_id="a")
        await publish(stored, run)
        return run


async def run_read_ahead(settings: Settings, runfold: Runfold, readers: RunReader) -> Run:
    """A run of five records of which the last was read before a projector has stored it."""
    run = await stored_run(settings, runfold)
    ahead = await run.publish(PlannerNote(note="4"))
    await readers.history(run.run_id, min_offset=ahead.offset)
    return run


async def publish(stored: Projected, run: Run) -> None:
    await run.publish_batch([run.event(data, turn_id="t-1") for data in TALK])
    await stored.holds(run, len(TALK))


async def events(client: httpx.AsyncClient, run: Run, **params: Any) -> Any:
    path = f"/v1/runs/{run.run_id}/events"
    answer = await client.get(path, params={"outcome": "all", **params})
    assert answer.status_code == 200, answer.text
    return answer.json()["events"]


async def test_the_newest_records_are_those_of_the_whole_log(
    settings: Settings, runfold: Runfold, reading: tuple[httpx.AsyncClient, Reading]
) -> None:
    client, readers = reading
    run = await stored_run(settings, runfold)
    again = run.event(UserMessage(message="once"))
    await run.publish(again)
    await run.publish(again)
    await run.complete()
    late = await run.publish(UserMessage(message="late"), late=True)

    history = await readers.runs.history(run.run_id, min_offset=late.offset)
    ahead = await events(client, run, min_offset=late.offset)

    assert isinstance(history, SnapshotHistory)
    assert [event["outcome"] for event in ahead[4:]] == ["accepted", "duplicate", "accepted", "late"]
    assert ahead == await events(client, run, source="log")
    assert ahead == await events(client, run), "a reader sees nothing older than it saw before"


async def test_a_run_that_was_read_so_is_read_on_from_there(
    settings: Settings, runfold: Runfold, reading: tuple[httpx.AsyncClient, Reading]
) -> None:
    client, readers = reading
    run = await stored_run(settings, runfold)

    for number in range(5):
        position = await run.publish(PlannerNote(note=str(number)))
        record = (await client.get(f"/v1/runs/{run.run_id}", params={"min_offset": position.offset})).json()
        assert record["next_offset"] == position.offset + 1
        assert record["counts"]["planner_note"] == number + 2
    history = await readers.runs.history(run.run_id)

    assert history.end == position.offset + 1
    assert (await history.event(position.offset)).data == PlannerNote(note="4")
    assert (await history.event(1)).data == UserMessage(message="1")


async def test_a_run_that_is_not_projected_yet_is_read_at_once(
    runfold: Runfold, reading: tuple[httpx.AsyncClient, Reading]
) -> None:
    client, readers = reading
    run = await runfold.open_run(agent_id="a")
    position = await run.publish(UserMessage(message="first"))

    history = await readers.runs.history(run.run_id, min_offset=position.offset)

    assert isinstance(history, LogHistory)
    assert [event["offset"] for event in await events(client, run, min_offset=position.offset)] == [0, 1]
    assert (await client.get(f"/v1/runs/{run.run_id}")).json()["status"] == "running"


async def test_the_projector_goes_on_where_readers_were_ahead(
    settings: Settings, runfold: Runfold, reading: tuple[httpx.AsyncClient, Reading]
) -> None:
    client, _ = reading
    run = await stored_run(settings, runfold)
    position = await run.publish(UserMessage(message="ahead"))
    ahead = await events(client, run, min_offset=position.offset)

    async with projected(settings) as stored:
        await stored.holds(run, position.offset)
        further = await run.publish(UserMessage(message="further"))
        await stored.holds(run, further.offset)

        assert (await events(client, run, min_offset=further.offset))[:-1] == ahead
        assert len(await events(client, run)) == further.offset + 1


async def test_the_newest_events_are_counted_from_the_end_of_the_log(
    settings: Settings, runfold: Runfold, reading: tuple[httpx.AsyncClient, Reading]
) -> None:
    run = await stored_run(settings, runfold)
    position = await run.publish(PlannerNote(note="4"))
    history = await reading[1].runs.history(run.run_id, min_offset=position.offset)

    def notes(counts: Mapping[str, int]) -> int:
        return counts.get("planner_note", 0)

    assert isinstance(history, SnapshotHistory)
    assert await history.begin_of_last(1, notes) == position.offset
    assert await history.begin_of_last(2, notes) <= 3


async def test_a_long_run_and_a_large_record_are_read_the_slower_way(
    settings: Settings,
    runfold: Runfold,
    reading: tuple[httpx.AsyncClient, Reading],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, readers = reading
    long, large = await stored_run(settings, runfold), await runfold.open_run(agent_id="a")
    await long.publish(UserMessage(message="4"))
    await large.publish(UserMessage(message="x" * NEWEST_BYTES))
    monkeypatch.setattr(runs, "EVENTS_MAX", 3)

    histories: list[History] = [
        await readers.runs.history(long.run_id, min_offset=4),
        await readers.runs.history(large.run_id, min_offset=1),
    ]

    assert [history.end for history in histories] == [5, 2]
    assert not readers.runs.recent.get(long.run_id)
    assert not readers.runs.recent.get(large.run_id)


async def test_the_runs_that_were_read_so_are_forgotten(
    settings: Settings,
    runfold: Runfold,
    reading: tuple[httpx.AsyncClient, Reading],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = [await runfold.open_run(agent_id="a") for _ in range(4)]

    for run in read:
        await reading[1].runs.history(run.run_id, min_offset=0)
        if kept_run := reading[1].runs.recent.get(read[0].run_id):
            monkeypatch.setattr(recent, "_BYTES_MAX", 2.5 * kept_run.size)
    kept = [run for run in read if reading[1].runs.recent.get(run.run_id)]

    assert kept == read[2:]


async def test_a_log_that_does_not_exist_has_no_newest_records(settings: Settings, runfold: Runfold) -> None:
    run = await runfold.open_run(agent_id="a")
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    async with Leaders.connect(settings.log()) as leaders:
        absent = await newest(leaders, Partition(topic[:-1] + "x", 0), first_offset=0)
        whole = await newest(leaders, Partition(topic, 0), first_offset=0)
        at_end = await newest(leaders, Partition(topic, 0), first_offset=1)
        beyond = await newest(leaders, Partition(topic, 0), first_offset=7)

    assert (absent, beyond) == (None, None)
    assert whole is not None
    assert ([record.offset for record in whole.records], whole.next_offset) == ([0], 1)
    assert at_end == ([], 1)


async def test_what_an_operator_skips_is_not_shown_by_what_was_read_ahead(
    settings: Settings,
    runfold: Runfold,
    reading: tuple[httpx.AsyncClient, Reading],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, _ = reading
    monkeypatch.setattr(recent, "_SKIPS_SECONDS", 0.0)
    run = await stored_run(settings, runfold)
    ledger = f"/v1/runs/{run.run_id}/ledger"
    for text in ("skipped", "kept", "last"):
        position = await run.publish(UserMessage(message=text))
    ahead = (await client.get(ledger, params={"min_offset": position.offset})).json()
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    skip = Skip(topic=topic, offset=4, next_offset=5)
    await runfold.connection.skip(skip)

    async with connect(settings.mongo, settings.database) as database:
        edition = Edition.of(database, await Editions(database).current_or_first())
        await edition.skips.add([skip])
        outcomes = [event["outcome"] for event in await events(client, run)]
    async with projected(settings) as stored:
        await stored.holds(run, position.offset)
    after = (await client.get(ledger)).json()

    assert "skipped" in str(ahead)
    assert len(outcomes) == 4, "what was read with other skips is not shown"
    assert "skipped" not in str(after)
    assert "last" in str(after)


async def test_the_skips_of_a_new_run_are_those_that_the_projector_has(
    settings: Settings,
    runfold: Runfold,
    reading: tuple[httpx.AsyncClient, Reading],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers = reading[1].runs
    monkeypatch.setattr(recent, "_SKIPS_SECONDS", 0.0)
    run = await runfold.open_run(agent_id="a")
    await run.publish(UserMessage(message="1"))
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    await runfold.connection.skip(Skip(topic=topic, offset=1, next_offset=2))
    await readers.history(run.run_id, min_offset=1)
    kept = readers.recent.get(run.run_id)

    await readers.history(run.run_id, min_offset=1)

    assert kept is not None
    assert readers.recent.get(run.run_id) is kept


async def test_what_the_pages_have_is_not_read_from_the_log(
    settings: Settings, runfold: Runfold, reading: tuple[httpx.AsyncClient, Reading]
) -> None:
    readers = reading[1].runs
    async with projected(settings) as stored:
        run = await runfold.open_run(agent_id="a")
        await publish(stored, run)
    ahead = await run.publish(PlannerNote(note="4"))
    await readers.history(run.run_id, min_offset=ahead.offset)
    large = await run.publish(UserMessage(message="x" * NEWEST_BYTES))
    async with projected(settings) as stored:
        await stored.holds(run, large.offset)
    last = await run.publish(PlannerNote(note="6"))

    history = await readers.history(run.run_id, min_offset=last.offset)

    assert isinstance(history, SnapshotHistory)
    kept = readers.recent.get(run.run_id)
    assert kept is not None
    assert (history.end, kept.next_offset, kept.begin) == (last.offset + 1, last.offset + 1, last.offset)


async def test_a_slow_log_does_not_delay_what_is_stored(
    settings: Settings,
    runfold: Runfold,
    reading: tuple[httpx.AsyncClient, Reading],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers = reading[1].runs
    run = await run_read_ahead(settings, runfold, readers)
    async with projected(settings) as stored:
        last = await run.publish(PlannerNote(note="5"))
        await stored.holds(run, last.offset)

    async def silence(*_: object, **__: object) -> None:
        await asyncio.sleep(600)

    monkeypatch.setattr(recent, "newest", silence)
    async with asyncio.timeout(DEADLINE_SECONDS):
        history = await readers.history(run.run_id, min_offset=last.offset)

    assert history.end == last.offset + 1


async def test_a_leader_that_is_silent_is_asked_for_again(
    settings: Settings,
    runfold: Runfold,
    reading: tuple[httpx.AsyncClient, Reading],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers = reading[1].runs
    run = await run_read_ahead(settings, runfold, readers)
    further = await run.publish(PlannerNote(note="5"))
    forgotten: list[Partition] = []

    async def silence(*_: object, **__: object) -> None:
        await asyncio.sleep(600)

    monkeypatch.setattr(runs, "_QUICK_SECONDS", 0.05)
    monkeypatch.setattr(recent, "newest", silence)
    monkeypatch.setattr(Leaders, "forget", lambda _, at: forgotten.append(at))
    history = await readers.history(run.run_id, min_offset=further.offset)

    assert history.end == further.offset + 1
    assert {at.topic for at in forgotten} == {runfold.connection.topics.run(run.run_id, run.life.log_id)}
