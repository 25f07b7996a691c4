"""Follows many partitions from given positions, without a consumer group.

    follow --> placed at its leader: hot or cold --> answers --> records in portions --> fetches

The tail keeps the positions. A fetch session only knows from where to go on, so whatever a broker
forgets costs a request, and no record.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from runfold.log.driver import TopicRefusedError
from runfold.log.fetch_answer import RECORDS_MAX, Budget, FetchedRecords, PartitionAnswer, skipped_here
from runfold.log.fetch_session import OUT_OF_RANGE, REFUSED, Answer, FetchSession
from runfold.log.hot_and_cold import DEFAULT_PACE, Pace
from runfold.log.leaders import LATEST, Leaders, connected
from runfold.log.placing import Followed, Placing
from runfold.log.sealed_logs import RUN, SealedLogs
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold_schemas.topics import Partition

_QUIET_SECONDS: Final = 0.25
"""How long `fetches` waits for records before it yields an empty list."""


@dataclass(slots=True)
class _Portion:
    """Records that wait for the caller of `fetches`."""

    session: FetchSession | None
    parts: list[tuple[Followed, FetchedRecords]] = field(default_factory=list)
    records: int = 0
    spent: float = 0.0
    """How much of a budget it has spent."""


class Tail:
    """Follows partitions. `fetches` yields the records that are appended to them."""

    def __init__(
        self,
        settings: LogSettings,
        leaders: Leaders,
        *,
        passes_refused: bool = False,
        pace: Pace = DEFAULT_PACE,
    ) -> None:
        self.leaders = leaders
        self._passes_refused = passes_refused
        self._skipped = skipped_here()
        self._followed: dict[Partition, Followed] = {}
        """By the topic that is read now."""
        self._places: dict[Partition, Partition] = {}
        """The topics that are read now, of logs in later segments."""
        self._lagging: set[Partition] = set()
        self._portions: deque[_Portion] = deque()
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Condition()
        self._reading_cold = asyncio.Lock()
        self._failure: Exception | None = None
        """The error with which a task of this tail ended."""
        self._refusal: TopicRefusedError | None = None
        self.rewound: dict[Partition, int] = {}
        """The positions from which the tail had to go back, because the log ends before them."""
        self.refused: dict[str, str] = {}
        """The topics that Kafka refuses to this login, each with the reason. The tail follows them
        no more.
        """
        self._placing = Placing(
            leaders,
            self._followed,
            take=self._take,
            refuse=self._refuse,
            miss=self._note_missing,
            begin_again=self._begin_again,
            ended=self._note_end,
            pace=pace,
        )
        self._sealed = SealedLogs(
            settings,
            leaders,
            is_followed=lambda followed: self._followed.get(followed.at) is followed,
            move=self._move,
            hand_over=self._hand_over_archived,
        )

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        settings: LogSettings,
        *,
        passes_refused: bool = False,
        pace: Pace = DEFAULT_PACE,
        leaders: Leaders | None = None,
        segments: SegmentBook | None = None,
    ) -> AsyncIterator["Tail"]:
        """A tail, open for the length of the block, over the client of `leaders` if given. With
        `passes_refused`, a topic that Kafka refuses is noted in `refused`, and `fetches` goes on
        with the others. The topic of a run stands for its whole log, in whatever segments it lies:
        `leaders` or `segments` know some of them.
        """
        async with connected(settings, leaders, segments) as own:
            tail = cls(settings, own, passes_refused=passes_refused, pace=pace)
            try:
                yield tail
            finally:
                await tail._sealed.close()
                await tail._placing.close()

    def follow(self, partition: Partition, offset: int) -> None:
        """Follows a partition from `offset` on. Also moves a partition that is followed already."""
        before = self._followed.pop(self._place(partition), None)
        stretch = self.leaders.stretch(partition, offset)
        at = Partition(stretch.topic or partition.topic, partition.partition)
        if before is not None and before.at != at:
            self._placing.remove(before)
            self._lagging.discard(before.at)
            before = None
        followed = self._followed[at] = Followed(partition, at, max(offset, stretch.begin))
        followed.has_moved = at != partition
        self._note_place(followed)
        self.rewound.pop(partition, None)
        self.refused.pop(partition.topic, None)
        if stretch.topic is None:
            followed.is_sealed = True
            self._sealed.add(followed)
        else:
            self._placing.place(followed, before=before)
        self._note_lag(followed)
        self._has_news.set()

    def unfollow(self, partition: Partition) -> None:
        """Follows a partition no more."""
        followed = self._followed.pop(self._place(partition), None)
        if followed is not None:
            self._places.pop(partition, None)
            self.rewound.pop(partition, None)
            self._lagging.discard(followed.at)
            self._placing.remove(followed)

    def expect(self, partition: Partition) -> None:
        """A record of this partition is about to come: it is fetched without waiting, and no longer
        with the quiet partitions.
        """
        followed = self._followed.get(self._place(partition))
        if followed is not None and (broker := self._placing.broker(followed)) is not None:
            broker.expect(followed.at)

    def __contains__(self, partition: Partition) -> bool:
        return self._place(partition) in self._followed

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def behind(self) -> dict[Partition, int]:
        """The positions of the partitions that were not at their end in their last fetch."""
        lagging = [self._followed[at] for at in self._lagging]
        return {followed.log: followed.position for followed in lagging}

    @property
    def held(self) -> dict[Partition, int]:
        """The positions of the partitions that have records behind an open transaction."""
        return {each.log: each.position for each in self._followed.values() if each.is_held}

    def is_held(self, partition: Partition) -> bool:
        """Whether `held` has the partition."""
        followed = self._followed.get(self._place(partition))
        return followed is not None and followed.is_held

    def end(self, partition: Partition) -> int | None:
        """The end of `partition` in its last fetch. None before the first fetch."""
        followed = self._followed.get(self._place(partition))
        if followed is None or followed.end is not None:
            return None if followed is None else followed.end
        entry = self.leaders.entry(partition)
        return entry.end if entry is not None and followed.is_unknown else None

    def is_unknown(self, partition: Partition) -> bool:
        """Whether a followed partition has no topic, because the topic does not exist or is so new
        that not every broker knows it. An archived log is not unknown.
        """
        followed = self._placing.unplaced.get(self._place(partition))
        return followed is not None and self._is_unknown(followed)

    def unknown(self) -> dict[Partition, int]:
        """The positions of all followed partitions that have no topic: see `is_unknown`."""
        unplaced = self._placing.unplaced.values()
        return {followed.log: followed.position for followed in unplaced if self._is_unknown(followed)}

    def _is_unknown(self, followed: Followed) -> bool:
        return followed.is_unknown and self.leaders.entry(followed.log) is None

    def answers(self) -> dict[str, object]:
        """The brokers from which the tail waits for answers, each with the time of its last
        answer.
        """
        brokers = self._placing.brokers.items()
        return {f"broker {node}": broker.answered_at for node, broker in brokers if broker.is_asking}

    @property
    def answered_at(self) -> float:
        """The time of the last answer of any broker, by `time.monotonic`; 0 if there was none."""
        return max((broker.answered_at for broker in self._placing.brokers.values()), default=0.0)

    async def end_offsets(self, partitions: list[Partition]) -> dict[Partition, int]:
        """The offsets that the next records will get."""
        return await self.leaders.offsets(partitions, LATEST)

    async def fetches(self) -> AsyncIterator[list[FetchedRecords]]:
        """Endless: the records of each fetch by partition. The list is empty if a fetch returned no
        records in time.

        An item without records means that the position changed without a record. It advances after
        the marker of a transaction. It goes back if the log ends before the position: then the tail
        begins anew at the beginning of the log.

        Raises `TopicRefusedError` for a topic that Kafka refuses, after which a new call goes on.
        After any other error the tail has ended.
        """
        while True:
            if not self._portions and self._failure is None and self._refusal is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_QUIET_SECONDS if self._followed else None):
                        await self._has_news.wait()
            self._has_news.clear()
            if self._failure is not None:
                raise self._failure
            if self._refusal is not None:
                refusal, self._refusal = self._refusal, None
                raise refusal
            yield await self._next_fetch()

    async def _next_fetch(self) -> list[FetchedRecords]:
        """The portions that wait, up to the limit of a portion, with each partition once."""
        fetch: dict[Partition, FetchedRecords] = {}
        records = 0
        while self._portions:
            portion = self._portions[0]
            if fetch and (
                records + portion.records > RECORDS_MAX
                or any(followed.at in fetch for followed, _ in portion.parts)
            ):
                self._has_news.set()
                break
            self._portions.popleft()
            records += portion.records
            for followed, part in portion.parts:
                # A partition that was moved meanwhile has another position.
                if self._followed.get(followed.at) is followed:
                    fetch[followed.at] = part
        async with self._has_room:
            self._has_room.notify_all()
        return list(fetch.values())

    # From answers to portions.

    async def _take(self, session: FetchSession, answers: Sequence[Answer]) -> list[Partition]:
        """Reads the answers to a fetch in portions, each when the one before was taken."""
        with_records: list[Partition] = []
        unread: deque[tuple[Followed, PartitionAnswer]] = deque()
        for answer in answers:
            if (read := self._reader_of(answer)) is not None:
                unread.append(read)
        if not unread:
            return with_records
        if self._placing.is_hot(session):
            await self._read_all(session, unread, with_records)
        else:
            await self._wait_for_room(lambda: not self._waits(session))
            # One after the other, because the rest of an answer may hold an unpacked batch.
            async with self._reading_cold:
                await self._read_all(session, unread, with_records)
        return with_records

    async def _read_all(
        self,
        session: FetchSession,
        unread: deque[tuple[Followed, PartitionAnswer]],
        with_records: list[Partition],
    ) -> None:
        while unread:
            await self._wait_for_room(lambda: self._is_room_for(session))
            portion = _Portion(session)
            budget = Budget()
            while unread and not budget.is_spent:
                followed, reader = unread[0]
                if self._followed.get(followed.at) is followed:
                    self._read(followed, reader, budget, portion)
                    if reader.is_read:
                        with_records.append(followed.at)
                else:
                    reader.is_read = True
                if reader.is_read:
                    unread.popleft()
            portion.spent = budget.spent
            self._hand_over(portion)

    def _is_room_for(self, session: FetchSession) -> bool:
        """Whether another portion of the session may wait. Cold sessions, which may be many, share
        the room of one full portion.
        """
        if self._waits(session):
            return False
        if self._placing.is_hot(session):
            return True
        colds = [portion for portion in self._portions if not self._placing.is_hot(portion.session)]
        return sum(portion.spent for portion in colds) < 1.0

    def _waits(self, session: FetchSession) -> bool:
        return any(portion.session is session for portion in self._portions)

    async def _wait_for_room(self, is_room: Callable[[], bool]) -> None:
        async with self._has_room:
            await self._has_room.wait_for(is_room)

    def _reader_of(self, answer: Answer) -> tuple[Followed, PartitionAnswer] | None:
        """A reader of the records for one partition, if the answer has any that are new."""
        followed = self._followed.get(answer.partition)
        # The answer to a request from before the partition was moved may have records behind a gap.
        if followed is None or answer.asked > followed.position:
            return None
        if answer.error:
            self._take_error(followed, answer)
            return None
        if followed.end is None:
            self._has_news.set()
        followed.note_end(answer.end)
        followed.is_held = answer.is_held
        if followed.has_moved:
            # The caller's position moves over the gap between two segments.
            followed.has_moved = False
            self._hand_over(_Portion(None, [(followed, FetchedRecords(followed.log, [], followed.position))]))
        self._note_lag(followed)
        if not answer.data:
            return None
        return followed, PartitionAnswer.of(answer, followed.log, self._skipped)

    def _read(self, followed: Followed, reader: PartitionAnswer, budget: Budget, portion: _Portion) -> None:
        reader.skip_to(followed.position)
        records = reader.take(budget)
        unreadable = reader.take_unreadable()
        if reader.next_offset > followed.position:
            followed.position = reader.next_offset
            part = FetchedRecords(followed.log, records, reader.next_offset, unreadable)
            portion.parts.append((followed, part))
            portion.records += len(records)
            if (broker := self._placing.broker(followed)) is not None:
                broker.move(followed.at, followed.position)
            if reader.is_sealed:
                followed.is_sealed = True
                self._sealed.add(followed)
            elif records:
                followed.is_sealed = False  # somebody else wrote the mark
        self._note_lag(followed)

    def _hand_over(self, portion: _Portion) -> None:
        if portion.parts:
            self._portions.append(portion)
            self._has_news.set()

    def _note_lag(self, followed: Followed) -> None:
        if followed.end is not None and followed.end > followed.position:
            self._lagging.add(followed.at)
        else:
            self._lagging.discard(followed.at)

    def _take_error(self, followed: Followed, answer: Answer) -> None:
        if answer.error == OUT_OF_RANGE and answer.asked != followed.position:
            return  # another session has read on meanwhile
        if answer.error == REFUSED:
            self._refuse(followed.at.topic)
        elif answer.error == OUT_OF_RANGE and RUN in followed.log.topic:
            followed.is_doubtful = True
            self._sealed.add(followed, at_once=True)
        elif answer.error == OUT_OF_RANGE:
            followed.is_lost = True
        else:
            self.leaders.forget(followed.at)
        if followed.at in self._followed:
            self._placing.place_again(followed)

    def _refuse(self, topic: str) -> None:
        error = TopicRefusedError(topic)
        if self._passes_refused:
            for followed in [each for each in self._followed.values() if each.at.topic == topic]:
                self.unfollow(followed.log)
                self.refused[followed.log.topic] = str(error)
        else:
            self._refusal = error
        self._has_news.set()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Has `fetches` raise the error with which a task ended."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failure = error
            self._has_news.set()

    def _begin_again(self, before: Followed, beginning: int) -> Followed:
        """Goes on at `beginning`. What waits of the old log is dropped with `before`."""
        at = before.at
        followed = Followed(before.log, at, beginning, pause=before.pause, next_look=before.next_look)
        self._followed[at] = followed
        if beginning < before.position:
            self.rewound.setdefault(before.log, before.position)
        self._lagging.discard(at)
        self._hand_over(_Portion(None, [(followed, FetchedRecords(before.log, [], beginning))]))
        return followed

    # Segments.

    def _place(self, log: Partition) -> Partition:
        """The topic of a followed log that is read now."""
        return self._places.get(log, log)

    def _note_place(self, followed: Followed) -> None:
        if followed.at != followed.log:
            self._places[followed.log] = followed.at
        else:
            self._places.pop(followed.log, None)

    def _note_missing(self, followed: Followed) -> None:
        self._sealed.add(followed)

    def _move(self, followed: Followed, at: Partition, offset: int) -> None:
        """Goes on in another topic. What waits of the log stays valid."""
        self._placing.remove(followed)
        del self._followed[followed.at]
        self._lagging.discard(followed.at)
        followed.at, followed.position = at, offset
        followed.broker = followed.end = None
        followed.is_sealed = followed.is_unknown = followed.is_lost = followed.is_doubtful = False
        followed.has_moved = True
        self._followed[at] = followed
        self._note_place(followed)
        self._placing.place(followed, before=None)
        self._has_news.set()

    async def _hand_over_archived(self, followed: Followed, fetched: FetchedRecords) -> None:
        """Hands archived records over when the caller has taken what waits."""
        await self._wait_for_room(lambda: not self._portions)
        if self._followed.get(followed.at) is followed:
            followed.position = fetched.next_offset
            self._hand_over(_Portion(None, [(followed, fetched)], len(fetched.records)))
