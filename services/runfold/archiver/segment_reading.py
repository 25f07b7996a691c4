"""Reads sealed topics, in parts that fit into memory."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from runfold.archive.segments import Segment, SegmentKey, record_bytes
from runfold.archive.table import Fence
from runfold.archiver.known_runs import KnownRun
from runfold.log.bulk_reader import read_ranges
from runfold.log.fetch_answer import FetchedRecords
from runfold.log.leaders import Leaders
from runfold.log.reader import LogGoneError, read_segment
from runfold.log.settings import LogSettings
from runfold_projections.admission import is_skipped
from runfold_schemas.codec import Record
from runfold_schemas.errors import RunfoldError
from runfold_schemas.topics import Partition

_PART_BYTES: Final = 16 * 1024 * 1024
PART_RECORDS: Final = 20_000
"""The limits of what is archived at once. A log that exceeds them becomes several segments."""


class UnarchivableError(RunfoldError):
    """A run cannot be archived. Its topic stays."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"the run {run_id!r} cannot be archived: {reason}")
        self.run_id = run_id


@dataclass(slots=True)
class SealedLog:
    """A sealed topic on its way into the archive. Its offsets are those of the run."""

    run: KnownRun
    fence: Fence
    topic: str
    base: int
    position: int
    """The end of what is archived, and compared."""
    end: int
    """The end of the topic."""
    next_offset: int = 0
    """The offset behind the last record that was read, 0 if there is none."""

    @property
    def key(self) -> SegmentKey:
        """The segment that begins at the position."""
        return SegmentKey(self.run.run_id, self.run.log_id, self.position)


class _Room:
    """What a part may still take."""

    def __init__(self) -> None:
        self._bytes, self._records = _PART_BYTES, PART_RECORDS

    @property
    def is_full(self) -> bool:
        return self._bytes <= 0 or self._records <= 0

    def take(self, record: Record) -> None:
        self._bytes -= record_bytes(record)
        self._records -= 1


class _Part:
    """What was read of a log."""

    def __init__(self, log: SealedLog, room: _Room) -> None:
        self.log = log
        self.records: list[Record] = []
        self.end = log.position
        self.failure: UnarchivableError | None = None
        self._room = room

    @property
    def is_done(self) -> bool:
        return self.end >= self.log.end or self.failure is not None

    def take(self, fetched: FetchedRecords) -> None:
        run = self.log.run
        for batch in fetched.unreadable:
            if not is_skipped(batch.offset, run.skipped):
                reason = f"{batch.reason} at offset {batch.offset}"
                self.failure = UnarchivableError(run.run_id, reason)
                return
        for record in fetched.records:
            if self._room.is_full:
                return
            self._room.take(record)
            self.records.append(record)
            self.end = record.offset + 1
        if not self._room.is_full:
            self.end = fetched.next_offset

    def result(self) -> Segment | UnarchivableError | None:
        """The segment, or None if nothing was read."""
        log, run = self.log, self.log.run
        if self.failure is not None or self.end == log.position:
            return self.failure
        return Segment(run.run_id, run.log_id, log.position, self.end, self.records, run.skipped)


class SegmentReader:
    """Reads over one connection."""

    def __init__(self, settings: LogSettings, leaders: Leaders) -> None:
        self._settings = settings
        self._leaders = leaders

    async def parts(self, logs: Sequence[SealedLog]) -> list[Segment | UnarchivableError | None]:
        """The next part of each log, from its position on, as far as there is room for all of them.
        None if there was no room for a record. Raises `UnavailableError`.
        """
        room = _Room()
        parts = {Partition(log.topic, 0): _Part(log, room) for log in logs}
        ranges = {at: range(part.log.position, part.log.end) for at, part in parts.items()}
        async with aclosing(read_ranges(self._leaders, ranges)) as fetches:
            async for fetched in fetches:
                if (part := parts[fetched.partition]).failure is None:
                    part.take(fetched)
                if room.is_full:
                    break
        for part in parts.values():
            if not part.is_done and not room.is_full:
                await self._read_rest(part, room)
        return [part.result() for part in parts.values()]

    async def again(self, segments: Sequence[tuple[Segment, str]]) -> list[Segment]:
        """The records of segments in these topics, read once more. Raises `UnarchivableError` for
        the first whose topic is gone.
        """
        records: dict[Partition, list[Record]] = {Partition(topic, 0): [] for _, topic in segments}
        ends = {Partition(topic, 0): segment.base for segment, topic in segments}
        ranges = {Partition(topic, 0): range(segment.base, segment.end) for segment, topic in segments}
        async with aclosing(read_ranges(self._leaders, ranges)) as fetches:
            async for fetched in fetches:
                records[fetched.partition] += fetched.records
                ends[fetched.partition] = fetched.next_offset
        for segment, topic in segments:
            at = Partition(topic, 0)
            if ends[at] < segment.end:
                try:
                    async for fetched in self._rest(topic, ends[at], segment.end):
                        records[at] += fetched.records
                except LogGoneError as error:
                    raise UnarchivableError(segment.run_id, f"there is no topic {topic}") from error
        return [segment._replace(records=records[Partition(topic, 0)]) for segment, topic in segments]

    async def _read_rest(self, part: _Part, room: _Room) -> None:
        """Reads what a broker did not answer at once."""
        try:
            async with aclosing(self._rest(part.log.topic, part.end, part.log.end)) as fetches:
                async for fetched in fetches:
                    part.take(fetched)
                    if room.is_full or part.failure is not None:
                        return
        except LogGoneError:
            run_id, topic = part.log.run.run_id, part.log.topic
            part.failure = UnarchivableError(run_id, f"there is no topic {topic}")

    def _rest(self, topic: str, position: int, end: int) -> AsyncGenerator[FetchedRecords, None]:
        return read_segment(self._settings, topic, first_offset=position, end=end, leaders=self._leaders)
