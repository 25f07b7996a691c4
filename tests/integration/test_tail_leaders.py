"""Tails and consumers of partitions on two brokers, while leaders move from one to the other."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from aiokafka import TopicPartition
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from tests.clusters import REPLICATED, Cluster, cluster
from tests.killing import ROUNDS
from tests.processes import DEADLINE_SECONDS
from tests.tails import PARTITIONS, Appender, Course, Step, TailReader, read_plainly, steps

from runfold.log.consumer import Consumer
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_schemas.topics import Partition

EXAMPLES = 3 * ROUNDS
MOVES = 4 * ROUNDS


@pytest.fixture(scope="module")
async def brokers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path_factory.mktemp("kafka"), settings=REPLICATED) as brokers:
        yield brokers


@pytest.fixture(scope="module")
async def appender(brokers: Cluster) -> AsyncIterator[Appender]:
    async with Appender.connect(brokers.kafka, f"t{uuid4().hex[:8]}") as appender:
        yield appender


@hypothesis_settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
@given(taken=steps("cool", "move"))
async def test_a_tail_yields_what_a_consumer_reads_while_leaders_move(
    brokers: Cluster, appender: Appender, taken: list[Step]
):
    topic = f"t{uuid4().hex[:8]}.run.r"
    await brokers.create(topic, leaders=[1 + number % 2 for number in range(PARTITIONS)])
    partitions = [Partition(topic, number) for number in range(PARTITIONS)]

    async def move(at: Partition, number: int) -> None:
        await brokers.move(at, 1 + number % 2)

    async with TailReader.connect(brokers.kafka) as reader:
        await Course(reader, appender, partitions, move=move).take(taken)


@pytest.mark.parametrize("replicas", [1, 2])
async def test_leaders_that_move_while_producers_write_lose_and_double_nothing(
    brokers: Cluster, appender: Appender, prefix: str, replicas: int, chance: random.Random
):
    topic = f"{prefix}.run.r"
    await brokers.create(topic, leaders=[1, 2] * 3, replicas=replicas)
    places = [Partition(topic, number) for number in range(6)]
    done = asyncio.Event()

    async with TailReader.connect(brokers.kafka) as reader:
        for at in places:
            reader.follow(at)
        writing = [asyncio.create_task(append_until(done, appender, at)) for at in places]
        for _ in range(MOVES):
            at = chance.choice(places)
            await brokers.move(at, 3 - await brokers.leader(at))
        done.set()
        counts = [await task for task in writing]
        await reader.has(dict(zip(places, counts, strict=True)))

    assert reader.tail.rewound == {}
    assert reader.records == await read_plainly(brokers.kafka, places)


async def append_until(done: asyncio.Event, appender: Appender, at: Partition) -> int:
    """Appends records, and returns their number."""
    offsets: list[int] = []
    while not done.is_set():
        offsets += await appender.append(at, 3)
        await asyncio.sleep(0.02)
    assert offsets == list(range(len(offsets)))
    return len(offsets)


async def test_what_a_moved_partition_gets_arrives_soon(brokers: Cluster, appender: Appender, prefix: str):
    topic = f"{prefix}.run.r"
    await brokers.create(topic, leaders=[1, 2])
    moved, other = Partition(topic, 0), Partition(topic, 1)
    async with TailReader.connect(brokers.kafka) as reader:
        for at in (moved, other):
            reader.follow(at)
            await appender.append(at)
        await reader.has({moved: 1, other: 1})
        for count, leader in enumerate((2, 1), 2):
            await brokers.move(moved, leader)
            await asyncio.gather(appender.append(moved), appender.append(other))
            assert await reader.has({moved: count, other: count}) < 45


async def test_a_consumer_finds_the_beginning_at_a_new_leader(
    brokers: Cluster, appender: Appender, prefix: str
):
    at = Partition(f"{prefix}.runs", 0)
    await brokers.create(at.topic, leaders=[1], replicas=2)
    await appender.append(at)
    consumer = Consumer(bootstrap_servers=brokers.kafka, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(*at)])
        # A fetch would hear of the new leader before the consumer looks for the beginning.
        consumer.pause(TopicPartition(*at))
        await consumer.position(TopicPartition(*at))
        await brokers.move(at, 2)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await consumer.seek_to_beginning()
            consumer.resume(TopicPartition(*at))
            [records] = (await consumer.getmany(timeout_ms=1000 * int(DEADLINE_SECONDS))).values()
    finally:
        await consumer.stop()

    assert [record.offset for record in records] == [0]


async def test_a_broker_that_hangs_delays_no_partition_of_another(
    brokers: Cluster, appender: Appender, prefix: str
):
    hanging, *others = [Partition(f"{prefix}.run.{number}", 0) for number in range(5)]
    for at in (hanging, *others):
        await brokers.create(at.topic, leaders=[2 if at == hanging else 1])
        await appender.append(at)
    async with TailReader.connect(brokers.kafka) as reader:
        reader.follow(hanging)
        await reader.has({hanging: 1})
        pid = brokers.brokers[2].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            for at in others:
                reader.follow(at)
                # A request to the broker that hangs ends after 15 s.
                assert await reader.has({at: 1}) < 14
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_range_is_read_whole_while_its_leader_moves(
    brokers: Cluster, appender: Appender, prefix: str
):
    topic = f"{prefix}.run.r"
    await brokers.create(topic, leaders=[1])
    at, offsets = Partition(topic, 0), list[int]()
    await appender.append(at, 20, size=600_000)
    leaders = [2, 1]
    async for records in read(LogSettings(kafka=brokers.kafka), topic):
        offsets += [record.offset for record in records]
        if leaders:
            await brokers.move(at, leaders.pop(0))

    assert offsets == list(range(20))
    assert leaders == []
