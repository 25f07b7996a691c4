"""The search for leaders while brokers hang, without a broker."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiokafka.client
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.offset import OffsetRequest
from tests.processes import DEADLINE_SECONDS

from runfold.log import ends as ends_module
from runfold.log import leaders as module
from runfold.log.driver import quieten_aiokafka
from runfold.log.ends import LogEnds
from runfold.log.leaders import LATEST, Leaders
from runfold.log.settings import LogSettings
from runfold_schemas.topics import Partition

A, B = (Partition(name, 0) for name in "ab")


class Client:
    """A client of two brokers, of which the first one hangs and leads A."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._conns: dict[Any, Any] = {}
        self.cluster = SimpleNamespace(
            brokers=lambda: [SimpleNamespace(nodeId=1), SimpleNamespace(nodeId=2)],
            update_metadata=lambda _: None,
        )

    async def send(self, node: int, request: Any) -> Any:
        self.asked.append(node)
        if node == 1:
            await asyncio.sleep(600)
        if isinstance(request, OffsetRequest):
            topics = [name for name, _ in request._topics if name not in "ac"]
            return SimpleNamespace(topics=[(name, [(0, 0, -1, 7)]) for name in topics])
        return SimpleNamespace(
            brokers=[1, 2], topics=[(0, "a", 0, [(0, 0, 1)]), (0, "b", 0, [(0, 0, 2)]), (3, "c", 0, [])]
        )


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(module.random, "shuffle", lambda _: None)
    return Client()


async def test_a_broker_that_hangs_is_asked_once(client: Any):
    leaders = Leaders(client)

    async with asyncio.timeout(DEADLINE_SECONDS):
        for _ in range(3):
            assert (await leaders.find([A, B])).leaders == {A: 1, B: 2}

    assert client.asked == [1, 2, 2, 2]


async def test_a_broker_that_hangs_delays_no_connection_to_another(monkeypatch: pytest.MonkeyPatch):
    quieten_aiokafka()

    async def connect(_: str, port: int, **__: Any) -> Any:
        if port == 1:
            await asyncio.sleep(600)
        return SimpleNamespace(connected=lambda: True)

    monkeypatch.setattr(aiokafka.client, "create_conn", connect)
    client = AIOKafkaClient()
    monkeypatch.setattr(
        client.cluster, "broker_metadata", lambda node: SimpleNamespace(host="kafka", port=node)
    )
    hung = asyncio.create_task(client.ready(1))
    await asyncio.sleep(0)

    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await client.ready(2)

    assert not hung.done()
    hung.cancel()


async def test_calls_share_requests_and_wait_for_no_other_broker(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 1.0)
    leaders = Leaders(client)
    leaders.note_leaders({A: 1, B: 2})
    hung = asyncio.create_task(leaders.look([A], LATEST))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    async with asyncio.timeout(DEADLINE_SECONDS):
        searches = await asyncio.gather(*(leaders.look([B], LATEST) for _ in range(5)))

    assert not hung.done()
    assert [search.offsets for search in searches] == [{B: 7}] * 5
    assert client.asked == [1, 2]
    assert not (await hung).offsets


async def test_calls_that_wait_learn_that_the_connection_was_closed(client: Any):
    leaders = Leaders(client)
    waiting = asyncio.create_task(leaders.find([A]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    leaders.close(KafkaConnectionError("closed"))

    for call in (waiting, leaders.find([A])):
        with pytest.raises(KafkaConnectionError, match="closed"):
            await call


@pytest.mark.parametrize("where", [None, LATEST])
async def test_look_ups_that_ask_again_end_with_the_connection(client: Any, where: int | None):
    leaders = Leaders(client)
    asking = leaders.ends([A]) if where is None else leaders.offsets([A], where)
    waiting = asyncio.create_task(asking)
    await asyncio.sleep(0.1)  # the broker of A hangs

    leaders.close(KafkaConnectionError("closed"))

    with pytest.raises(KafkaConnectionError, match="closed"):
        async with asyncio.timeout(DEADLINE_SECONDS):
            await waiting


async def test_the_leaders_of_all_listed_topics_are_used(client: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_LEADERS_MAX", 1)
    monkeypatch.setattr(ends_module, "topic_leaders", listed)
    ends = LogEnds(LogSettings(), Leaders(client), timeout_seconds=20)

    for _ in range(2):
        client.asked.clear()
        await ends.run_topics()
        for number in range(3):
            assert await ends.ends([RUN.format(number)]) == {RUN.format(number): 7}
        assert client.asked == [2, 2, 2]  # no request for leaders


RUN = "runfold.run.r{}." + "1" * 32


async def listed(_: object) -> AsyncIterator[tuple[str, int]]:
    for number in range(3):
        yield RUN.format(number), 2


async def test_a_partition_is_missing_only_if_two_requests_miss_it(client: Any):
    leaders = Leaders(client)
    missing = Partition("c", 0)

    assert await leaders.ends([B, missing]) == {B: 7}

    assert len([node for node in client.asked if node == 2]) >= 3  # B, and twice whether there is a C


async def test_a_leader_is_forgotten_if_it_hangs_or_the_look_up_is_canceled(client: Any):
    leaders = Leaders(client)
    await leaders.find([A, B])
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert not (await leaders.look([A], LATEST)).offsets
    assert leaders.leader(A) is None

    await leaders.find([A, B])
    looking = asyncio.create_task(leaders.look([A], LATEST))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    looking.cancel()
    await asyncio.wait([looking])
    assert leaders.leader(A) is None
