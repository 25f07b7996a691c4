"""Reads the records of one partition from the answer to a fetch.

No batch stops a reader. A batch that cannot be read is passed over, and the caller gets an
`UnreadableBatch` instead. Records are read in portions, because 600 KB may unpack to 600 MB.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from runfold.log.batches import CODEC_MASK, LARGE_BYTES, RawBatch, has_large_record
from runfold.log.compression import UNPACKED_BYTES_MAX, UnpackError
from runfold.log.fetch_session import Answer
from runfold.log.seal_marks import is_seal
from runfold_projections.admission import is_skipped
from runfold_schemas.codec import Record, UnreadableBatch
from runfold_schemas.topics import Partition

RECORDS_MAX: Final = 10_000
"""The number of records of a portion. A batch of 8 MiB may have a million records, which would take
400 MB.
"""

_HEADERS_MAX: Final = 100_000
"""The number of headers after which a portion takes no further records: about 10 MB and 100 ms."""

SkippedAt = Callable[[Partition], Collection[range]]
"""Returns the offsets of a partition that an operator skipped."""

_LENGTH_AT, _OVERHEAD_BYTES = 8, 12
"""Where the length of a batch stands, and the bytes before those that it counts."""

_log = logging.getLogger(__name__)

_skipped: ContextVar[SkippedAt] = ContextVar("skipped", default=lambda _: ())


@contextmanager
def silent_about(skipped: SkippedAt) -> Iterator[None]:
    """The readers that are made within the block log nothing about batches that an operator
    skipped.
    """
    outside = _skipped.get()
    _skipped.set(skipped)
    try:
        yield
    finally:
        _skipped.set(outside)


def skipped_here() -> SkippedAt:
    """The skips of the innermost block of `silent_about`."""
    return _skipped.get()


class FetchedRecords(NamedTuple):
    """The records of one partition in one fetch, perhaps none, and the position after them.
    `unreadable` are the batches between them that cannot be read, in their order, almost always
    none.
    """

    partition: Partition
    records: list[Record]
    next_offset: int
    unreadable: tuple[UnreadableBatch, ...] = ()


@dataclass(slots=True)
class Budget:
    """What a portion may still hold. Several partitions of an answer share it."""

    records: int = RECORDS_MAX
    headers: int = _HEADERS_MAX
    unpacked_bytes: int = UNPACKED_BYTES_MAX

    @property
    def is_spent(self) -> bool:
        return self.records <= 0 or self.headers <= 0 or self.unpacked_bytes <= 0

    @property
    def spent(self) -> float:
        """How much of the budget is spent, 1.0 for all of it."""
        left = (
            self.records / RECORDS_MAX,
            self.headers / _HEADERS_MAX,
            self.unpacked_bytes / UNPACKED_BYTES_MAX,
        )
        return 1.0 - min(left)


class PartitionAnswer:
    """The records from `offset` on in the bytes that a broker sent for one partition. `offset` is
    the one that was asked for, and `end` the end of the partition. Records of the transactions in
    `aborted` are passed over, each given by its producer's id and its first offset.
    """

    def __init__(
        self,
        at: Partition,
        data: bytes,
        *,
        offset: int,
        end: int,
        skipped: SkippedAt,
        aborted: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.at = at
        self.next_offset = offset
        """The offset behind the records that were taken."""
        self._parsed_to = offset
        """The offset behind what was parsed, before `next_offset` after `skip_to`. A damaged batch
        begins here, because its own offsets may be damaged.
        """
        self.is_read = False
        self._sealed_end = -1
        """The offset behind the last seal mark."""
        self._end = end
        self._skipped = skipped
        self._unreadable: list[UnreadableBatch] = []
        self._records: list[Record] = []
        self._budget = Budget()
        self._transactions = _Transactions(aborted)
        self._steps = self._read(data)

    @classmethod
    def of(cls, answer: Answer, at: Partition, skipped: SkippedAt) -> "PartitionAnswer":
        """The records of an answer about the log `at`, or about a segment of it."""
        return cls(
            at, answer.data, offset=answer.asked, end=answer.end, skipped=skipped, aborted=answer.aborted
        )

    @property
    def is_sealed(self) -> bool:
        """Whether the last record that was taken is a seal mark: the log goes on elsewhere."""
        return self._sealed_end == self.next_offset

    def take(self, budget: Budget) -> list[Record]:
        """The next records, as far as the budget lasts."""
        self._budget, self._records = budget, []
        self.is_read = next(self._steps, _READ) is _READ
        return self._records

    def take_unreadable(self) -> tuple[UnreadableBatch, ...]:
        """The batches that were passed over since the last call."""
        if not self._unreadable:
            return ()
        unreadable, self._unreadable = self._unreadable, []
        return tuple(unreadable)

    def skip_to(self, offset: int) -> None:
        """Passes over the records before `offset`."""
        self.next_offset = max(self.next_offset, offset)

    def _read(self, data: bytes) -> Iterator[None]:
        """Reads to the end. It stops whenever the budget is spent."""
        batches = _Batches(data)
        while True:
            try:
                batch = batches.next()
            except CorruptRecordException as error:
                self._pass_over(self._parsed_to + 1, f"it has no length: {error}")
                return
            if batch is None:
                return
            if not batch.validate_crc():
                following = batches.following_offset()
                self._pass_over(following or batch.next_offset, "its checksum does not match its content")
            elif self._says_nothing(batch):
                self._advance(batch.next_offset)
            elif type(batch) is DefaultRecordBatch and not batch.attributes & CODEC_MASK:
                yield from self._read_plain(batch, batches)
            else:
                yield from self._read_again(batch, batches.raw())

    def _says_nothing(self, batch: Any) -> bool:
        """Whether the next batch has no records for the reader."""
        is_aborted = self._transactions.has_aborted(batch)
        return is_aborted or batch.is_control_batch or batch.next_offset <= self.next_offset

    def _read_plain(self, batch: Any, batches: "_Batches") -> Iterator[None]:
        """Reads a batch that is not compressed."""
        if batches.size > LARGE_BYTES and has_large_record(raw := batches.raw()):
            yield from self._read_again(batch, raw)
            return
        try:
            for record in batch:
                # The first batch may begin before the offset that was asked for.
                offset: int = record.offset
                if offset >= self.next_offset:
                    headers = tuple(record.headers)
                    read = Record(offset, record.timestamp, record.key, headers, record.value)
                    if read.value is None and is_seal(read):
                        self._sealed_end = offset + 1
                    else:
                        self._records.append(read)
                    self.next_offset = self._parsed_to = offset + 1
                    budget = self._budget
                    budget.records -= 1
                    budget.headers -= len(headers)
                    if budget.records <= 0 or budget.headers <= 0:
                        yield
        except (CorruptRecordException, ValueError, OverflowError, MemoryError):
            yield from self._read_again(batch, batches.raw())
        else:
            self._advance(batch.next_offset)

    def _read_again(self, batch: Any, raw: bytes) -> Iterator[None]:
        """Reads any batch within limits."""
        if self._budget.is_spent:
            yield
        try:
            unpacked = RawBatch(raw)
            self._budget.unpacked_bytes -= unpacked.unpacked_bytes
            for record in unpacked:
                if record.offset >= self.next_offset:
                    if record.value is None and is_seal(record):
                        self._sealed_end = record.offset + 1
                    else:
                        self._records.append(record)
                    self.next_offset = self._parsed_to = record.offset + 1
                    self._budget.records -= 1
                    self._budget.headers -= len(record.headers)
                    if self._budget.records <= 0 or self._budget.headers <= 0:
                        yield
        except UnpackError as error:
            self._pass_over(batch.next_offset, str(error))
        else:
            self._advance(batch.next_offset)

    def _advance(self, offset: int) -> None:
        self._parsed_to = max(self._parsed_to, offset)
        self.next_offset = max(self.next_offset, self._parsed_to)

    def _pass_over(self, next_offset: int, reason: str) -> None:
        """Passes over the offsets before `next_offset`, unless `skip_to` has done so."""
        # The offsets of a corrupt batch may be wrong as well, and must not lead beyond the end.
        next_offset = max(self._parsed_to + 1, min(next_offset, self._end))
        offset = self.next_offset
        self._advance(next_offset)
        if offset < next_offset:
            batch = UnreadableBatch(self.at, offset, next_offset, reason)
            self._unreadable.append(batch)
            if not is_skipped(batch.offset, self._skipped(self.at)):
                _log_once(batch)


_READ: Final = object()


class _Transactions:
    """The aborted transactions of one partition, while its batches are read in their order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._following = sorted(aborted, key=itemgetter(1), reverse=True)
        self._open: set[int] = set()
        """The producers of transactions whose records are being passed over."""

    def has_aborted(self, batch: Any) -> bool:
        """Whether the next batch is part of an aborted transaction."""
        if not self._following and not self._open:
            return False
        while self._following and self._following[-1][1] <= batch.base_offset:
            self._open.add(self._following.pop()[0])
        if not batch.is_transactional or batch.producer_id not in self._open:
            return False
        if batch.is_control_batch:
            self._open.discard(batch.producer_id)
        return True


class _Batches:
    """The batches of one partition, parsed by aiokafka, and as bytes."""

    def __init__(self, data: bytes) -> None:
        self._parsed = MemoryRecords(data)
        self._data = data
        self._begin = self._end = 0

    def next(self) -> Any:
        """The next batch, None if no whole batch follows."""
        if not self._parsed.has_next():
            return None
        self._begin = self._end
        length = self._data[self._begin + _LENGTH_AT : self._begin + _OVERHEAD_BYTES]
        self._end += _OVERHEAD_BYTES + int.from_bytes(length)
        return self._parsed.next_batch()

    @property
    def size(self) -> int:
        return self._end - self._begin

    def raw(self) -> bytes:
        return self._data[self._begin : self._end]

    def following_offset(self) -> int | None:
        """The first offset of the batch after this one, if the answer has that batch."""
        following = self._data[self._end : self._end + _LENGTH_AT]
        return int.from_bytes(following, signed=True) if len(following) == _LENGTH_AT else None


@lru_cache(maxsize=1000)
def _log_once(batch: UnreadableBatch) -> None:
    (topic, partition), offset, next_offset, reason = batch
    _log.warning(
        "offsets %s to %s of %s, partition %s, cannot be read and are passed over: %s"
        " (number %s of this process)",
        offset,
        next_offset - 1,
        topic,
        partition,
        reason,
        _log_once.cache_info().misses,
    )
