"""Follows many partitions from given positions, without a consumer group.

aiokafka has no incremental assignment: an assignment waits for the fetch in flight and forgets all
positions. So the tail keeps the positions itself, and applies collected changes between two
fetches.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from runfold.log.driver import kafka_errors, quieten_aiokafka, stop
from runfold.log.settings import LogSettings
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition

_FETCH_WAIT_MS = 50
"""How long a fetch waits for records. A new assignment waits for the fetch in flight: with 500 ms
the first event of a new run arrived after 4.5 s (p99), with 50 ms after 0.12 s.
"""

STEADY_FETCH_WAIT_MS = 500
"""The same for tails whose partitions hardly ever change. A long wait saves requests, each of which
names all partitions.
"""

_GETMANY_TIMEOUT_MS = 20

_PARTITION_FETCH_BYTES = 1024 * 1024

_LOOK_SECONDS = 1.0
"""How often the tail looks for partitions that advanced without a record: a transaction ends with a
marker that consumers do not return.
"""

_FETCH_BYTES = 8 * 1024 * 1024
"""The limit of a fetch of all partitions together. Unpacking so much blocks the event loop for
50 ms.
"""


class FetchedRecords(NamedTuple):
    """The records of one partition in one fetch, perhaps none, and the position after them."""

    partition: Partition
    records: list[Record]
    next_offset: int


class Tail:
    """Follows partitions. `fetches` yields the records that are appended to them."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._positions: dict[Partition, int] = {}
        self._moved: set[Partition] = set()
        self._changed = asyncio.Event()
        self._assigned = asyncio.Event()
        self._looked_at = time.monotonic()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, settings: LogSettings, *, fetch_wait_ms: int = _FETCH_WAIT_MS
    ) -> AsyncIterator["Tail"]:
        """A tail, open for the length of the block. `fetch_wait_ms` is how long a fetch waits for
        records, and so how long a change of the partitions waits for a fetch.
        """
        quieten_aiokafka()
        consumer = AIOKafkaConsumer(
            **settings.client_options(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=fetch_wait_ms,
            # Larger records arrive too, because a broker never cuts the first batch of an answer.
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            fetch_max_bytes=_FETCH_BYTES,
        )
        with kafka_errors():
            try:
                await consumer.start()
            except BaseException:
                await stop(consumer)
                raise
        try:
            yield cls(consumer)
        finally:
            await stop(consumer)

    def follow(self, partition: Partition, offset: int) -> None:
        """Follows a partition from `offset` on. Also moves a partition that is followed already."""
        self._positions[partition] = offset
        self._moved.add(partition)
        self._changed.set()

    def unfollow(self, partition: Partition) -> None:
        if self._positions.pop(partition, None) is not None:
            self._changed.set()

    async def let_go(self, partition: Partition) -> None:
        """Unfollows a partition, and returns when the client no longer asks for its topic."""
        self.unfollow(partition)
        while partition in self._consumer.assignment():
            self._assigned.clear()
            await self._assigned.wait()

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    def end(self, partition: Partition) -> int | None:
        """The end of `partition` in its last fetch. None before the first fetch."""
        if self._changed.is_set() or partition not in self._consumer.assignment():
            return None
        end: int | None = self._consumer.highwater(partition)
        return end

    async def end_offsets(self, partitions: list[Partition]) -> dict[Partition, int]:
        with kafka_errors():
            offsets: dict[Partition, int] = await self._consumer.end_offsets(partitions)
        return offsets

    async def fetches(self) -> AsyncIterator[list[FetchedRecords]]:
        """Endless: the records of each fetch by partition. The list is empty if a fetch returned no
        records in time.

        An item without records means that the partition advanced without a record, for example
        after the marker of a transaction.
        """
        while True:
            if self._changed.is_set():
                await self._assign()
            if not self._positions:
                await self._changed.wait()
                continue
            with kafka_errors():
                fetched = await self._consumer.getmany(timeout_ms=_GETMANY_TIMEOUT_MS)
                fetch = [
                    await self._fetched_records(partition, fetched.get(partition, []))
                    for partition in [*fetched, *self._passed(fetched)]
                ]
            yield [part for part in fetch if part is not None]

    async def _assign(self) -> None:
        if self._positions:
            # Kafka answers the requests of a connection one after the other. Without the pause, the
            # next fetch would be sent before the leaders of the new topics are known, and the new
            # topics would wait until that fetch times out.
            self._consumer.pause(*self._consumer.assignment())
            with kafka_errors():
                # aiokafka takes the names of topics only through its client.
                await self._consumer._client.set_topics([at.topic for at in self._positions])  # noqa: SLF001
        self._changed.clear()
        self._moved.clear()
        # aiokafka pauses only partitions of its own type.
        self._consumer.assign([TopicPartition(*at) for at in self._positions])
        for partition, offset in self._positions.items():
            self._consumer.seek(partition, offset)
        self._assigned.set()

    def _passed(self, fetched: Container[Partition]) -> list[Partition]:
        """The partitions that may have advanced without a record. Empty until it is time to look
        again.
        """
        if time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return []
        self._looked_at = time.monotonic()
        return [
            partition
            for partition, position in self._positions.items()
            if partition not in fetched and (self.end(partition) or 0) > position
        ]

    async def _fetched_records(
        self, partition: Partition, consumed: list[ConsumerRecord]
    ) -> FetchedRecords | None:
        # The fetch of a partition that was moved meanwhile has records of the old position.
        if partition in self._moved or partition not in self._positions:
            return None
        reached: int = await self._consumer.position(partition)
        if partition in self._moved or self._positions.get(partition, reached) == reached:
            return None
        self._positions[partition] = reached
        return FetchedRecords(partition, [record_of(record) for record in consumed], reached)


def record_of(record: ConsumerRecord) -> Record:
    return Record(record.offset, record.timestamp, record.key, record.headers, record.value)
