"""aiokafka's consumer for the consumer group on the catalog, except that no batch and no old leader
stops it. It passes over a batch that cannot be read, and the caller gets an `UnreadableBatch`
instead.

aiokafka raises an error at such a batch for ever, and has no option for this. So its function that
takes the answer to a fetch runs here with two other classes.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import fetcher as aiokafka_fetcher
from aiokafka.consumer.fetcher import Fetcher, PartitionRecords
from aiokafka.errors import KafkaError
from aiokafka.record.memory_records import MemoryRecords

from runfold.log.fetch_answer import RECORDS_MAX, Budget, PartitionAnswer, skipped_here
from runfold_schemas.codec import Record, UnreadableBatch
from runfold_schemas.topics import Partition

_TAKE_ANSWER = Fetcher._proc_fetch_request.__code__  # noqa: SLF001


class Consumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka is untyped
    """A consumer for `getmany`. After each call, `take_unreadable` has what was passed over."""

    def __init__(self, *topics: str, **options: Any) -> None:
        self._unreadable: defaultdict[Partition, list[UnreadableBatch]] = defaultdict(list)
        self.budget = Budget()
        """What this call of `getmany` may still hold."""
        self.skipped = skipped_here()
        super().__init__(*topics, **options)

    async def getmany(self, *partitions: Partition, **options: Any) -> dict[Partition, list[Record]]:
        self.budget = Budget()
        options = {"max_records": RECORDS_MAX} | options
        fetched: dict[Partition, list[Record]] = await super().getmany(*partitions, **options)
        # A partition with more records begins at the front again, before all others.
        waiting = self._patched_fetcher._records  # noqa: SLF001 - aiokafka shows no other way
        for partition in fetched.keys() & waiting.keys():
            waiting.move_to_end(partition)
        return fetched

    def take_unreadable(self) -> dict[Partition, tuple[UnreadableBatch, ...]]:
        """The batches that were passed over since the last call, by partition."""
        unreadable, self._unreadable = self._unreadable, defaultdict(list)
        return {partition: tuple(batches) for partition, batches in unreadable.items()}

    def note_unreadable(self, batch: UnreadableBatch) -> None:
        self._unreadable[batch.partition].append(batch)

    # `start` makes the fetcher, and then awaits other things while the fetcher works.

    @property
    def _fetcher(self) -> Fetcher | None:
        return self._patched_fetcher

    @_fetcher.setter
    def _fetcher(self, fetcher: Fetcher | None) -> None:
        self._patched_fetcher: Any = fetcher
        if fetcher is not None:
            names = {"MemoryRecords": _Data, "PartitionRecords": partial(_Records, self)}
            take_answer = FunctionType(_TAKE_ANSWER, vars(aiokafka_fetcher) | names)
            fetcher._proc_fetch_request = MethodType(take_answer, fetcher)  # noqa: SLF001
            ask = fetcher._proc_offset_request  # noqa: SLF001
            fetcher._proc_offset_request = partial(self._ask_for_offsets, ask)  # noqa: SLF001

    async def _ask_for_offsets(self, ask: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Asks a leader where its partitions begin. After an error, the client looks for new
        leaders: aiokafka would ask the same broker again and again, for up to five minutes.
        """
        try:
            return await ask(*args)
        except KafkaError:
            self._client.force_metadata_update()
            raise


class _Data:
    """The bytes of one partition in an answer, and whether they have a whole batch."""

    def __init__(self, data: bytes) -> None:
        parsed = MemoryRecords(data)
        self.has_next: Callable[[], bool] = parsed.has_next
        self.size_in_bytes: Callable[[], int] = parsed.size_in_bytes
        self.data = data


class _Records(PartitionRecords):  # type: ignore[misc]  # aiokafka is untyped
    """The records of one partition in an answer, without those that cannot be read."""

    def __init__(self, consumer: Consumer, *args: Any) -> None:
        self._consumer = consumer
        self.next_fetch_offset: int
        super().__init__(*args)

    def _unpack_records(self) -> Iterator[Record]:
        consumer = self._consumer
        reader = PartitionAnswer(
            Partition(*self._tp),
            self._records.data,
            offset=self.next_fetch_offset,
            end=consumer.highwater(self._tp) or 0,
            skipped=consumer.skipped,
        )
        # What a call of `getmany` does not read is fetched again.
        while not reader.is_read and not consumer.budget.is_spent:
            for record in reader.take(consumer.budget):
                self.next_fetch_offset = record.offset + 1
                yield record
            for batch in reader.take_unreadable():
                consumer.note_unreadable(batch)
            self.next_fetch_offset = reader.next_offset
