"""The fetches from one broker: a hot session, and cold ones.

    new --> hot --quiet, or pushed out by newer ones--> cold
             ^                                           |
             +------- a record, or word of one ----------+

In each fetch, a broker looks at every partition of a session. So the partitions that have records
are fetched in a small session without pause, and all others in long polls, which cost nothing until
one of them has a record. If publishers announce records of quiet partitions, even a poll need not
wait: a cold session is calm, and is fetched now and then, as long as its partitions are quiet.

A partition leaves a session only after the other has answered a request that names it. Until then
both fetch it, and its position drops what comes twice.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from runfold.log.fetch_session import Answer, FetchSession
from runfold_schemas.topics import Partition


@dataclass(frozen=True, slots=True)
class Pace:
    """How long partitions stay hot, and how often a broker is asked."""

    hot_seconds: float = 6.0
    """How long a partition stays hot after its last record. Publishers ring a run's bell if its
    last event is older than 5 s, and a bell makes the run hot again.
    """
    hot_max: int = 500
    """The number of partitions that stay hot, those with the latest records."""
    hot_wait_ms: int = 20
    quiet_wait_ms: int = 100
    """How long a hot fetch waits for records: at first, and at most after others without records,
    each of which doubles it. A new partition waits until the fetch ends.
    """
    hot_pause_seconds: float = 0.001
    hot_pause_each_seconds: float = 5e-6
    """The pause after a hot fetch with records, and its length for each partition. A broker takes
    about 10 us to look at one.
    """
    cold_wait_ms: int = 5_000
    """How long a cold fetch waits for records, and so how long it takes until a quiet partition
    leaves the hot session. In a calm session, the pause between two fetches. A fetch that waits
    takes a broker several looks at each partition, and any other fetch one.
    """
    is_announced: bool = False
    """Whether `expect` announces the records of a partition that was quiet for `hot_seconds`."""
    restless_seconds: float = 30.0
    """How long a session is not calm after a record that a calm fetch had to find, because its
    publisher may announce none.
    """
    cooling_seconds: float = 0.25
    """How long a calm session collects partitions that are about to leave the hot session."""
    cold_max: int = 1_000
    """The number of partitions in one cold session. A record ends the poll of its session only."""
    cold_pause_each_seconds: float = 50e-6
    """The pause after a cold fetch with records, for each cold partition of the broker. It bounds
    what polls cost that end all the time, at about a quarter of a core.
    """
    heated_max: int = 20
    """If a cold fetch has records of more partitions, only those become hot that had others a
    moment ago. All of them would make the hot session as slow.
    """
    again_seconds: float = 2.0
    """How long such a moment is."""


DEFAULT_PACE: Final = Pace()


def runs_pace(publisher_park_seconds: float) -> Pace:
    """The pace for the topics of runs. Publishers ring a run's bell if its last event is older than
    half of `publisher_park_seconds`.
    """
    hot_seconds = max(DEFAULT_PACE.hot_seconds, publisher_park_seconds / 2 + 1)
    # Readers that wait for an event read it from the log, so the projector may collect a few. At
    # 1,000 events/s, that saves a tenth of a core each of the broker and the projector.
    return Pace(hot_seconds=hot_seconds, hot_pause_seconds=0.004, is_announced=True)


_RETRY_SECONDS: Final = 0.1

Take = Callable[[FetchSession, Sequence[Answer]], Awaitable[Iterable[Partition]]]
"""Takes the answers to a fetch when there is room for them. Returns the partitions that had
records.
"""


class HotAndCold:
    """The sessions with one broker, and the tasks that fetch. `offset` returns the position of a
    partition, None if it is followed no more. `failed` is told the partitions of a session whose
    broker does not answer, and `ended` is told when a task ends. `cold_answer_bytes` returns the
    limit of the next answer in a cold session. The names of connections begin with `name`, so
    tails that share a client have connections of their own.
    """

    def __init__(
        self,
        client: AIOKafkaClient,
        broker: int,
        *,
        take: Take,
        offset: Callable[[Partition], int | None],
        failed: Callable[[Iterable[Partition]], None],
        ended: Callable[[asyncio.Task[None]], None],
        cold_answer_bytes: Callable[[], int],
        pace: Pace = DEFAULT_PACE,
        name: str = "",
    ) -> None:
        self._client = client
        self._name = name
        self._broker = broker
        self._take = take
        self._offset = offset
        self._failed = failed
        self._ended = ended
        self._cold_answer_bytes = cold_answer_bytes
        self._pace = pace
        self.hot = FetchSession(client, broker, f"{name}hot")
        self.colds: list[FetchSession] = []
        self._hot: OrderedDict[Partition, float] = OrderedDict()
        """The partitions whose place is the hot session, each with the time of its last record."""
        self._cold_of: dict[Partition, FetchSession] = {}
        """The partitions that are in a cold session."""
        self._warming: set[Partition] = set()
        """The partitions of `_hot` that are still in a cold session."""
        self._cooling: dict[FetchSession, set[Partition]] = {}
        """The partitions of each cold session that are still in the hot session."""
        self._spoke_at: dict[Partition, float] = {}
        """When partitions had records in a cold fetch."""
        self._hot_changed = asyncio.Event()
        self._cold_changed: dict[FetchSession, asyncio.Event] = {}
        self._restless_until: dict[FetchSession, float] = {}
        """Until when records of cold partitions may come without announcement."""
        self._answered = asyncio.Event()
        self.answered_at = time.monotonic()
        """The time of the last answer."""
        self._tasks: list[asyncio.Task[None]] = []
        self._start(self._fetch_hot())

    def add(self, at: Partition, offset: int) -> None:
        """Fetches a partition from `offset` on, also one that is fetched from another offset."""
        self.move(at, offset)
        self._heat(at, offset)

    def expect(self, at: Partition) -> None:
        """A record of the partition is about to come."""
        if at in self and (offset := self._offset(at)) is not None:
            self._heat(at, offset)

    def remove(self, at: Partition) -> None:
        """Fetches a partition no more."""
        self._hot.pop(at, None)
        self._spoke_at.pop(at, None)
        self._warming.discard(at)
        self.hot.forget(at)
        if (cold := self._cold_of.pop(at, None)) is not None:
            self._cooling[cold].discard(at)
            cold.forget(at)
        self._answered.set()

    def move(self, at: Partition, offset: int) -> None:
        """Notes the position of a partition, wherever it is fetched."""
        for session in (self.hot, self._cold_of.get(at)):
            if session is not None and at in session:
                session.ask(at, offset)

    def end(self, at: Partition) -> int | None:
        """The end of a partition as of the last answer."""
        ends = [
            end
            for session in (self.hot, self._cold_of.get(at))
            if session is not None and (end := session.end(at)) is not None
        ]
        return max(ends, default=None)

    def __contains__(self, at: object) -> bool:
        return at in self.hot or at in self._cold_of

    @property
    def is_asking(self) -> bool:
        """Whether there is anything to fetch."""
        return len(self.hot) > 0 or bool(self._cold_of)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(session.close() for session in (self.hot, *self.colds)))

    def _start(self, fetching: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(fetching)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    # The hot session

    def _heat(self, at: Partition, offset: int) -> None:
        """Gives a partition its place in the hot session."""
        self._hot[at] = time.monotonic()
        self._hot.move_to_end(at)
        if (cold := self._cold_of.get(at)) is not None:
            self._cooling[cold].discard(at)
            self._warming.add(at)
        if at not in self.hot:
            self.hot.ask(at, offset)
            self._hot_changed.set()

    async def _fetch_hot(self) -> None:
        pace = self._pace
        wait_ms = pace.hot_wait_ms
        while True:
            while not len(self.hot):
                self._hot_changed.clear()
                await self._hot_changed.wait()
            has_new = self.hot.has_new
            with_records = await self._fetch(self.hot, wait_ms)
            is_quiet = not with_records and not has_new
            wait_ms = min(2 * wait_ms, pace.quiet_wait_ms) if is_quiet else pace.hot_wait_ms
            self._leave_cold()
            self._cool()
            if with_records:
                pause = pace.hot_pause_seconds + pace.hot_pause_each_seconds * len(self.hot)
                await asyncio.sleep(pause)

    def _leave_cold(self) -> None:
        for at in [at for at in self._warming if self.hot.is_confirmed(at)]:
            self._warming.discard(at)
            self._cold_of.pop(at).forget(at)
        self._answered.set()

    def _cool(self) -> None:
        """Gives partitions that are quiet a place in a cold session."""
        oldest = time.monotonic() - self._pace.hot_seconds
        while self._hot:
            at, since = next(iter(self._hot.items()))
            is_pushed_out = since > oldest
            if is_pushed_out and len(self._hot) <= self._pace.hot_max:
                return
            offset = self._offset(at)
            if offset is None or not self.hot.is_confirmed(at):
                return  # the next hot fetch names it first
            del self._hot[at]
            self._warming.discard(at)
            cold = self._cold_of.get(at) or self._cold_with_room()
            cold.ask(at, offset)
            self._cold_of[at] = cold
            self._cooling[cold].add(at)
            if is_pushed_out:
                self._stir(cold, until=since + self._pace.hot_seconds)
            self._cold_changed[cold].set()

    # The cold sessions

    def _cold_with_room(self) -> FetchSession:
        for cold in self.colds:
            if len(cold) < self._pace.cold_max:
                return cold
        cold = FetchSession(self._client, self._broker, f"{self._name}cold {len(self.colds)}")
        self.colds.append(cold)
        self._cooling[cold] = set()
        self._cold_changed[cold] = asyncio.Event()
        self._start(self._fetch_cold(cold))
        return cold

    async def _fetch_cold(self, cold: FetchSession) -> None:
        changed = self._cold_changed[cold]
        while True:
            while not len(cold):
                changed.clear()
                await changed.wait()
            cold.answer_bytes = self._cold_answer_bytes()
            is_calm = self._is_calm(cold)
            with_records = await self._fetch(cold, 0 if is_calm else self._pace.cold_wait_ms)
            self._leave_hot(cold)
            if with_records:
                self._stir(cold, until=time.monotonic() + self._pace.restless_seconds)
                await asyncio.sleep(self._pace.cold_pause_each_seconds * len(self._cold_of))
                await self._left_by(cold, with_records)
            elif is_calm:
                await self._rest(cold)

    def _stir(self, cold: FetchSession, *, until: float) -> None:
        """Has fetches wait for records that nobody announces."""
        self._restless_until[cold] = max(until, self._restless_until.get(cold, until))

    def _is_calm(self, cold: FetchSession) -> bool:
        return self._pace.is_announced and self._restless_until.get(cold, 0.0) < time.monotonic()

    async def _rest(self, cold: FetchSession) -> None:
        """Waits until it is time for the next fetch, or until partitions join."""
        changed = self._cold_changed[cold]
        changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.cold_wait_ms / 1000):
                await changed.wait()
        if self._cooling[cold]:
            await asyncio.sleep(self._pace.cooling_seconds)

    def _leave_hot(self, cold: FetchSession) -> None:
        cooling = self._cooling[cold]
        for at in [at for at in cooling if cold.is_confirmed(at)]:
            cooling.discard(at)
            self.hot.forget(at)

    async def _left_by(self, cold: FetchSession, partitions: Sequence[Partition]) -> None:
        """Waits until these partitions are fetched by the hot session alone, so that their next
        records do not end the cold poll.
        """
        while any(at in self._warming and self._cold_of[at] is cold for at in partitions):
            self._answered.clear()
            await self._answered.wait()

    async def _fetch(self, session: FetchSession, wait_ms: int) -> list[Partition]:
        """Fetches once. Returns the partitions that had records."""
        try:
            # The end of a new partition is of interest at once.
            answers = await session.fetch(0 if session.has_new else wait_ms)
        except (KafkaError, TimeoutError, OSError):
            self._failed(list(session.partitions))
            await asyncio.sleep(_RETRY_SECONDS)
            return []
        self.answered_at = time.monotonic()
        with_records = list(await self._take(session, answers)) if answers else []
        heated = with_records if session is self.hot else self._speaking(with_records)
        for at in heated:
            if at in self and (offset := self._offset(at)) is not None:
                self._heat(at, offset)
        return with_records

    def _speaking(self, partitions: Sequence[Partition]) -> Sequence[Partition]:
        """Those of the partitions with a record in a cold fetch that become hot."""
        now, heated = time.monotonic(), partitions
        if len(partitions) > self._pace.heated_max:
            since = now - self._pace.again_seconds
            heated = [at for at in partitions if self._spoke_at.get(at, 0.0) > since]
        self._spoke_at.update(dict.fromkeys(partitions, now))
        return heated
