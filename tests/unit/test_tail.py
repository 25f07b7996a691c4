"""What a tail makes of the answers of a broker, without a broker."""

import asyncio
from collections import deque
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from tests.processes import until
from tests.raw_batches import Raw, plain

from runfold.log.catalog_view import CatalogView
from runfold.log.fetch_answer import FetchedRecords
from runfold.log.fetch_session import OUT_OF_RANGE, Answer, FetchSession
from runfold.log.leaders import Leaders, LeaderSearch, OffsetSearch
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition

A = Partition("runfold.run.a", 0)

SETTINGS = LogSettings(kafka="localhost:9092", partitions=12)


class OneBroker(Leaders):
    """A broker that leads every partition. `answers` are those to the next fetches."""

    def __init__(self) -> None:
        client: Any = SimpleNamespace(cluster=ClusterMetadata())
        super().__init__(client)
        self.answers: deque[list[Answer] | Exception] = deque()

    async def fetch(self) -> list[Answer]:
        await asyncio.sleep(0.001)
        answer = self.answers.popleft() if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer

    def leader(self, at: Partition) -> int | None:
        return 1

    async def find(self, partitions: Collection[Partition]) -> LeaderSearch:
        return LeaderSearch()

    async def offsets(self, partitions: Collection[Partition], where: int) -> dict[Partition, int]:
        return (await self.look(partitions, where)).offsets

    async def look(self, partitions: Collection[Partition], where: int) -> OffsetSearch:
        return OffsetSearch(dict.fromkeys(partitions, 0))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> OneBroker:
    broker, fetch = OneBroker(), FetchSession.fetch

    async def fetch_from(session: FetchSession, wait_ms: int) -> list[Answer]:
        # A client that another test has left at work asks its own broker.
        is_ours = session._client is broker.client
        return await (broker.fetch() if is_ours else fetch(session, wait_ms))

    monkeypatch.setattr(FetchSession, "fetch", fetch_from)
    return broker


def records(first: int, count: int) -> bytes:
    return plain([Raw(b"v")] * count, base_offset=first)


async def parts(tail: Tail, end: int) -> list[FetchedRecords]:
    """What the tail yields until a position is at `end`."""
    yielded: list[FetchedRecords] = []
    async for fetch in tail.fetches():
        yielded += fetch
        if any(part.next_offset >= end for part in fetch):
            break
    return yielded


async def test_a_damaged_batch_that_is_answered_twice_costs_no_record(broker: OneBroker):
    damaged = records(100, 10)[:-1] + b"x"
    broker.answers += [
        [Answer(A, 100, 0, 110, damaged)],
        [Answer(A, 100, 0, 113, damaged + records(110, 3))],
    ]
    async with Tail.connect(SETTINGS, leaders=broker) as tail:
        tail.follow(A, 100)
        yielded = await parts(tail, 113)

    assert [record.offset for part in yielded for record in part.records] == [110, 111, 112]
    unreadable = [batch for part in yielded for batch in part.unreadable]
    assert [(batch.offset, batch.next_offset) for batch in unreadable] == [(100, 110)]


async def test_what_waits_of_a_deleted_log_is_dropped_if_the_log_is_made_anew(broker: OneBroker):
    broker.answers += [
        [Answer(A, 100, 0, 150, records(100, 10))],
        [Answer(A, 110, 0, 150, records(110, 40))],
    ]
    async with Tail.connect(SETTINGS, leaders=broker) as tail:
        tail.follow(A, 100)
        # The first answer waits for the caller, and the second one for the first.
        await until(lambda: are_asked(broker), what="the fetches")
        cold: Any = object()
        await tail._take(cold, [Answer(A, 110, OUT_OF_RANGE, -1, b"")])
        await until(lambda: is_rewound(tail), what="the new beginning")
        broker.answers.append([Answer(A, 0, 0, 20, records(0, 20))])
        yielded = await parts(tail, 20)

    assert tail.rewound == {A: 110}
    assert [record.offset for part in yielded for record in part.records] == list(range(20))


async def test_a_tail_that_failed_says_so_at_each_call_and_closes(broker: OneBroker):
    broker.answers.append(ValueError("a bug"))
    async with Tail.connect(SETTINGS, leaders=broker) as tail:
        tail.follow(A, 0)
        for _ in range(2):
            with pytest.raises(ValueError, match="a bug"):
                await parts(tail, 1)


async def test_a_partition_that_is_unfollowed_at_once_leaves_the_tail_at_work(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
):
    with_leader: set[Partition] = set()

    async def find(_: Leaders, partitions: Collection[Partition]) -> LeaderSearch:
        with_leader.update(partitions)
        return LeaderSearch()

    monkeypatch.setattr(OneBroker, "leader", lambda _, at: 1 if at in with_leader else None)
    monkeypatch.setattr(OneBroker, "find", find)
    async with Tail.connect(SETTINGS, leaders=broker) as tail:
        await asyncio.sleep(0.001)  # the tail waits for a partition without a leader
        tail.follow(A, 100)
        tail.unfollow(A)
        await asyncio.sleep(0.001)
        assert with_leader == set()

        broker.answers.append([Answer(A, 100, 0, 110, records(100, 10))])
        tail.follow(A, 100)
        yielded = await parts(tail, 110)

    assert [record.offset for part in yielded for record in part.records] == list(range(100, 110))


async def test_a_catalog_view_says_why_it_cannot_read_and_then_reads_again(broker: OneBroker):
    async with CatalogView.connect(SETTINGS, leaders=broker) as view:
        await view.follow_all()
        broker.answers.append(ValueError("a bug"))
        await until(lambda: fails(view, "a bug"), what="the error")
        await until(lambda: fails(view, ""), what="the end of the error")


async def are_asked(broker: OneBroker) -> bool:
    return not broker.answers


async def is_rewound(tail: Tail) -> bool:
    return bool(tail.rewound)


async def fails(view: CatalogView, reason: str) -> bool:
    """Whether look-ups fail for this reason, or succeed if there is none."""
    try:
        await view.lookup("r")
    except UnavailableError as error:
        return reason != "" and reason in str(error)
    return reason == ""
