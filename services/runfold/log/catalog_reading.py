"""Reads partitions of the catalog from the offset on that somebody asked for, and then follows them
in the background.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from runfold.log.driver import kafka_errors
from runfold.log.fetch_answer import FetchedRecords
from runfold.log.leaders import Leaders
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold.log.verdicts import Verdicts, read_settled
from runfold.log.watched_life import FollowedPartition
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import Partition

_RETRY_SECONDS: Final = 1.0

Take = Callable[[Record, Partition], None]


class CatalogReading:
    """The partitions of the catalog that a view follows. `take` gets the records of each in their
    order, and again if the partition is read again.
    """

    def __init__(self, settings: LogSettings, take: Take, *, leaders: Leaders | None = None) -> None:
        self._settings = settings
        self._leaders = leaders
        self._topic = settings.topics.catalog
        self._take = take
        self.verdicts = Verdicts(settings)
        self._tail: Tail | None = None
        """The tail that reads. None before the first one and after an error."""
        self.partitions = {number: FollowedPartition() for number in range(settings.topics.partitions)}
        self._moved = asyncio.Condition()
        self._failure: BaseException | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[None]:
        """Reads for the length of the block."""
        reading = asyncio.create_task(self._read())
        try:
            async with self._moved:
                await self._moved.wait_for(lambda: self._tail is not None or self._failure is not None)
            if self._tail is None and self._failure is not None:
                raise self._failure
            yield
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    def follow(self, number: int, offset: int) -> FollowedPartition:
        """Follows a partition from `offset` on, if it is not followed from there or before."""
        partition = self.partitions[number]
        if partition.began is None or partition.began > offset:
            self.begin(number, offset)
        return partition

    def begin(self, number: int, offset: int) -> None:
        """Reads a partition from `offset` on, also one that was read before."""
        self.partitions[number].begin(offset)
        if self._tail is not None:
            self._tail.follow(Partition(self._topic, number), offset)

    async def catch_up(self, numbers: Iterable[int]) -> None:
        """Returns when these followed partitions were read to an end once. Raises
        `UnavailableError`.
        """
        await self.read_to_ends([each for each in numbers if not self.partitions[each].caught_up])

    async def read_to_ends(self, numbers: Collection[int]) -> None:
        """Returns when these followed partitions are read to their ends. Raises
        `UnavailableError`.
        """
        if numbers:
            for number, end in (await self.ends(numbers)).items():
                await self.read_to(number, end)

    async def read_to(self, number: int, end: int) -> None:
        """Returns when a followed partition is read to `end`. Raises `UnavailableError`."""
        partition = self.partitions[number]
        try:
            async with asyncio.timeout(self._settings.publish_timeout_seconds), self._moved:
                await self._moved.wait_for(lambda: self._failure is not None or partition.position >= end)
        except TimeoutError as error:
            raise UnavailableError(
                "Kafka", reason=f"the catalog was not read to offset {end} in time"
            ) from error
        if self._failure is not None:
            raise self._unavailable()
        partition.caught_up = True

    async def ends(self, numbers: Iterable[int]) -> dict[int, int]:
        """The offsets that the next records of these partitions get. Raises `UnavailableError`."""
        partitions = [Partition(self._topic, number) for number in numbers]
        if self._tail is None:
            raise self._unavailable()
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                ends = await self._tail.end_offsets(partitions)
        return {at.partition: end for at, end in ends.items()}

    def records(self, number: int, first_offset: int, end: int) -> AsyncGenerator[Sequence[Record], None]:
        """The records of a partition from `first_offset` to `end`, read once more over the
        connection of the tail. Use `aclosing`. Raises `UnavailableError`.
        """
        if self._tail is None:
            raise self._unavailable()
        return read_settled(
            self._settings,
            Partition(self._topic, number),
            self.verdicts,
            first_offset=first_offset,
            end=end,
            leaders=self._tail.leaders,
        )

    def _unavailable(self) -> UnavailableError:
        error = UnavailableError("Kafka", reason=f"the catalog cannot be read: {self._failure}")
        error.__cause__ = self._failure
        return error

    async def _read(self) -> None:
        """Endless: after an error that nobody expected, it begins again with a new tail."""
        while True:
            try:
                async with Tail.connect(self._settings, leaders=self._leaders) as tail:
                    self._tail = tail
                    try:
                        await self._read_from(tail)
                    finally:
                        self._tail = None
            except Exception as error:  # noqa: BLE001  # look-ups raise it
                await self._note_failure(error)

    async def _read_from(self, tail: Tail) -> None:
        for number, partition in self.partitions.items():
            if partition.began is not None:
                self.begin(number, partition.began)
        await self._take_fetch([])
        while True:
            try:
                async for fetch in tail.fetches():
                    self._failure = None
                    await self._take_fetch(fetch)
            except (UnavailableError, ConfigurationError) as error:
                await self._note_failure(error)

    async def _note_failure(self, error: Exception) -> None:
        self._failure = error
        await self._take_fetch([])
        await asyncio.sleep(_RETRY_SECONDS)

    async def _take_fetch(self, fetch: list[FetchedRecords]) -> None:
        for part, records in await self._settled(fetch):
            partition = self.partitions[part.partition.partition]
            if part.next_offset < partition.position:
                # The topic was made anew.
                partition.begin(0, rewound=True)
            for record in records:
                self._take(record, part.partition)
            partition.position = part.next_offset
        async with self._moved:
            self._moved.notify_all()

    async def _settled(
        self, fetch: Sequence[FetchedRecords]
    ) -> list[tuple[FetchedRecords, Sequence[Record]]]:
        """The parts of a fetch with their settled records. A part whose partition is read anew
        since is left out.
        """
        if not fetch or self._tail is None:
            return []
        leaders, partitions = (
            self._tail.leaders,
            [self.partitions[part.partition.partition] for part in fetch],
        )
        places = [partition.places for partition in partitions]
        try:
            settled = [
                await self.verdicts.settle(part.records, part.partition, leaders=leaders) for part in fetch
            ]
        except UnavailableError:
            # The tail is beyond these records.
            for part, partition in zip(fetch, partitions, strict=True):
                self._tail.follow(part.partition, partition.position)
            raise
        return [
            (part, records)
            for part, records, partition, before in zip(fetch, settled, partitions, places, strict=True)
            if partition.places is before
        ]
