"""Brokers are killed and started again, or stopped and continued, while fetch sessions are open and
producers write. Nothing is lost, doubled or out of order.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from aiokafka.client import AIOKafkaClient
from tests.clusters import REPLICATED, Cluster, cluster
from tests.explaining import explained
from tests.killing import FOLDED_SECONDS, PROGRESS_SECONDS, ROUNDS, Progress
from tests.processes import Projections, projections, projector, until
from tests.servers import OwnSettings
from tests.session_stores import at_work
from tests.tails import Appender, TailReader, read_plainly

from runfold import AssistantMessage, Run, Runfold, UnavailableError
from runfold.local import Service
from runfold.log.fetch_session import FetchSession
from runfold.log.publisher import Outgoing, Publisher
from runfold.settings import Settings
from runfold_schemas.topics import Partition, Topics

RECORD: Final = Outgoing(key=None, value=b"{}")
KILLS: Final = ROUNDS
"""Of each broker."""
STALLS: Final = 0.3
"""The share of them that stop a broker and continue it."""
STALL_SECONDS: Final = 5
LIFE: Final = 100
"""Steps of the writers, at the most, between a broker's start and its death."""
RUNS: Final = 20
"""More than a client fetches without a session."""
BATCH: Final = 5
PLACES: Final = 8
"""A broker's places for sessions, one in each of its eight shards."""
SAFE_SECONDS: Final = 120
"""The age to which a session keeps its place, whoever wants it."""
AGES: Final = [0] if ROUNDS == 1 else [0, SAFE_SECONDS + 5]


@pytest.fixture(scope="module")
async def brokers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    settings = {**REPLICATED, "max.incremental.fetch.session.cache.slots": str(PLACES)}
    async with cluster(tmp_path_factory.mktemp("kafka"), settings=settings) as brokers:
        yield brokers


@pytest.fixture
def settings(brokers: Cluster, own_settings: OwnSettings) -> Settings:
    return own_settings(kafka=brokers.kafka, replication_factor=2, session_timeout_seconds=6)


@pytest.mark.parametrize("age", AGES)
async def test_a_session_that_loses_its_place_to_larger_ones_begins_anew(
    brokers: Cluster, prefix: str, age: int
) -> None:
    small, large = f"{prefix}.run.small", f"{prefix}.run.large"
    await brokers.create(small, leaders=[1] * 20)
    await brokers.create(large, leaders=[1] * 40)
    client = AIOKafkaClient(bootstrap_servers=brokers.kafka)
    await client.bootstrap()
    session = _session(client, "small", small, 20)
    larger = [_session(client, f"large {number}", large, 40) for number in range(PLACES)]
    try:
        await _poll(session, seconds=max(1, age))
        granted = session.session_id
        await asyncio.gather(*(one.fetch(0) for one in larger))
        async with Appender.connect(brokers.kafka, prefix) as appender:
            await appender.append(Partition(small, 3))
        answers = [answer for _ in range(3) for answer in await session.fetch(500)]
    finally:
        await asyncio.gather(*(one.close() for one in (session, *larger)))
        await client.close()

    assert granted != 0
    assert Partition(small, 3) in [answer.partition for answer in answers if answer.data]
    assert session.resets == (1 if age > SAFE_SECONDS else 0)


def _session(client: AIOKafkaClient, name: str, topic: str, count: int) -> FetchSession:
    session = FetchSession(client, 1, name)
    for number in range(count):
        session.ask(Partition(topic, number), 0)
    return session


async def _poll(session: FetchSession, *, seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        await session.fetch(200)


async def test_new_topics_of_one_broker_are_written_to_while_the_other_hangs(
    brokers: Cluster, settings: Settings, prefix: str
) -> None:
    topics = [f"{prefix}.run.{number}" for number in range(4)]
    pid = brokers.brokers[2].pid
    assert pid is not None
    async with AsyncExitStack() as stack:
        publishers = [await stack.enter_async_context(Publisher.connect(settings.log())) for _ in topics]
        # A producer knows the topics that were there before it.
        await asyncio.gather(*(brokers.create(topic, leaders=[1]) for topic in topics))
        os.killpg(pid, signal.SIGSTOP)
        stack.callback(os.killpg, pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            await asyncio.gather(*map(_append, publishers, topics))
    await brokers.are_up()  # or the next test finds too few for its replicas


async def _append(publisher: Publisher, topic: str) -> None:
    await publisher.wait(await publisher.send(topic, RECORD))


async def test_kills_of_brokers_lose_and_double_nothing(
    brokers: Cluster, settings: Settings, tmp_path: Path, chance: random.Random
) -> None:
    worker = projector(settings, tmp_path / "projector.log")
    async with (
        projections(settings) as stored,
        Runfold.of(settings.log()) as runfold,
        TailReader.connect(settings.kafka) as reader,
    ):
        runs = await asyncio.gather(*(runfold.open_run(agent_id="a") for _ in range(RUNS)))
        places = [_place(settings, run) for run in runs]
        for at in places:
            reader.follow(at)
        async with at_work([worker]), explained(settings, worker):
            published = await written_through_kills(runs, list(brokers.brokers.values()), chance)
            await asyncio.gather(*(run.complete() for run in runs))
            plain = await read_plainly(settings.kafka, places)
            await reader.has({at: len(records) for at, records in plain.items()}, seconds=60)
            for run in runs:
                completed = partial(_is_completed, stored, run)
                await until(completed, seconds=FOLDED_SECONDS, what="the fold of the log's end")
            differences = await stored.differences()
            quarantined = await stored.stores.quarantine.all()
            counted = [await _counts(stored, run) for run in runs]

    assert reader.records == plain
    assert reader.tail.rewound == {}
    assert differences == []
    assert quarantined == []
    for events, counts in zip(published, counted, strict=True):
        # Beside what was acknowledged, each run has its opening and its completion.
        assert len(counts) == len(events) + 2
        assert counts.keys() >= set(events)
        assert set(counts.values()) == {1}


async def written_through_kills(
    runs: Sequence[Run], brokers: Sequence[Service], chance: random.Random
) -> list[list[str]]:
    """The ids of the events that were acknowledged, by run."""
    progress = Progress()
    writing = [asyncio.create_task(_write(run, progress)) for run in runs]
    try:
        await asyncio.gather(*(_kill(one, random.Random(chance.random()), progress) for one in brokers))
    finally:
        progress.enough.set()
        published = await asyncio.gather(*writing)
    return published


async def _kill(broker: Service, chance: random.Random, progress: Progress) -> None:
    for _ in range(KILLS):
        instant = progress.steps + chance.randint(1, LIFE)
        await until(
            partial(progress.reaches, instant), seconds=PROGRESS_SECONDS, what="progress of the writers"
        )
        if chance.random() < STALLS:
            await _stall(broker)
        else:
            await broker.kill()
            await broker.start()


async def _stall(broker: Service) -> None:
    """Long enough for the other broker to lead all partitions."""
    assert broker.pid is not None
    os.killpg(broker.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STALL_SECONDS)
    finally:
        os.killpg(broker.pid, signal.SIGCONT)


async def _write(run: Run, progress: Progress) -> list[str]:
    """Events are published again when no broker answers, with their ids."""
    published: list[str] = []
    while not progress.enough.is_set():
        events = [run.event(AssistantMessage(message="m")) for _ in range(BATCH)]
        acknowledged = False
        while not acknowledged:
            with suppress(UnavailableError):
                await run.publish_batch(events)
                acknowledged = True
        published += [str(event.event_id) for event in events]
        progress.steps += 1
        await asyncio.sleep(0.05)
    return published


def _place(settings: Settings, run: Run) -> Partition:
    return Partition(Topics(settings.prefix).run(run.run_id, run.life.log_id), 0)


async def _is_completed(stored: Projections, run: Run) -> bool:
    state = await stored.runs.get(run.run_id)
    return state is not None and state.record.status == "completed"


async def _counts(stored: Projections, run: Run) -> Counter[str]:
    """How often each event counts."""
    return Counter(
        [event_id async for page in stored.pages.read(run.life.log_id) for event_id in page.event_ids()]
    )
