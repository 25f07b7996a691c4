"""Reads tails and checks them, beside a plain consumer that reads the same partitions, and draws
what happens to them meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from hypothesis import strategies as st
from tests.processes import DEADLINE_SECONDS, until

from runfold.log.settings import LogSettings
from runfold.log.tail import FetchedRecords, Tail
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition, is_of_run

LARGE_BYTES: Final = 1_500_000
"""More than a fetch asks for of one partition."""

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024

Login = Mapping[str, Any]
"""The options of a client that logs in."""


class TailReader:
    """Reads a tail in a task of its own, and keeps the records of each partition since it was
    followed. Every item is checked when it arrives.
    """

    def __init__(self, tail: Tail, kafka: str) -> None:
        self.tail = tail
        self.kafka = kafka
        self.records: dict[Partition, list[Record]] = {}
        self.positions: dict[Partition, int] = {}
        self.without_records: list[FetchedRecords] = []
        self._task = asyncio.create_task(self._read())

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, kafka: str, *, login: Login | None = None, **options: Any
    ) -> AsyncIterator["TailReader"]:
        async with Tail.connect(LogSettings(kafka=kafka, kafka_options=login or {}), **options) as tail:
            reader = cls(tail, kafka)
            try:
                yield reader
                reader.check()
            finally:
                reader._task.cancel()
                await asyncio.gather(reader._task, return_exceptions=True)

    def check(self) -> None:
        """Raises the error with which the reading ended, if it has ended."""
        if self._task.done():
            self._task.result()

    def follow(self, at: Partition, offset: int = 0) -> None:
        self.tail.follow(at, offset)
        self.records[at], self.positions[at] = [], offset

    def unfollow(self, at: Partition) -> None:
        self.tail.unfollow(at)
        self.positions.pop(at, None)

    def offsets(self, at: Partition) -> list[int]:
        return [record.offset for record in self.records[at]]

    def values(self, at: Partition) -> list[bytes | None]:
        return [record.value for record in self.records[at]]

    async def reaches(self, ends: Mapping[Partition, int], *, seconds: float = DEADLINE_SECONDS) -> float:
        """Waits until the positions are these, and returns how long it took."""

        async def reached() -> bool:
            self.check()
            return all(self.positions.get(at) == end for at, end in ends.items())

        return await until(reached, seconds=seconds, what=f"the positions {ends}, now {self.positions}")

    async def has(self, counts: Mapping[Partition, int], *, seconds: float = DEADLINE_SECONDS) -> float:
        """Waits until so many records have come, and returns how long it took."""

        async def have_come() -> bool:
            self.check()
            return all(len(self.records[at]) >= count for at, count in counts.items())

        took = await until(have_come, seconds=seconds, what=f"{counts} records")
        assert {at: len(self.records[at]) for at in counts} == dict(counts)
        return took

    async def _read(self) -> None:
        async for fetch in self.tail.fetches():
            for part in fetch:
                self._take(part)

    def _take(self, part: FetchedRecords) -> None:
        at, offsets = part.partition, [record.offset for record in part.records]
        assert at in self.positions, f"{at} is not followed: {part}"
        position = self.positions[at]
        if part.next_offset < position:
            assert at in self.tail.rewound, f"{at} went back from {position} to {part.next_offset}"
            self.records[at], position = [], 0
        assert offsets == sorted(set(offsets)), f"the order in {at}"
        assert not offsets or position <= offsets[0], f"{offsets[0]} of {at} again, after {position}"
        assert not offsets or offsets[-1] < part.next_offset, f"the position in {at}"
        if not part.records:
            self.without_records.append(part)
        self.records[at] += part.records
        self.positions[at] = part.next_offset


async def read_on(tail: Tail) -> None:
    """Reads a tail until that fails."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for _ in tail.fetches():
            pass


class Appender:
    """Appends records to partitions, in the order of the calls."""

    def __init__(self, producer: AIOKafkaProducer, transactional: AIOKafkaProducer) -> None:
        self._producer = producer
        self._transactional = transactional
        self._number = 0

    @classmethod
    @asynccontextmanager
    async def connect(cls, kafka: str, name: str, *, login: Login | None = None) -> AsyncIterator["Appender"]:
        """`name` is that of the transactions."""
        options = {"bootstrap_servers": kafka, "max_request_size": BATCH_BYTES_MAX, **(login or {})}
        producer = AIOKafkaProducer(**options, acks="all", enable_idempotence=True)
        transactional = AIOKafkaProducer(**options, transactional_id=name)
        await producer.start()
        try:
            await transactional.start()
            yield cls(producer, transactional)
        finally:
            await producer.stop()
            await transactional.stop()

    async def append(self, at: Partition, count: int = 1, *, size: int = 20) -> list[int]:
        """Appends records, and returns their offsets."""
        sent = [await self._send(self._producer, at, size) for _ in range(count)]
        return [(await one).offset for one in sent]

    async def transact(self, at: Partition, count: int = 1, *, commits: bool = True) -> None:
        """Appends records in a transaction, which is committed or aborted."""
        await self._transactional.begin_transaction()
        for _ in range(count):
            await (await self._send(self._transactional, at, 20))
        if commits:
            await self._transactional.commit_transaction()
        else:
            await self._transactional.abort_transaction()

    async def _send(self, producer: AIOKafkaProducer, at: Partition, size: int) -> asyncio.Future:
        self._number += 1
        value = f"{self._number} ".encode().ljust(size, b".")
        return await producer.send(at.topic, value, partition=at.partition, headers=[("n", b"1")])


async def create_topics(kafka: str, names: Iterable[str], *, login: Login | None = None) -> None:
    """Topics with one partition each, on any broker."""
    config = {"max.message.bytes": str(BATCH_BYTES_MAX)}
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka, **(login or {}))
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic(name, 1, 1, topic_configs=config) for name in names])
        assert {one[1] for one in answer.topic_errors} == {0}, answer
    finally:
        await admin.close()


async def delete_topics(kafka: str, *names: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.delete_topics(list(names))
    finally:
        await admin.close()


async def read_plainly(kafka: str, partitions: Iterable[Partition]) -> dict[Partition, list[Record]]:
    """All records of partitions, by a consumer of aiokafka. Those of runs are committed."""
    places = [TopicPartition(*at) for at in partitions]
    is_committed = any(is_of_run(at.topic) for at in places)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka,
        group_id=None,
        enable_auto_commit=False,
        fetch_max_wait_ms=20,
        isolation_level="read_committed" if is_committed else "read_uncommitted",
    )
    records: dict[Partition, list[Record]] = {Partition(*at): [] for at in places}
    await consumer.start()
    try:
        ends = await consumer.end_offsets(places)
        consumer.assign(places)
        await consumer.seek_to_beginning()
        while [at for at in places if await consumer.position(at) < ends[at]]:
            for at, fetched in (await consumer.getmany(timeout_ms=100)).items():
                records[Partition(*at)] += [
                    Record(one.offset, one.timestamp, one.key, tuple(one.headers), one.value)
                    for one in fetched
                ]
    finally:
        await consumer.stop()
    return records


Kind = Literal[
    "append", "large", "commit", "abort", "follow", "unfollow", "catch up", "cool", "move", "fault"
]


class Step(NamedTuple):
    """Something that happens to the partition of this number. `amount` is the number of records, or
    of the records before the position.
    """

    kind: Kind
    number: int
    amount: int


PARTITIONS: Final = 5

APPENDING: Final[tuple[Kind, ...]] = ("append", "append", "append", "large", "commit", "abort")
FOLLOWING: Final[tuple[Kind, ...]] = ("follow", "follow", "follow", "unfollow")


def steps(*others: Kind) -> st.SearchStrategy[list[Step]]:
    """Appending, following and `others`, in any order."""
    kinds: tuple[Kind, ...] = (*APPENDING, *FOLLOWING, "catch up", *others)
    step = st.builds(
        Step, st.sampled_from(kinds), st.integers(0, PARTITIONS - 1), st.sampled_from([0, 1, 2, 3, 40])
    )
    return st.lists(step, min_size=10, max_size=40)


@dataclass
class Course:
    """Takes steps with a tail and an appender. The appending goes on beside the other steps."""

    reader: TailReader
    appender: Appender
    partitions: Sequence[Partition]
    cool_seconds: float = 0.1
    move: Callable[[Partition, int], Awaitable[None]] | None = None
    fault: Callable[[int], None] | None = None
    followed: dict[Partition, int] = field(default_factory=dict)
    """The partitions that are followed, each with the position at which that began."""
    _appending: dict[Partition, asyncio.Task[object]] = field(default_factory=dict)
    _transacting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self, taken: Sequence[Step]) -> None:
        for step in taken:
            await self._take(step)
            self.reader.check()
        await self.catch_up()
        await self.reaches_the_ends()

    async def reaches_the_ends(self) -> None:
        """Waits until the tail says that it is at the ends, also behind the markers of
        transactions.
        """
        tail, ends = self.reader.tail, dict[Partition, int]()

        async def is_at_the_ends() -> bool:
            self.reader.check()
            known = {at: tail.end(at) for at in self.followed}
            return known == ends == self.reader.positions and not tail.behind

        if self.followed:
            ends.update(await tail.end_offsets(list(self.followed)))
            await until(is_at_the_ends, what=f"the ends {ends}")

    async def catch_up(self) -> None:
        """Waits until every record of the followed partitions has come."""
        await asyncio.gather(*self._appending.values())
        ends = await self.reader.tail.end_offsets(list(self.followed)) if self.followed else {}
        plain = await read_plainly(self.reader.kafka, ends) if ends else {}
        expected = {at: [one for one in plain[at] if one.offset >= self.followed[at]] for at in ends}
        await self.reader.has({at: len(records) for at, records in expected.items()})
        assert {at: self.reader.records[at] for at in expected} == expected

    async def _take(self, step: Step) -> None:
        at = self.partitions[step.number]
        match step.kind:
            case "append" | "large" | "commit" | "abort":
                self._append(at, step)
            case "follow":
                [end] = (await self.reader.tail.end_offsets([at])).values()
                self.followed[at] = max(0, end - step.amount)
                self.reader.follow(at, self.followed[at])
            case "unfollow":
                self.followed.pop(at, None)
                self.reader.unfollow(at)
            case "catch up":
                await self.catch_up()
            case "cool":
                await asyncio.sleep(self.cool_seconds)
            case "move":
                assert self.move is not None, "this course has one broker"
                await self.move(at, step.amount)
            case "fault":
                assert self.fault is not None, "nothing goes wrong in this course"
                self.fault(step.number)

    def _append(self, at: Partition, step: Step) -> None:
        before = self._appending.get(at)

        async def append() -> None:
            if before is not None:
                await before
            match step.kind:
                case "append":
                    await self.appender.append(at, step.amount)
                case "large":
                    await self.appender.append(at, size=LARGE_BYTES)
                case _:
                    async with self._transacting:
                        await self.appender.transact(at, step.amount, commits=step.kind == "commit")

        self._appending[at] = asyncio.create_task(append())
