"""Sealed topics on a real broker: writers are refused, and nothing that was acknowledged is behind
the end.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from tests.processes import until

from runfold.log.admin import LogAdmin
from runfold.log.leaders import Leaders
from runfold.log.reader import read
from runfold.log.sealing import SEALED_CONFIG, SealedTopics, _refused, seal, settled_ends
from runfold.log.settings import LogSettings
from runfold.log.topic_ids import delete_topics, topic_ids
from runfold_schemas.topics import Partition

SECONDS = 60.0
MARK = 1
"""The last record of a sealed topic."""
UNKNOWN = bytes(15) + b"\x01"


@pytest.fixture
def settings(kafka: str, prefix: str) -> LogSettings:
    return LogSettings(kafka=kafka, prefix=prefix)


@pytest.fixture
async def admin(settings: LogSettings) -> AsyncIterator[LogAdmin]:
    async with LogAdmin.connect(settings) as admin:
        # Readers of sealed topics look into the catalog.
        await admin.create_shared_topics()
        yield admin


@pytest.fixture
async def leaders(settings: LogSettings) -> AsyncIterator[Leaders]:
    async with Leaders.connect(settings) as leaders:
        yield leaders


async def created(admin: LogAdmin, settings: LogSettings, leaders: Leaders, count: int) -> list[str]:
    """New topics of runs, which the broker knows."""
    topics = [settings.topics.run(f"r{number}", "0" * 32) for number in range(count)]
    await asyncio.gather(*map(admin.create_run_topic, topics))

    async def all_known() -> bool:
        search = await leaders.find([Partition(topic, 0) for topic in topics])
        return len(search.leaders) == count

    await until(all_known, what="the topics")
    return topics


async def values(settings: LogSettings, topic: str) -> list[bytes | None]:
    return [record.value async for records in read(settings, topic) for record in records]


async def write(producer: AIOKafkaProducer, topic: str, begun: asyncio.Event) -> list[bytes]:
    """Writes until Kafka refuses. Returns what was acknowledged."""
    acknowledged: list[bytes] = []
    while True:
        value = b"%d" % len(acknowledged) * 100
        try:
            await producer.send_and_wait(topic, value)
        except MessageSizeTooLargeError:
            return acknowledged
        acknowledged.append(value)
        if len(acknowledged) >= 20:
            begun.set()


async def test_what_was_acknowledged_while_topics_are_sealed_is_before_the_end(
    kafka: str, settings: LogSettings, admin: LogAdmin, leaders: Leaders
) -> None:
    topics = await created(admin, settings, leaders, 5)
    begun = [asyncio.Event() for _ in topics]
    producer = AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=0)
    await producer.start()
    async with asyncio.TaskGroup() as tasks:
        writers = [
            tasks.create_task(write(producer, topic, event))
            for topic, event in zip(topics, begun, strict=True)
        ]
        for event in begun:
            await event.wait()
        sealed = await seal(admin.client._client, leaders, topics, timeout_seconds=SECONDS)
    await producer.stop()

    assert not sealed.unsettled
    assert not sealed.missing
    for topic, writer in zip(topics, writers, strict=True):
        assert len(writer.result()) == sealed.ends[topic] - MARK >= 20
        assert await values(settings, topic) == writer.result()

    again = await seal(admin.client._client, leaders, topics, timeout_seconds=SECONDS)
    assert again.ends == {topic: end + MARK for topic, end in sealed.ends.items()}
    for topic, writer in zip(topics, writers, strict=True):
        assert await values(settings, topic) == writer.result()


async def test_an_unsealed_topic_refuses_a_probe_too_and_stores_nothing(
    settings: LogSettings, admin: LogAdmin, leaders: Leaders
) -> None:
    [topic] = await created(admin, settings, leaders, 1)
    at = Partition(topic, 0)
    leader = leaders.leader(at)
    assert leader is not None

    assert await _refused(leaders, leader, [at], SealedTopics()) == set()
    assert (await settled_ends(leaders, [topic], timeout_seconds=SECONDS)).ends == {topic: 0}

    await seal(admin.client._client, leaders, [topic], timeout_seconds=SECONDS)
    assert await _refused(leaders, leader, [at], SealedTopics()) == {at}


async def test_a_topic_with_an_open_transaction_is_sealed_after_its_end(
    kafka: str, settings: LogSettings, admin: LogAdmin, leaders: Leaders
) -> None:
    topics = await created(admin, settings, leaders, 3)
    producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=settings.prefix)
    await producer.start()
    async with producer.transaction():
        for topic in topics[:2]:
            await producer.send_and_wait(topic, b"in a transaction" * 10)
        first = await seal(admin.client._client, leaders, topics, timeout_seconds=SECONDS)
        assert (first.ends, first.unsettled) == ({topics[2]: MARK}, set(topics[:2]))
        for topic in topics[:2]:
            await producer.send_and_wait(topic, b"the topic is not sealed yet" * 10)
        # A transaction may also begin between the look at the topic and the change.
        await admin.alter(topics[0], SEALED_CONFIG)

    # Kafka answers the end of a transaction before its markers are written.
    async def all_settled() -> bool:
        return not (await settled_ends(leaders, topics, timeout_seconds=SECONDS)).unsettled

    await until(all_settled, what="the markers of the transaction")
    second = await seal(admin.client._client, leaders, topics, timeout_seconds=SECONDS)
    assert second.ends == {topics[0]: 3 + MARK, topics[1]: 3 + MARK, topics[2]: 2 * MARK}

    # The producer goes on with other topics.
    [*_, other] = await created(admin, settings, leaders, 4)
    async with producer.transaction():
        await producer.send_and_wait(other, b"later" * 20)
    await producer.stop()
    assert await values(settings, other) == [b"later" * 20]
    assert len(await values(settings, topics[1])) == 2


async def test_topics_that_do_not_exist_are_named(
    settings: LogSettings, admin: LogAdmin, leaders: Leaders
) -> None:
    [topic] = await created(admin, settings, leaders, 1)

    sealed = await seal(admin.client._client, leaders, [topic, topic + "x"], timeout_seconds=SECONDS)

    assert (sealed.ends, sealed.missing) == ({topic: MARK}, {topic + "x"})


async def test_a_topic_is_deleted_by_its_id_and_never_its_successor(
    settings: LogSettings, admin: LogAdmin, leaders: Leaders
) -> None:
    topics = await created(admin, settings, leaders, 3)
    client = leaders.client
    ids = await topic_ids(client, [*topics, topics[0] + "x"])
    assert ids.keys() == set(topics)
    assert len(set(ids.values())) == 3

    assert await delete_topics(client, {topics[0]: ids[topics[0]]}, timeout_seconds=SECONDS) == {}
    await gone(admin, topics[0])
    await admin.create_run_topic(topics[0])
    stale: dict[str, bytes] = {topics[0]: ids[topics[0]], topics[1]: ids[topics[1]], "never": UNKNOWN}
    assert await delete_topics(client, stale, timeout_seconds=SECONDS) == {}

    await gone(admin, topics[1])
    assert set(await admin.list_run_topics()) == {topics[0], topics[2]}


async def gone(admin: LogAdmin, topic: str) -> None:
    async def is_gone() -> bool:
        return topic not in await admin.list_run_topics()

    await until(is_gone, what="the deletion of the topic")
