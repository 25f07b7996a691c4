"""A tail yields every record of the partitions that it follows, once and in order, whatever happens
to them.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from uuid import uuid4

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.conn import AIOKafkaConnection
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.killing import ROUNDS
from tests.processes import soonest, until
from tests.tails import (
    LARGE_BYTES,
    PARTITIONS,
    Appender,
    Course,
    Step,
    TailReader,
    create_topics,
    delete_topics,
    read_plainly,
    steps,
)

from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold_schemas.topics import Partition

EXAMPLES = 10 * ROUNDS
MANY = 300


@pytest.fixture(scope="module")
async def appender(kafka: str) -> AsyncIterator[Appender]:
    async with Appender.connect(kafka, f"t{uuid4().hex[:8]}") as appender:
        yield appender


@pytest.fixture
async def reader(kafka: str) -> AsyncIterator[TailReader]:
    async with TailReader.connect(kafka) as reader:
        yield reader


@pytest.fixture
def places(prefix: str) -> list[Partition]:
    return [Partition(f"{prefix}.run.{number}", 0) for number in range(PARTITIONS)]


@pytest.fixture
async def at(kafka: str, prefix: str) -> Partition:
    """A partition that exists."""
    await create_topics(kafka, [f"{prefix}.run.r"])
    return Partition(f"{prefix}.run.r", 0)


@hypothesis_settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
@given(taken=steps("cool"), kind=st.sampled_from(["run", "shared"]))
async def test_a_tail_yields_what_a_consumer_reads(
    kafka: str, appender: Appender, taken: list[Step], kind: str
):
    prefix = f"t{uuid4().hex[:8]}"
    partitions = [Partition(f"{prefix}.{kind}.{number}", 0) for number in range(PARTITIONS)]
    await create_topics(kafka, [at.topic for at in partitions])
    async with TailReader.connect(kafka) as reader:
        await Course(reader, appender, partitions).take(taken)


async def test_a_record_arrives_soon_after_a_pause(reader: TailReader, appender: Appender, at: Partition):
    reader.follow(at)
    await appender.append(at)
    await reader.has({at: 1})

    for pause in (0.1, 1.3):

        async def arrives(pause: float = pause) -> float:
            await asyncio.sleep(pause)
            return await one_more(reader, appender, at)

        assert await soonest(arrives, seconds=1) < 1


async def one_more(reader: TailReader, appender: Appender, at: Partition) -> float:
    """Appends a record, and returns how long it takes to arrive."""
    count = len(reader.records[at]) + 1
    await appender.append(at)
    return await reader.has({at: count})


async def test_positions_advance_behind_the_markers_of_transactions(
    reader: TailReader, appender: Appender, at: Partition
):
    reader.follow(at)
    await appender.transact(at, 2)
    await appender.transact(at, 2, commits=False)
    await reader.reaches({at: 6})

    assert reader.offsets(at) == [0, 1]

    await appender.append(at)
    await reader.reaches({at: 7})
    assert reader.offsets(at) == [0, 1, 6]


async def test_topics_that_are_not_of_runs_are_read_uncommitted(
    reader: TailReader, appender: Appender, kafka: str, prefix: str
):
    shared = Partition(f"{prefix}.sessions", 0)
    await create_topics(kafka, [shared.topic])
    reader.follow(shared)
    await appender.transact(shared, 2, commits=False)
    await reader.reaches({shared: 3})

    assert reader.offsets(shared) == [0, 1]


async def test_a_marker_alone_moves_the_position(reader: TailReader, appender: Appender, at: Partition):
    await appender.transact(at, 2)
    reader.follow(at, 2)
    await reader.reaches({at: 3})

    assert reader.records[at] == []
    assert [part.next_offset for part in reader.without_records] == [3]


async def test_records_larger_than_a_fetch_of_a_partition_arrive(
    reader: TailReader, appender: Appender, at: Partition
):
    reader.follow(at)
    await appender.append(at)
    await appender.append(at, 4, size=LARGE_BYTES)
    await appender.append(at, 1, size=6_000_000)
    await appender.append(at)
    await reader.has({at: 7})

    assert reader.offsets(at) == list(range(7))


async def test_partitions_with_more_than_a_fetch_together_all_arrive_and_the_quiet_ones_too(
    kafka: str, prefix: str, appender: Appender, reader: TailReader
):
    places = [Partition(f"{prefix}.run.{number}", 0) for number in range(16)]
    await create_topics(kafka, [at.topic for at in places])
    *full, quiet = places
    await asyncio.gather(*(appender.append(at, 3, size=LARGE_BYTES) for at in full))
    await appender.append(quiet)
    for at in places:
        reader.follow(at)
    await reader.has(dict.fromkeys(full, 3) | {quiet: 1})


async def test_a_partition_that_is_followed_anew_begins_at_its_new_position(
    reader: TailReader, appender: Appender, at: Partition
):
    await appender.append(at, 100)
    for offset in (90, 0, 50, 99, 100, 7):
        reader.follow(at, offset)
        await asyncio.sleep(0.02 * (offset % 4))
    await reader.has({at: 93})

    assert reader.offsets(at) == list(range(7, 100))


async def test_nothing_of_a_partition_arrives_after_it_was_unfollowed(
    reader: TailReader, appender: Appender, at: Partition, kafka: str, prefix: str
):
    other = Partition(f"{prefix}.run.other", 0)
    await create_topics(kafka, [other.topic])
    for one in (at, other):
        reader.follow(one)
    await appender.append(at)
    await reader.has({at: 1})
    writing = asyncio.create_task(appender.append(at, 500))
    reader.unfollow(at)
    await writing
    await appender.append(other)
    await reader.has({other: 1})

    assert at not in reader.tail
    assert reader.offsets(at) == [0]


async def test_no_partition_is_followed_at_first_and_later_none_again(
    reader: TailReader, appender: Appender, at: Partition
):
    await asyncio.sleep(0.05)
    for number in range(3):
        reader.follow(at, number)
        await appender.append(at)
        await reader.has({at: 1})
        reader.unfollow(at)
        assert len(reader.tail) == 0


async def test_many_partitions_are_followed_while_records_come(
    kafka: str, prefix: str, appender: Appender, reader: TailReader
):
    places = [Partition(f"{prefix}.run.{number}", 0) for number in range(MANY)]
    await create_topics(kafka, [at.topic for at in places])

    async def follow() -> None:
        for at in places:
            reader.follow(at)
            await asyncio.sleep(0.001)

    await asyncio.gather(follow(), *(appender.append(at, 2) for at in places))
    for at in places[::3]:
        reader.unfollow(at)
    remaining = [at for at in places if at in reader.positions]
    await asyncio.gather(*(appender.append(at, 2) for at in places))
    await reader.has(dict.fromkeys(remaining, 4))

    assert [reader.offsets(at) for at in remaining] == [[0, 1, 2, 3]] * len(remaining)


async def test_a_topic_that_is_made_anew_is_read_from_its_beginning(
    reader: TailReader, appender: Appender, at: Partition, kafka: str
):
    await appender.append(at, 10)
    reader.follow(at)
    await reader.reaches({at: 10})

    await delete_topics(kafka, at.topic)
    await until(lambda: created(kafka, at.topic), what="the topic's second creation")
    offsets = await appender.append(at, 3)

    await reader.reaches({at: 3})
    assert reader.offsets(at) == offsets == [0, 1, 2]
    assert reader.tail.rewound == {at: 10}


async def created(kafka: str, topic: str) -> bool:
    """Kafka deletes a topic some time after its answer that it does."""
    try:
        await create_topics(kafka, [topic])
    except AssertionError:
        return False
    return True


async def test_a_position_beyond_the_end_goes_back_to_the_beginning(
    reader: TailReader, appender: Appender, at: Partition
):
    await appender.append(at, 3)
    reader.follow(at, 1_000)
    await reader.reaches({at: 3})

    assert reader.offsets(at) == [0, 1, 2]
    assert reader.tail.rewound == {at: 1_000}
    reader.follow(at, 3)
    assert reader.tail.rewound == {}


async def test_a_position_before_the_beginning_goes_on_at_the_beginning(
    reader: TailReader, appender: Appender, at: Partition, kafka: str
):
    await appender.append(at, 10)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(*at): RecordsToDelete(before_offset=4)})
    finally:
        await admin.close()

    reader.follow(at, 1)
    await reader.reaches({at: 10})
    assert reader.offsets(at) == list(range(4, 10))


async def test_a_topic_that_does_not_exist_is_unknown_until_it_is_created_and_delays_no_other(
    reader: TailReader, appender: Appender, at: Partition, kafka: str, prefix: str
):
    absent = Partition(f"{prefix}.run.absent", 0)
    reader.follow(absent, 0)
    reader.follow(at)

    async def is_unknown() -> bool:
        return reader.tail.is_unknown(absent) and reader.tail.unknown() == {absent: 0}

    await until(is_unknown, what="the news that the topic is missing")
    for _ in range(3):
        assert await soonest(partial(one_more, reader, appender, at), seconds=2) < 2
    assert not reader.tail.is_unknown(at)

    await create_topics(kafka, [absent.topic])
    await appender.append(absent)
    await reader.has({absent: 1})
    assert not reader.tail.is_unknown(absent)
    assert reader.tail.unknown() == {}


async def test_the_ends_of_followed_partitions_are_known_after_a_fetch(
    reader: TailReader, appender: Appender, at: Partition
):
    await appender.append(at, 5)
    reader.follow(at)
    assert reader.tail.end(at) is None
    await reader.reaches({at: 5})

    assert reader.tail.end(at) == 5
    assert await reader.tail.end_offsets([at]) == {at: 5}
    reader.unfollow(at)
    assert reader.tail.end(at) is None


async def test_broken_connections_lose_and_double_nothing(
    reader: TailReader,
    appender: Appender,
    kafka: str,
    places: list[Partition],
    monkeypatch: pytest.MonkeyPatch,
):
    await create_topics(kafka, [at.topic for at in places])
    for at in places:
        reader.follow(at)
    fetching: list[AIOKafkaConnection] = []
    send = AIOKafkaConnection.send

    def noting(connection: AIOKafkaConnection, request: object, **options: bool) -> object:
        if "Fetch" in type(request).__name__ and connection not in fetching:
            fetching.append(connection)
        return send(connection, request, **options)

    monkeypatch.setattr(AIOKafkaConnection, "send", noting)
    writing = [asyncio.create_task(appended_slowly(appender, at)) for at in places]
    for _ in range(4):
        fetching.clear()
        await until(lambda: is_filled(fetching), what="a fetch")
        await asyncio.sleep(0.05)
        for connection in fetching:
            if connection.connected():
                connection._writer.transport.abort()
    counts = {at: await task for at, task in zip(places, writing, strict=True)}
    await reader.has(counts)

    assert reader.records == await read_plainly(kafka, places)


async def is_filled(connections: list[AIOKafkaConnection]) -> bool:
    return bool(connections)


async def appended_slowly(appender: Appender, at: Partition) -> int:
    for _ in range(40):
        await appender.append(at)
        await asyncio.sleep(0.02)
    return 40


async def test_a_tail_can_be_closed_while_it_waits(kafka: str, at: Partition, appender: Appender):
    async with Tail.connect(LogSettings(kafka=kafka)) as tail:
        tail.follow(at, 0)
        await appender.append(at)
        fetches = tail.fetches()
        while not await anext(fetches):
            pass
        waiting = asyncio.create_task(anext(fetches))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await fetches.aclose()
