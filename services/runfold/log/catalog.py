"""The catalog: the topic that lists all runs and announces new events.

Each run has two keys, both in the partition of its `run_id`. `life:{run}` holds the state of the
run's life. The client writes it when it opens the run; afterwards only the owning projector does.
`bell:{run}` has no value, and any program may write it: it is a tombstone, so compaction removes
bells and never a life.

Two clients may open one run at the same time. Then the first life in the partition counts. The
owner writes it again after the second, so that compaction keeps the right one.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache

from aiokafka.partitioner import murmur2
from pydantic import ValidationError

from runfold.log.driver import kafka_errors
from runfold.log.publisher import Outgoing
from runfold.log.settings import LogSettings
from runfold.log.tail import FetchedRecords, Tail
from runfold_schemas.catalog import Bell, Life
from runfold_schemas.codec import Record
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import CATALOG_PARTITIONS, Partition, Topics

_LIFE = b"life:"
_BELL = b"bell:"

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")

_RETRY_SECONDS = 1.0


# Kafka's hash in Python costs 5 us, as much as decoding an event, and keys repeat.
@lru_cache(maxsize=20_000)
def partition_of(key: str) -> int:
    """The partition of a run in the catalog, by its bare `run_id`, or of a key in another shared
    topic, by Kafka's default partitioner.
    """
    return int((murmur2(key.encode()) & 0x7FFFFFFF) % CATALOG_PARTITIONS)


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows the name. A log id that another program wrote may be any text."""
    return _TOPIC_NAME.fullmatch(name) is not None


def life_record(life: Life) -> Outgoing:
    """The catalog's record of a life."""
    return Outgoing(key=_LIFE + life.run_id.encode(), value=life.model_dump_json().encode())


def bell_record(run_id: str) -> Outgoing:
    """The catalog's record of a bell."""
    return Outgoing(key=_BELL + run_id.encode(), value=None)


def entry_of(key: bytes | None, value: bytes | None) -> Life | Bell | None:
    """The life or the bell in a record of the catalog. None for any other record."""
    if key is None:
        return None
    with contextlib.suppress(ValidationError, UnicodeDecodeError):
        if key.startswith(_BELL):
            return Bell(run_id=key.removeprefix(_BELL).decode())
        if key.startswith(_LIFE) and value is not None:
            return Life.model_validate_json(value)
    return None


class CatalogView:
    """The lives of the runs in the watched partitions, kept current in the background.

    It holds a life for each run of these partitions, about 1 KB each.
    """

    def __init__(self, settings: LogSettings, tail: Tail) -> None:
        self._topic = Topics(settings.prefix).catalog
        self._timeout_seconds = settings.publish_timeout_seconds
        self._tail = tail
        self._lives: dict[str, Life] = {}
        self._positions: dict[int, int] = {}
        self._moved = asyncio.Condition()
        self._failure: BaseException | None = None

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: LogSettings) -> AsyncIterator["CatalogView"]:
        async with Tail.connect(settings) as tail:
            view = cls(settings, tail)
            reader = asyncio.create_task(view._read())
            try:
                yield view
            finally:
                reader.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reader

    async def lookup(self, run_id: str) -> Life | None:
        """The run's current life, None if there is none. Raises `UnavailableError`."""
        at = self.watch(run_id)
        await self._read_to(at.partition, (await self._ends([at]))[at])
        return self._lives.get(run_id)

    def watch(self, run_id: str) -> Partition:
        """Follows the run's partition, so that `peek` soon returns changes of the run's life."""
        at = Partition(self._topic, partition_of(run_id))
        if at.partition not in self._positions:
            self._positions[at.partition] = 0
            self._tail.follow(at, 0)
        return at

    async def follow_all(self) -> None:
        """Reads and follows every partition, so that later calls of `lookup` are fast. Raises
        `UnavailableError`.
        """
        partitions = [Partition(self._topic, partition) for partition in range(CATALOG_PARTITIONS)]
        for at in partitions:
            self._positions.setdefault(at.partition, 0)
            if at not in self._tail:
                self._tail.follow(at, 0)
        for at, end in (await self._ends(partitions)).items():
            await self._read_to(at.partition, end)

    def peek(self, run_id: str) -> Life | None:
        """The run's life, as far as this view has read the catalog. Reads nothing itself."""
        return self._lives.get(run_id)

    def lives(self) -> list[Life]:
        """All lives that this view has read."""
        return list(self._lives.values())

    async def _ends(self, partitions: list[Partition]) -> dict[Partition, int]:
        with kafka_errors():
            async with asyncio.timeout(self._timeout_seconds):
                return await self._tail.end_offsets(partitions)

    async def _read_to(self, partition: int, end: int) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds), self._moved:
                await self._moved.wait_for(
                    lambda: self._failure is not None or self._positions[partition] >= end
                )
        except TimeoutError as error:
            raise UnavailableError(
                "Kafka", reason=f"the catalog was not read to offset {end} in time"
            ) from error
        if self._failure is not None:
            raise UnavailableError(
                "Kafka", reason=f"the catalog cannot be read: {self._failure}"
            ) from self._failure

    async def _read(self) -> None:
        while True:
            try:
                async for fetch in self._tail.fetches():
                    self._failure = None
                    await self._take_fetch(fetch)
            except UnavailableError as error:
                self._failure = error
                await self._take_fetch([])
                await asyncio.sleep(_RETRY_SECONDS)

    async def _take_fetch(self, fetch: list[FetchedRecords]) -> None:
        for part in fetch:
            for record in part.records:
                self._take(record)
            self._positions[part.partition.partition] = part.next_offset
        async with self._moved:
            self._moved.notify_all()

    def _take(self, record: Record) -> None:
        match entry_of(record.key, record.value):
            case Life() as life:
                current = self._lives.get(life.run_id)
                # A deletion is final, also if a writer that does not know of it writes later.
                if current is None or (current.log_id == life.log_id and not current.deleted):
                    self._lives[life.run_id] = life
            case _:
                pass
