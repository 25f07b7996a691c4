"""What a tail holds while its caller reads nothing, with a broker that is made up here."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from tests.processes import until
from tests.raw_batches import Raw, plain

from runfold.log.fetch_messages import FetchedPartition
from runfold.log.hot_and_cold import Pace
from runfold.log.leaders import Leaders
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold_schemas.topics import Partition

MB = 1024 * 1024
PARTITIONS = [Partition(f"runfold.run.r{number}.l", 0) for number in range(3_000)]
RECORD = plain([Raw(b"x" * 100_000)])
SETTINGS = LogSettings(kafka="localhost:9092")


class Broker:
    """A client of one broker that has one record of 100 KB in each partition."""

    def __init__(self) -> None:
        self.cluster = ClusterMetadata()
        self.answered = 0

    async def send(self, _: int, request: Any, *, group: str = "") -> Any:
        wait_ms, limit = request._ahead[1], request._ahead[3]
        partitions, size = [], 0
        for topic, number, offset, _size in request._entries:
            data = b""
            if offset == 0 and size < limit:
                data = bytes(bytearray(RECORD))  # a copy, as from a connection
                size += len(data)
            partitions.append(FetchedPartition(Partition(topic, number), 0, 1, 1, (), data))
        self.answered += size
        await asyncio.sleep(0 if size else min(wait_ms / 1000, 0.02))
        # Without sessions, each request names all partitions.
        return SimpleNamespace(throttle_time_ms=0, error_code=0, session_id=0, partitions=partitions)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()

    @asynccontextmanager
    async def connect(_: LogSettings, **__: object) -> AsyncIterator[Leaders]:
        leaders = Leaders(broker)  # type: ignore[arg-type]
        leaders.note_leaders(dict.fromkeys(PARTITIONS, 1))
        yield leaders

    monkeypatch.setattr(Leaders, "connect", connect)
    return broker


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


async def test_what_a_tail_holds_does_not_grow_with_its_sessions(broker: Broker, traced: None):
    pace = Pace(hot_max=50, cold_max=50, cold_wait_ms=100)
    async with Tail.connect(SETTINGS, pace=pace) as tail:
        for at in PARTITIONS:
            tail.follow(at, 0)
        sessions = tail._placing
        await until(lambda: settled(broker, sessions), what="sessions whose answers wait")
        held, _ = tracemalloc.get_traced_memory()

        offsets: list[tuple[Partition, int]] = []
        async for fetch in tail.fetches():
            offsets += [(part.partition, record.offset) for part in fetch for record in part.records]
            if len(offsets) >= len(PARTITIONS):
                break
        _, peak = tracemalloc.get_traced_memory()

    assert len(sessions.brokers[1].colds) >= 40
    assert held < 100 * MB
    assert peak < 100 * MB
    assert sorted(offsets) == sorted((at, 0) for at in PARTITIONS)


async def settled(broker: Broker, sessions: Any) -> bool:
    before = broker.answered
    await asyncio.sleep(0.5)
    return broker.answered == before and len(sessions.brokers[1].colds) >= 40
