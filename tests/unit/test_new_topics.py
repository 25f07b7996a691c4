"""A producer that asks for the leaders of new topics, and brokers of which some have no answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaConnectionError, ProducerClosed
from tests.processes import DEADLINE_SECONDS

from runfold.log import leaders
from runfold.log.producer import Producer
from runfold_schemas.topics import Partition

TOPIC = "runfold.sessions"


class Brokers:
    """A producer of two brokers that answer as `answer` says."""

    def __init__(self, answer: Callable[[int], Awaitable[Any]]) -> None:
        self.producer = Producer(bootstrap_servers="127.0.0.1:1", enable_idempotence=True)
        self.cluster: ClusterMetadata = self.producer.client.cluster
        self.cluster.update_metadata(response())
        self.producer.client.send = self.send
        self.producer.client._topics.add("another")  # the last topic is never forgotten
        self.answer = answer
        self.asked: list[int] = []

    async def send(self, node: int, _: Any, **__: Any) -> Any:
        self.asked.append(node)
        return await self.answer(node)

    async def know(self, number: int) -> None:
        await self.producer.know(Partition(TOPIC, number))

    def forget(self) -> None:
        self.producer.forget([TOPIC])


Connect = Callable[[Callable[[int], Awaitable[Any]]], Brokers]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    made: list[Brokers] = []

    def make(answer: Callable[[int], Awaitable[Any]]) -> Brokers:
        made.append(Brokers(answer))
        return made[-1]

    yield make
    for brokers in made:
        await brokers.producer.stop()


def response(*leaders: int) -> SimpleNamespace:
    """What a broker says of a topic whose partitions have these leaders."""
    partitions = [(0, number, leader, [], []) for number, leader in enumerate(leaders)]
    return SimpleNamespace(
        API_VERSION=1,
        brokers=[(1, "127.0.0.1", 1, None), (2, "127.0.0.1", 2, None)],
        controller_id=1,
        topics=[(0, TOPIC, False, partitions)] if leaders else [],
    )


async def test_a_partition_with_a_leader_waits_for_no_other_partition(connect: Connect):
    async def one_leader(_: int) -> Any:
        return response(-1, 2)

    brokers = connect(one_leader)
    leaderless = asyncio.create_task(brokers.know(0))

    async with asyncio.timeout(DEADLINE_SECONDS):
        await brokers.know(1)

    await asyncio.sleep(0.05)
    assert not leaderless.done()
    assert brokers.cluster.leader_for_partition(TopicPartition(TOPIC, 1)) == 2
    await brokers.producer.stop()
    with pytest.raises(ProducerClosed):
        await leaderless


async def test_what_is_known_of_other_topics_stays(connect: Connect):
    async def answer(_: int) -> Any:
        return response(1)

    brokers = connect(answer)
    other = response(2)
    other.topics[0] = (0, "other", *other.topics[0][2:])
    brokers.cluster.update_metadata(other)

    await brokers.know(0)

    assert brokers.cluster.leader_for_partition(TopicPartition("other", 0)) == 2
    assert brokers.cluster.leader_for_partition(TopicPartition(TOPIC, 0)) == 1


async def test_a_broker_that_hangs_is_asked_once(connect: Connect, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leaders, "_ANSWER_SECONDS", 0.3)

    async def first_hangs(node: int) -> Any:
        if node == hung:
            await asyncio.Event().wait()
        return response(1)

    brokers = connect(first_hangs)
    hung = 0
    await brokers.know(0)
    hung = brokers.asked.pop()
    brokers.forget()
    monkeypatch.setattr(leaders.random, "shuffle", lambda nodes: nodes.sort(key=lambda node: node != hung))

    for _ in range(3):
        async with asyncio.timeout(DEADLINE_SECONDS):
            await brokers.know(0)
        brokers.forget()

    assert brokers.asked == [hung, *[3 - hung] * 3]


async def test_nobody_is_asked_for_callers_that_were_canceled(connect: Connect):
    async def away(_: int) -> Any:
        raise KafkaConnectionError("away")

    brokers = connect(away)
    caller = asyncio.create_task(brokers.know(0))
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not brokers.asked:
            await asyncio.sleep(0.01)

    caller.cancel()
    await asyncio.sleep(0.25)
    brokers.asked.clear()
    await asyncio.sleep(0.25)

    assert not brokers.asked


async def test_an_unforeseen_error_is_raised_by_all_that_wait(connect: Connect):
    async def broken(_: int) -> Any:
        raise ValueError("no such bytes")

    brokers = connect(broken)
    callers = [asyncio.create_task(brokers.know(number)) for number in range(3)]

    async with asyncio.timeout(DEADLINE_SECONDS):
        errors = await asyncio.gather(*callers, return_exceptions=True)

    assert [str(error) for error in errors] == ["no such bytes"] * 3
    assert len(brokers.asked) == 1


async def test_a_topic_that_is_forgotten_is_new_no_longer():
    producer = Producer(bootstrap_servers="127.0.0.1:1", enable_idempotence=True)
    opening = asyncio.create_task(producer.know(Partition(TOPIC, 0), is_new=True))
    await asyncio.sleep(0)
    assert producer._sender.is_new(TOPIC)

    producer.forget([TOPIC])

    assert not producer._sender.is_new(TOPIC)
    opening.cancel()
    await producer.stop()
