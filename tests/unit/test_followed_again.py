"""Partitions that are followed again, or expected, at a broker that has fetch sessions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from tests.processes import until

from runfold.log import hot_and_cold as module
from runfold.log.fetch_messages import FetchedPartition
from runfold.log.fetch_session import OUT_OF_RANGE, SESSIONLESS_MAX, FetchSession
from runfold.log.hot_and_cold import HotAndCold, Pace, runs_pace
from runfold.log.leaders import Leaders
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold_schemas.topics import Partition

PLACES = [Partition(f"runfold.run.r{number}.l", 0) for number in range(SESSIONLESS_MAX + 1)]
A = PLACES[0]
END = 7


class Broker:
    """As Kafka's: it remembers the ends that it told in a session, and tells what has changed."""

    def __init__(self) -> None:
        self.cluster = ClusterMetadata()
        self._conns: dict[Any, Any] = {}
        self.errors: dict[Partition, int] = {}
        self._told: dict[int, dict[Partition, int]] = {}

    async def send(self, _: int, request: Any, *, group: str = "") -> Any:
        session_id, epoch = request._session
        if epoch == 0:
            session_id = len(self._told) + 1
            self._told[session_id] = {}
        told = self._told.get(session_id, {})
        for at in request._forgotten:
            told.pop(at, None)
        for topic, number, *_ in request._entries:
            told.setdefault(Partition(topic, number), -1)
        news = [
            FetchedPartition(at, self.errors.get(at, 0), END, END, (), b"")
            for at, end in told.items()
            if end != END
        ]
        told.update((at, -1 if error else END) for at, error, *_ in news)
        await asyncio.sleep(0.001 if news else request._ahead[1] / 1000)
        return SimpleNamespace(throttle_time_ms=0, error_code=0, session_id=session_id, partitions=news)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()

    @asynccontextmanager
    async def connect(_: LogSettings, **__: object) -> AsyncIterator[Leaders]:
        client: Any = broker
        leaders = Leaders(client)
        leaders.note_leaders(dict.fromkeys(PLACES, 1))
        yield leaders

    monkeypatch.setattr(Leaders, "connect", connect)
    return broker


async def test_a_partition_that_is_followed_again_at_once_has_an_end(broker: Broker):
    async with Tail.connect(LogSettings(), pace=runs_pace(10)) as tail:
        for at in PLACES:
            tail.follow(at, END)

        async def has_end() -> bool:
            return tail.end(A) == END

        await until(has_end, what="the end")
        tail.unfollow(A)
        await asyncio.sleep(0)
        tail.follow(A, END)
        await until(has_end, what="the end of the partition that is followed again")


async def test_the_end_before_an_error_is_forgotten(broker: Broker):
    client: Any = broker
    session = FetchSession(client, 1, "hot", sessionless_max=0)
    session.ask(A, END)
    await session.fetch(0)
    assert session.end(A) == END

    broker._told[1][A] = -1
    broker.errors[A] = OUT_OF_RANGE
    await session.fetch(0)

    assert session.end(A) is None


async def test_a_record_that_is_expected_keeps_its_partition_hot(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    client: Any = broker
    hot_and_cold = HotAndCold(
        client,
        1,
        take=_take,
        offset=lambda _: END,
        failed=lambda _: None,
        ended=lambda _: None,
        cold_answer_bytes=lambda: 1,
        pace=Pace(hot_seconds=0.5, is_announced=True),
    )
    hot_and_cold.add(A, END)
    for _ in range(20):
        await asyncio.sleep(0.05)
        now[0] += 0.1
        hot_and_cold.expect(A)

    assert not hot_and_cold.colds
    await hot_and_cold.close()


async def _take(*_: object) -> list[Partition]:
    return []
