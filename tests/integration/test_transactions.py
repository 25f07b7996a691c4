"""Producers with transactions: the log of a run has what they have committed, in the order of the
records. Every reader goes on behind markers and behind what was aborted.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from tests.archiving import archiving, entry_of_run, note_end, opened_run
from tests.integration.test_projector import working
from tests.partitions import partition_of
from tests.processes import Projections, projections, until
from tests.servers import OwnSettings

from runfold import Run, RunFailed, Runfold, UnavailableError, UserMessage
from runfold.client.records import outgoing
from runfold.log.catalog import life_record
from runfold.log.reader import end_offset
from runfold.query.app import build_app
from runfold.secret_urls import SecretUrl
from runfold.settings import Settings
from runfold.stores import RunfoldStores
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import Topics


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(park_seconds=1.5, publisher_park_seconds=1.5)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as connected:
        yield connected


@asynccontextmanager
async def transactions(kafka: str, prefix: str) -> AsyncIterator[AIOKafkaProducer]:
    # A transaction stays open while a test waits for something else.
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka, transactional_id=prefix, transaction_timeout_ms=600_000
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def say(producer: AIOKafkaProducer, runfold: Runfold, run: Run, *words: str) -> None:
    """Each word in a transaction of its own."""
    for word in words:
        record = outgoing(run.event(UserMessage(message=word)), source="tests")
        async with producer.transaction():
            await producer.send(
                runfold.connection.topics.run(run.run_id, run.life.log_id),
                record.value,
                key=record.key,
                headers=list(record.headers),
                partition=0,
            )


async def test_the_log_is_read_to_its_end(runfold: Runfold, kafka: str, prefix: str):
    run = await runfold.open_run(agent_id="a", run_id="r")
    async with transactions(kafka, prefix) as producer:
        await say(producer, runfold, run, "one", "two")

    assert [one.record.offset async for one in run.history()] == [0, 1, 3]
    assert (await RunfoldStores(runfold).load_run("a", "r")).meta["next_offset"] == 4
    assert (await run.publish(UserMessage(message="three"), expected_offset=3)).offset == 5
    await run.complete()


async def test_a_run_is_looked_up_behind_a_transaction_on_the_catalog(
    runfold: Runfold, settings: Settings, kafka: str, prefix: str
):
    run = await runfold.open_run(agent_id="a")
    record, partition = life_record(run.life), partition_of(run.run_id)
    async with transactions(kafka, prefix) as producer, producer.transaction():
        await producer.send(
            runfold.connection.topics.catalog, record.value, key=record.key, partition=partition
        )

    assert (await runfold.get_run(run.run_id)).life == run.life
    async with Runfold.of(settings.log()) as another:
        assert (await another.get_run(run.run_id)).life == run.life


async def test_a_run_is_projected_parked_read_and_verified(
    runfold: Runfold, settings: Settings, kafka: str, prefix: str
):
    async with projections(settings) as stored, working(settings, stored.edition) as worker:

        async def is_parked() -> bool:
            state = await stored.runs.get("r")
            return state is not None and not state.active and worker.active_runs == 0

        run = await runfold.open_run(agent_id="a", run_id="r")
        async with transactions(kafka, prefix) as producer:
            await say(producer, runfold, run, "one")
            await until(is_parked, what="the parking of the run")
            await say(producer, runfold, run, "two", "three")
        # Kafka answers that a transaction has ended before it has written so behind the last
        # record.
        await until(lambda: ends_at(settings, run, 7), what="the end of the last transaction")
        await run.complete()
        await until(is_parked, what="the parking of the run")

        assert await stored.differences() == []
    app = build_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://query") as client,
    ):
        for source in ("snapshot", "log"):
            events = (await client.get("/v1/runs/r/events", params={"source": source})).json()
            assert [event["offset"] for event in events["events"]] == [0, 1, 3, 5, 7]


async def test_what_is_aborted_was_never_said(runfold: Runfold, settings: Settings, kafka: str, prefix: str):
    async with projections(settings) as stored, working(settings, stored.edition):
        run = await runfold.open_run(agent_id="a", run_id="r")
        topics = {"r": runfold.connection.topics.run(run.run_id, run.life.log_id)}
        async with transactions(kafka, prefix) as producer:
            await abort(
                producer, topics, run.event(UserMessage(message="pay")), run.event(RunFailed(error="no"))
            )
            await say(producer, runfold, run, "kept")
        position = await run.publish(UserMessage(message="more"))

        assert await history(run) == [("kept", "accepted"), ("more", "accepted")]
        assert [part.text for message in await run.ledger() for part in message.parts] == ["kept", "more"]
        await until(lambda: has_folded(stored, position.offset), what="the fold of the last event")
        record = await stored.runs.get("r")
        assert record is not None
        assert (record.record.status, record.ended) == ("running", False)
        assert await stored.differences() == []
        await run.complete()


async def test_an_open_transaction_holds_back_its_own_run_alone(
    runfold: Runfold, settings: Settings, kafka: str, prefix: str
):
    async with projections(settings) as stored, working(settings, stored.edition):
        run = await runfold.open_run(agent_id="a", run_id="r")
        other = await runfold.open_run(agent_id="a", run_id="other")
        topics = {"r": runfold.connection.topics.run(run.run_id, run.life.log_id)}
        async with transactions(kafka, prefix) as producer, producer.transaction():
            await send(producer, topics, run.event(UserMessage(message="one")))
            behind = await run.publish(UserMessage(message="behind it"))
            position = await other.publish(UserMessage(message="elsewhere"))

            await until(
                lambda: has_folded(stored, position.offset, "other"), what="the fold of the other run"
            )
            assert await history(run) == []
            assert await stored.differences() == []
        await until(lambda: has_folded(stored, behind.offset), what="the fold after the commit")
        assert [text for text, _ in await history(run)] == ["one", "behind it"]
        assert await stored.differences() == []


async def test_a_conditional_append_waits_for_the_transaction_before_it(
    runfold: Runfold, kafka: str, prefix: str
):
    run = await runfold.open_run(agent_id="a", run_id="r")
    topics = {"r": runfold.connection.topics.run(run.run_id, run.life.log_id)}
    async with transactions(kafka, prefix) as producer:
        await producer.begin_transaction()
        await send(producer, topics, run.event(UserMessage(message="one")))
        waiting = asyncio.create_task(run.publish(UserMessage(message="two"), expected_offset=0))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
        await producer.abort_transaction()

        assert (await waiting).offset == 2
        assert await history(run) == [("two", "accepted")]


async def test_an_append_behind_a_transaction_that_stays_open_names_it(
    runfold: Runfold, settings: Settings, kafka: str, prefix: str
):
    run = await runfold.open_run(agent_id="a", run_id="r")
    topics = {"r": runfold.connection.topics.run(run.run_id, run.life.log_id)}
    hasty = settings.model_copy(update={"publish_timeout_seconds": 2.0})
    async with (
        transactions(kafka, prefix) as producer,
        Runfold.of(hasty.log()) as client,
        producer.transaction(),
    ):
        await send(producer, topics, run.event(UserMessage(message="one")))
        same = await client.get_run("r")

        with pytest.raises(UnavailableError, match=r"transaction is open on .* from offset 1 on"):
            await same.publish(UserMessage(message="two"), expected_offset=0)


async def abort(producer: AIOKafkaProducer, topics: Mapping[str, str], *events: AnyEvent) -> None:
    """Sends the events in a transaction that is aborted."""
    await producer.begin_transaction()
    for event in events:
        await send(producer, topics, event)
    await producer.abort_transaction()


async def has_folded(stored: Projections, offset: int, run_id: str = "r") -> bool:
    state = await stored.runs.get(run_id)
    return state is not None and state.record.next_offset > offset


async def ends_at(settings: Settings, run: Run, offset: int) -> bool:
    topic = Topics(settings.prefix).run(run.run_id, run.life.log_id)
    return await end_offset(settings.log(), topic) == offset


async def test_a_producer_goes_on_after_the_topics_of_its_transaction_were_sealed(
    settings: Settings, kafka: str, prefix: str, tmp_path: Path
):
    settings = settings.model_copy(
        update={
            "archive_url": SecretUrl(f"file://{tmp_path / 'archive'}"),
            "archive_after_seconds": 0.1,
            "archive_delete_seconds": 3600.0,
        }
    )
    async with Runfold.of(settings.log()) as runfold, transactions(kafka, prefix) as producer:
        first, second, other, live = [
            await opened_run(runfold, run_id) for run_id in ("first", "second", "other", "live")
        ]
        topics = {
            run.run_id: runfold.connection.topics.run(run.run_id, run.life.log_id)
            for run in (first, second, live)
        }
        async with archiving(settings):
            async with producer.transaction():
                await send(producer, topics, first.event(UserMessage(message="one")))
                await send(producer, topics, second.event(UserMessage(message="one")))
                # The catalog alone says so: the archiver takes them, and their logs go on.
                for run in (first, second, other):
                    await note_end(runfold, run)
                await until(partial(is_sealed, runfold, other), what="the seal of the other run")
                assert not await is_sealed(runfold, first)
                assert not await is_sealed(runfold, second)
                await send(producer, topics, first.event(UserMessage(message="two")))
            for run in (first, second):
                await until(partial(is_sealed, runfold, run), what="the seal after the transaction")

        said = [run.event(UserMessage(message="three")) for run in (live, first, second)]
        with pytest.raises(MessageSizeTooLargeError):
            await send_together(producer, topics, said)
        for run in (first, second):
            entry = await entry_of_run(runfold, run)
            assert entry is not None
            topics[run.run_id] = runfold.connection.topics.segment(run.run_id, entry.log_id, entry.base)
            await runfold.connection.admin.create_run_topic(topics[run.run_id])
        await send_together(producer, topics, said)

        assert [await history(run) for run in (first, second, live)] == [
            [("one", "accepted"), ("two", "accepted"), ("three", "accepted")],
            [("one", "accepted"), ("three", "accepted")],
            [("three", "accepted")],
        ]


async def send(producer: AIOKafkaProducer, topics: Mapping[str, str], event: AnyEvent) -> None:
    """Returns when the record is acknowledged."""
    record = outgoing(event, source="tests")
    await producer.send_and_wait(
        topics[event.run_id], record.value, key=record.key, headers=list(record.headers), partition=0
    )


async def send_together(
    producer: AIOKafkaProducer, topics: Mapping[str, str], events: Sequence[AnyEvent]
) -> None:
    """One transaction."""
    async with producer.transaction():
        for event in events:
            await send(producer, topics, event)


async def is_sealed(runfold: Runfold, run: Run) -> bool:
    return await entry_of_run(runfold, run) is not None


async def history(run: Run) -> list[tuple[str, str]]:
    """The messages of a run, and whether they count."""
    return [
        (each.event.data.message, each.outcome)
        async for each in run.history()
        if each.event is not None and isinstance(each.event.data, UserMessage)
    ]
