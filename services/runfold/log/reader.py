"""Reads a range of one topic, up to an end that is fixed when the read begins."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from aiokafka.errors import KafkaError, NodeNotReadyError

from runfold.log.archived_logs import ArchivedLogs, NoArchiveError
from runfold.log.catalog import folded_segments, partition_of, segments_key
from runfold.log.driver import TopicRefusedError, kafka_errors
from runfold.log.fetch_answer import (
    RECORDS_MAX,
    Budget,
    FetchedRecords,
    PartitionAnswer,
    skipped_here,
)
from runfold.log.fetch_session import OUT_OF_RANGE, REFUSED, Answer, FetchSession
from runfold.log.leaders import EARLIEST, Leaders, LeaderSearch, connected
from runfold.log.partition_counts import counted
from runfold.log.segments import SegmentBook, Stretch
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Segments
from runfold_schemas.codec import Record
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition, RunTopic, base_of

_WAIT_MS = 500

_RETRY_SECONDS = 0.05

_GONE_SECONDS = 2.0
"""How long a topic must be missing in the middle of a read. A broker that has just started does not
know all topics at once.
"""


class LogGoneError(UnavailableError):
    """Kafka has no such topic: it was deleted, or not every broker knows it yet."""

    def __init__(self, topic: str) -> None:
        super().__init__("Kafka", reason=f"there is no topic {topic}")
        self.topic = topic


async def read(
    settings: LogSettings,
    topic: str,
    *,
    partition: int = 0,
    first_offset: int = 0,
    end: int | None = None,
    leaders: Leaders | None = None,
    segments: SegmentBook | None = None,
) -> AsyncGenerator[list[Record], None]:
    """The records of a partition of `topic` in order, one list for each fetch, from `first_offset`
    to `end` (exclusive, by default the current end). The topic of a run stands for its whole log,
    in whatever segments it lies: `leaders` or `segments` know some of them. Its records are
    committed: an open transaction is the current end. Raises `LogGoneError` for a missing topic,
    `ConfigurationError` for archived records if the settings have no archive, and
    `UnavailableError` if no record arrives within the publish timeout, or if a transaction before
    `end` is open for so long.

    Without `leaders`, it holds a connection of its own until it is read to its end or closed: use
    `aclosing` if a loop may leave it early.
    """
    at = Partition(topic, partition)
    reading = read_fetches(
        settings, at, first_offset=first_offset, end=end, leaders=leaders, segments=segments
    )
    async with aclosing(reading) as fetches:
        async for fetch in fetches:
            if fetch.records:
                yield fetch.records


async def read_fetches(
    settings: LogSettings,
    at: Partition,
    *,
    first_offset: int = 0,
    end: int | None = None,
    leaders: Leaders | None = None,
    segments: SegmentBook | None = None,
) -> AsyncGenerator[FetchedRecords, None]:
    """The same as `read`, with the position after each fetch and with the batches that cannot be
    read. The position is behind a gap when the records behind it come.
    """
    async with connected(settings, leaders, segments) as own:
        chain = _Chain(settings, own, at)
        position, limit = first_offset, await chain.end(end)
        if limit <= position and (end is None or position < end):
            limit = await chain.newest_end(end)
        if end is not None and limit < end:
            limit = await chain.committed_end(end)
        while position < limit:
            stretch, entry = chain.stretch(position), chain.entry
            stop = limit if stretch.end is None else min(limit, stretch.end)
            position = max(position, stretch.begin)
            sealed = False
            if stretch.topic is None:
                async with aclosing(chain.archived(position, stop)) as archived:
                    async for fetched in archived:
                        yield fetched
            else:
                log = _Log(own, Partition(stretch.topic, at.partition), position, name=at)
                try:
                    async with aclosing(log), aclosing(_to_end(settings, log, stop)) as fetches:
                        async for fetched in fetches:
                            yield fetched
                            position = fetched.next_offset
                except LogGoneError:
                    if not await chain.look_up(entry):
                        raise
                    limit = await chain.end(end)
                    continue
                sealed = log.is_sealed
            position = max(position, stop)
            if sealed and position >= limit and limit != end and await chain.look_up(entry):
                limit = await chain.end(end)


async def read_segment(
    settings: LogSettings, topic: str, *, first_offset: int, end: int, leaders: Leaders
) -> AsyncGenerator[FetchedRecords, None]:
    """The same as `read_fetches` for one topic alone, in whatever segments its run lies."""
    log = _Log(leaders, Partition(topic, 0), first_offset)
    async with aclosing(log), aclosing(_to_end(settings, log, end)) as fetches:
        async for fetched in fetches:
            yield fetched


async def _to_end(settings: LogSettings, log: "_Log", end: int) -> AsyncGenerator[FetchedRecords, None]:
    """The fetches of one topic up to `end`."""
    deadline = _deadline(settings)
    while log.position < end:
        before = log.position
        if (fetched := await log.take(end)) is not None:
            yield fetched
        if log.position > before:
            deadline = _deadline(settings)
        elif time.monotonic() > deadline:
            reason = f"no record of {log.name.topic} arrived from offset {before} on"
            raise UnavailableError("Kafka", reason=reason)


async def end_offset(
    settings: LogSettings,
    topic: str,
    leaders: Leaders | None = None,
    *,
    segments: SegmentBook | None = None,
) -> int:
    """The offset that the next record of `topic` will get. Raises `LogGoneError`,
    `UnavailableError`.
    """
    at = Partition(topic, 0)
    async with connected(settings, leaders, segments) as own:
        return await _Chain(settings, own, at).newest_end()


async def offset_range(settings: LogSettings, topic: str, leaders: Leaders | None = None) -> tuple[int, int]:
    """The offsets of the first record that `topic` keeps, and of the next that it will get. The
    records of a run are kept from 0 on, in whatever segments. Raises as `end_offset`.
    """
    at = Partition(topic, 0)
    async with connected(settings, leaders) as own:
        chain = _Chain(settings, own, at)
        end = await chain.end()
        if chain.entry is not None:
            return 0, end
        with kafka_errors():
            async with asyncio.timeout(settings.publish_timeout_seconds):
                return (await own.offsets([at], EARLIEST))[at], end


async def look_up_segments(
    settings: LogSettings, leaders: Leaders, book: SegmentBook, run: RunTopic
) -> Segments | None:
    """Where the log of a run lies, by the catalog as it is now, which the book learns too. Without
    a view of the catalog, it reads the run's partition of the catalog. Raises `UnavailableError`.
    """
    if book.look_up is not None:
        entry = await book.look_up(run.run_id)
    else:
        settings, entry, key = await counted(settings, leaders=leaders), None, segments_key(run.run_id)
        number = partition_of(settings.topics, run.run_id)
        reading = read(settings, settings.topics.catalog, partition=number, leaders=leaders)
        async with aclosing(reading) as batches:
            async for records in batches:
                for record in records:
                    if record.key == key:
                        entry = folded_segments(entry, key, record.value)
        if entry is None and settings.archived is not None:
            archived = await settings.archived.run(run.run_id)
            entry = archived.segments if archived is not None else None
    if entry is None or entry.log_id != run.log_id:
        return None
    book.take(entry)
    return book.of(*run)


async def offset_at(settings: LogSettings, at: Partition, time_ms: int) -> int:
    """The offset of the first record that was appended at this time or later; the end if there is
    none. Not for the logs of runs. Raises `LogGoneError`, `UnavailableError`.
    """
    async with Leaders.connect(settings) as leaders:
        end = await _Chain(settings, leaders, at).end()
        with kafka_errors():
            async with asyncio.timeout(settings.publish_timeout_seconds):
                offset = (await leaders.offsets([at], max(time_ms, 0)))[at]
        return end if offset < 0 else offset


class _Chain:
    """The places of one log: of a run's in segments, and of any other topic itself."""

    def __init__(self, settings: LogSettings, leaders: Leaders, at: Partition) -> None:
        self._settings = settings
        self._leaders = leaders
        self._at = at
        self._book = leaders.segments(settings.topics)

    @property
    def entry(self) -> Segments | None:
        """Where the log lies, as far as it is known. None if it was not sealed."""
        return self._book.of_topic(self._at.topic)

    def stretch(self, offset: int) -> Stretch:
        """The place of the record at `offset`, or of the next one."""
        return self._book.stretch(self._at.topic, offset)

    async def look_up(self, known: Segments | None) -> bool:
        """Whether the log lies elsewhere than `known` says, by the catalog as it is now. Raises
        `UnavailableError`.
        """
        run = self._settings.topics.parse_run(self._at.topic)
        if run is None:
            return False
        return await look_up_segments(self._settings, self._leaders, self._book, run) != known

    async def end(self, end: int | None = None) -> int:
        """The end of the log, or `end` if that is before it. Raises `LogGoneError`."""
        while True:
            entry = self.entry
            last = Partition(self._book.last_topic(self._at.topic), self._at.partition)
            with kafka_errors():
                async with asyncio.timeout(self._settings.publish_timeout_seconds):
                    ends = await self._leaders.ends([last])
            if last in ends:
                return ends[last] if end is None else min(end, ends[last])
            if await self.look_up(entry):
                continue
            if entry is None:
                raise LogGoneError(self._at.topic)
            return entry.end if end is None else min(end, entry.end)

    async def newest_end(self, end: int | None = None) -> int:
        """The same, also if the log went on in another topic without this process knowing. A sealed
        topic ends with a mark, so a log that was never sealed is not looked up.
        """
        while True:
            last, entry = await self.end(), self.entry
            if not await self._has_mark_before(last) or not await self.look_up(entry):
                return last if end is None else min(end, last)

    async def committed_end(self, end: int) -> int:
        """The end of the log, or `end` if the log has records up to there. They are awaited while a
        transaction before them is open. Raises `UnavailableError` if that takes too long.
        """
        deadline = _deadline(self._settings)
        while (stable := await self.end(end)) < end and await self._has_written(end):
            if time.monotonic() > deadline:
                reason = f"a producer's transaction is open on {self._at.topic} from offset {stable} on"
                raise UnavailableError("Kafka", reason=reason)
            await asyncio.sleep(_RETRY_SECONDS)
        return stable

    async def _has_written(self, end: int) -> bool:
        """Whether there are records up to `end`, committed or not."""
        last = Partition(self._book.last_topic(self._at.topic), self._at.partition)
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                ends = await self._leaders.ends([last], committed=False)
        return ends.get(last, 0) >= end

    async def _has_mark_before(self, end: int) -> bool:
        topic = self._book.last_topic(self._at.topic)
        if end <= base_of(topic) or self._settings.topics.parse_run(self._at.topic) is None:
            return False
        log = _Log(self._leaders, Partition(topic, 0), end - 1)
        try:
            async with aclosing(log), aclosing(_to_end(self._settings, log, end)) as fetches:
                async for _ in fetches:
                    pass
        except LogGoneError:
            return True
        return log.is_sealed

    async def archived(self, begin: int, end: int) -> AsyncGenerator[FetchedRecords, None]:
        """The archived records of `[begin, end)`."""
        archived, entry = self._settings.archived, self.entry
        assert entry is not None
        if archived is None:
            raise NoArchiveError(entry.run_id, end=end)
        records: list[Record] = []
        is_empty = True
        reading = archived.records(entry.run_id, entry.log_id, start=begin, end=end, entry=entry)
        async with aclosing(reading) as read_back:
            async for record in read_back:
                records.append(record)
                is_empty = False
                if len(records) == RECORDS_MAX:
                    yield FetchedRecords(self._at, records, record.offset + 1)
                    records, begin = [], record.offset + 1
        if is_empty and entry.archived_records is None and not await self._has_archived(archived, entry):
            raise NoArchiveError(entry.run_id, end=entry.end, has_other=True)
        yield FetchedRecords(self._at, records, end)

    async def _has_archived(self, archived: ArchivedLogs, entry: Segments) -> bool:
        """Whether the archive has any record of the log, if the log has more than a seal mark."""
        archived_end = entry.end if entry.sealed_base is None else entry.sealed_base
        if archived_end == 1:
            return True
        reading = archived.records(entry.run_id, entry.log_id, start=0, end=archived_end)
        async with aclosing(reading) as read_back:
            async for _ in read_back:
                return True
        return False


class _Log:
    """One partition, read from a position on. While the caller has the records of an answer, the
    next fetch is under way.
    """

    def __init__(
        self, leaders: Leaders, at: Partition, position: int, *, name: Partition | None = None
    ) -> None:
        self.position = position
        self.name = name or at
        """The name of the log. `at` is one of its segments."""
        self.is_sealed = False
        """Whether the position is behind a seal mark."""
        self._leaders = leaders
        self._at = at
        self._skipped = skipped_here()
        self._session: tuple[int, FetchSession] | None = None
        self._fetching: asyncio.Task[list[Answer]] | None = None
        self._unread: PartitionAnswer | None = None
        self._missing_since: float | None = None

    async def take(self, end: int) -> FetchedRecords | None:
        """The next records before `end`. None if there are none yet. Raises `LogGoneError`."""
        if self._unread is None and not await self._fetch():
            return None
        assert self._unread is not None
        reader, before = self._unread, self.position
        records, unreadable = reader.take(Budget()), reader.take_unreadable()
        self.position = reader.next_offset
        self.is_sealed = reader.is_sealed
        if reader.is_read:
            self._unread = None
            if before < self.position < end:
                self._fetching = asyncio.create_task(self._next_answers())
        if self.position == before:
            return None
        # The position may be beyond the last record, because a transaction ends with a marker that
        # is not returned.
        if self.position > end:
            records = [record for record in records if record.offset < end]
        within = tuple(batch for batch in unreadable if batch.offset < end)
        return FetchedRecords(self.name, records, min(self.position, end), within)

    async def aclose(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    async def _fetch(self) -> bool:
        """Fetches once. Returns whether there is an answer to read."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._next_answers())
        try:
            answers = await self._fetching
        except (KafkaError, TimeoutError, OSError):
            await self._look_again()
            return False
        finally:
            self._fetching = None
        for answer in answers:
            if answer.error:
                await self._take_error(answer.error)
            elif answer.data:
                self._unread = PartitionAnswer.of(answer, self.name, self._skipped)
        return self._unread is not None

    async def _next_answers(self) -> list[Answer]:
        leader = self._leaders.leader(self._at)
        if leader is None:
            raise NodeNotReadyError(self._at)
        if self._session is None or self._session[0] != leader:
            self._session = leader, FetchSession(self._leaders.client, leader, "read")
        session = self._session[1]
        session.ask(self._at, self.position)
        return await session.fetch(_WAIT_MS)

    async def _take_error(self, error: int) -> None:
        if error == REFUSED:
            raise TopicRefusedError(self._at.topic)
        if error == OUT_OF_RANGE:
            beginnings: dict[Partition, int] = {}
            with suppress(KafkaError):
                beginnings = (await self._leaders.look([self._at], EARLIEST)).offsets
            if beginnings.get(self._at, 0) > self.position:
                self.position = beginnings[self._at]
                return
        await self._look_again()

    async def _look_again(self) -> None:
        """Looks for the leader, which may have changed, after a pause."""
        await asyncio.sleep(_RETRY_SECONDS)
        self._leaders.forget(self._at)
        search = LeaderSearch()
        with suppress(KafkaError):
            search = await self._leaders.find([self._at])
        if self._at in search.refused:
            raise TopicRefusedError(self._at.topic)
        if self._at not in search.missing:
            self._missing_since = None
            return
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if now - self._missing_since >= _GONE_SECONDS:
            raise LogGoneError(self._at.topic)


def _deadline(settings: LogSettings) -> float:
    return time.monotonic() + settings.publish_timeout_seconds
