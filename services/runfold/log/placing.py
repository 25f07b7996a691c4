"""Which broker each followed partition is fetched from.

place --> leader unknown --> fetched from its leader
               ^                  |
               +----- error ------+
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from aiokafka.errors import KafkaError

from runfold.log.fetch_session import ANSWER_BYTES, FetchSession
from runfold.log.hot_and_cold import HotAndCold, Pace, Take
from runfold.log.leaders import EARLIEST, Leaders
from runfold_schemas.topics import Partition

_RETRY_SECONDS, _RETRY_MAX_SECONDS = 0.02, 1.0
"""The pauses before a partition without a leader is looked for again."""

_NUMBERS = itertools.count()

_COLD_BYTES = 32 * 1024 * 1024
"""The limit of the answers of all cold sessions together. With 10,000 partitions, all of them may
have an answer that waits for its reader.
"""


@dataclass(slots=True, eq=False)
class Followed:
    """One log from the time it is followed from a given position."""

    log: Partition
    """The log by its name."""
    at: Partition
    """The topic that the tail reads now: `log`, or a later segment of it."""
    position: int
    """The offset behind the records that were read from answers."""
    broker: int | None = None
    """The broker from which the partition is fetched."""
    end: int | None = None
    is_unknown: bool = False
    """Whether the topic does not exist at the broker that was asked last."""
    is_lost: bool = False
    """Whether the log has no record at the position."""
    is_sealed: bool = False
    """Whether the last record was a seal mark, so the log goes on elsewhere."""
    is_doubtful: bool = False
    """Whether the topic has no record at the position, and the log may go on elsewhere."""
    is_held: bool = False
    """Whether records of an open transaction follow."""
    has_moved: bool = False
    """Whether the topic that is read now has not answered yet."""
    pause: float = _RETRY_SECONDS
    next_look: float = 0.0

    def note_end(self, end: int) -> None:
        """Notes the end of the log in an answer. The answer of another session may be newer, and a
        new leader may not know the end yet.
        """
        self.end = max(end, self.end or 0)
        self.pause = _RETRY_SECONDS


class Placing:
    """Fetches partitions from their leaders, of which it has a `HotAndCold` each. `followed` has
    the partitions that are followed now.

    `take` takes the answers to a fetch. `refuse` is told a topic that Kafka refuses, and `miss` a
    log whose topic is missing. `begin_again`
    returns the partition from now on, if its log begins at another offset than its position.
    `ended` is told when a task ends.
    """

    def __init__(
        self,
        leaders: Leaders,
        followed: Mapping[Partition, Followed],
        *,
        take: Take,
        refuse: Callable[[str], None],
        miss: Callable[[Followed], None],
        begin_again: Callable[[Followed, int], Followed],
        ended: Callable[[asyncio.Task[None]], None],
        pace: Pace,
    ) -> None:
        self._name = f"tail {next(_NUMBERS)} "
        self._leaders = leaders
        self._followed = followed
        self._take = take
        self._refuse = refuse
        self._miss = miss
        self._begin_again = begin_again
        self._ended = ended
        self._pace = pace
        self.brokers: dict[int, HotAndCold] = {}
        self.unplaced: dict[Partition, Followed] = {}
        """The partitions whose leader or beginning is to be found."""
        self._to_place = asyncio.Event()
        self._finding = asyncio.create_task(self._find())
        self._finding.add_done_callback(ended)

    async def close(self) -> None:
        self._finding.cancel()
        closing = [broker.close() for broker in self.brokers.values()]
        await asyncio.gather(self._finding, *closing, return_exceptions=True)

    def place(self, followed: Followed, *, before: Followed | None) -> None:
        """Fetches a partition from its position on, and no more from that of `before`."""
        at = followed.at
        self.unplaced.pop(at, None)
        if before is not None and before.broker is not None:
            broker = self.brokers[before.broker]
            followed.broker, followed.end = before.broker, broker.end(at)
            broker.add(at, followed.position)
        elif (leader := self._leaders.leader(at)) is not None:
            self._fetch_from(leader, followed)
        else:
            self._add_unplaced(followed)

    def place_again(self, followed: Followed) -> None:
        """Fetches a partition no more until its leader is found, or its beginning."""
        if followed.broker is not None:
            self.brokers[followed.broker].remove(followed.at)
        followed.broker = None
        followed.next_look = time.monotonic() + followed.pause
        followed.pause = min(2 * followed.pause, _RETRY_MAX_SECONDS)
        self._add_unplaced(followed)

    def remove(self, followed: Followed) -> None:
        """Fetches a partition no more."""
        self.unplaced.pop(followed.at, None)
        if followed.broker is not None:
            self.brokers[followed.broker].remove(followed.at)

    def is_hot(self, session: FetchSession | None) -> bool:
        """Whether the session is one of partitions with frequent records."""
        return any(session is broker.hot for broker in self.brokers.values())

    def broker(self, followed: Followed) -> HotAndCold | None:
        """The broker from which the partition is fetched."""
        return None if followed.broker is None else self.brokers[followed.broker]

    # Brokers

    def _fetch_from(self, leader: int, followed: Followed) -> None:
        broker = self.brokers.get(leader)
        if broker is None:
            broker = self.brokers[leader] = HotAndCold(
                self._leaders.client,
                leader,
                take=self._take,
                offset=self._offset_of,
                failed=self._fail,
                ended=self._ended,
                cold_answer_bytes=self._cold_answer_bytes,
                pace=self._pace,
                name=self._name,
            )
        self.unplaced.pop(followed.at, None)
        followed.broker, followed.is_unknown = leader, False
        if not broker.is_asking:
            broker.answered_at = time.monotonic()
        broker.add(followed.at, followed.position)
        if followed.end is None:
            # If the partition was just removed, the broker may not have heard of it, and tells the
            # end no more.
            followed.end = broker.end(followed.at)

    def _cold_answer_bytes(self) -> int:
        colds = sum(len(broker.colds) for broker in self.brokers.values())
        return min(ANSWER_BYTES, _COLD_BYTES // max(1, colds))

    def _offset_of(self, at: Partition) -> int | None:
        followed = self._followed.get(at)
        return None if followed is None else followed.position

    def _fail(self, partitions: Iterable[Partition]) -> None:
        """A broker does not answer: other brokers may lead its partitions by now."""
        for at in partitions:
            self._leaders.forget(at)
            if (followed := self._followed.get(at)) is not None:
                self.place_again(followed)

    # Leaders and beginnings

    def _add_unplaced(self, followed: Followed) -> None:
        self.unplaced[followed.at] = followed
        self._to_place.set()

    async def _find(self) -> None:
        """Endless: finds the leaders of partitions, and their beginnings where they were lost."""
        while True:
            # A partition may be followed no more before this task gets on.
            while not self.unplaced:
                self._to_place.clear()
                await self._to_place.wait()
            now = time.monotonic()
            due = {at: followed for at, followed in self.unplaced.items() if followed.next_look <= now}
            if not due:
                soonest = min(followed.next_look for followed in self.unplaced.values())
                self._to_place.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(soonest - now):
                        await self._to_place.wait()
                continue
            for followed in due.values():
                followed.next_look = now + followed.pause
                followed.pause = min(2 * followed.pause, _RETRY_MAX_SECONDS)
            with suppress(KafkaError, TimeoutError, OSError):
                await self._find_leaders([at for at in due if self._leaders.leader(at) is None])
            if lost := [at for at, followed in due.items() if followed.is_lost]:
                await self._find_beginnings([at for at in lost if self._leaders.leader(at) is not None])
            for at in due:
                leader, unplaced = self._leaders.leader(at), self.unplaced.get(at)
                if leader is None or unplaced is None or unplaced.is_lost or unplaced.is_doubtful:
                    continue
                self._fetch_from(leader, unplaced)

    async def _find_leaders(self, partitions: Sequence[Partition]) -> None:
        if not partitions:
            return
        found = await self._leaders.find(partitions)
        for topic in {at.topic for at in found.refused}:
            self._refuse(topic)
        for at in partitions:
            if (followed := self.unplaced.get(at)) is not None:
                followed.is_unknown = at in found.missing
                if followed.is_unknown:
                    self._miss(followed)

    async def _find_beginnings(self, lost: Sequence[Partition]) -> None:
        """Goes on at the beginnings of these logs. Their ends do not matter: a log that was made
        anew may have grown beyond the position by now, and its first records would be missed.
        """
        search = await self._leaders.look(lost, EARLIEST)
        for topic in {at.topic for at in search.refused}:
            self._refuse(topic)
        for at, beginning in search.offsets.items():
            followed = self.unplaced.get(at)
            if followed is not None and followed.is_lost:
                followed.is_lost = False
                if beginning != followed.position:
                    self.unplaced[at] = self._begin_again(followed, beginning)
