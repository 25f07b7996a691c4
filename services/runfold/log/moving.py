"""Goes on in the next topic of a log that was sealed while records were on their way.

    refused --> all records on their way have come back --> is the topic sealed?
            --> the catalog's entry --> the next topic
            --> the refused records in their order --> records that waited meanwhile

If the topic is not sealed, a record was too large for the topic, and its caller gets the error. A
broker checks the size of a batch before anything else, so it refuses all of a sealed topic. Records
whose first answer was lost may be in the sealed topic already: they are looked for, and those that
are found do not go again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.structs import RecordMetadata, TopicPartition

from runfold.log.driver import kafka_errors
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import base_of

Ack = asyncio.Future[RecordMetadata]
"""Resolves when the broker has acknowledged a record."""


class Outgoing(NamedTuple):
    """A record before it has an offset."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class SealedError(Exception):
    """The topic is gone, because it was archived, and its log goes on in another."""

    was_sent = False
    """Whether the records were sent before, so that the log may have them."""


class RefusedAgainError(MessageSizeTooLargeError):  # type: ignore[misc]  # aiokafka has no types
    """A topic refused records by their size that were sent before, so that it may have them."""

    was_sent = True


SEALED: Final = (MessageSizeTooLargeError, SealedError)
"""The errors of records that go again to the next topic."""


class Reopener(Protocol):
    """Knows where the logs of a prefix go on."""

    async def is_moved(self, log: str, base: int) -> bool:
        """Whether the log goes on behind the topic of this base, by the catalog as it is now."""

    async def next_topic(self, log: str, base: int) -> str:
        """Creates the topic that follows the one of this base, and returns its name. It waits for
        the entry of the catalog, so call it with a deadline.
        """

    async def find(self, log: str, base: int, firsts: Sequence["Outgoing"]) -> list[int | None]:
        """The offsets of these records in the log from `base` on. None for a record that the log
        does not have, as far as the process can read it.
        """


class Sending(NamedTuple):
    """Records that were handed over together."""

    log: str
    partition: int
    records: Sequence[Outgoing]
    is_batch: bool
    """Whether they are one record batch."""


SendTo = Callable[[str, Sending], Awaitable[Ack]]
"""Sends to a topic."""


class _Refused(NamedTuple):
    sending: Sending
    again: "asyncio.Future[Ack]"
    error: Exception


class _Move:
    """The move of one log."""

    def __init__(self) -> None:
        self.refused: list[_Refused] = []
        self.has_drained = asyncio.Event()
        self.task: asyncio.Task[None]


class Moves:
    """Which logs of a publisher go on in another topic than their first.

    `is_writing` says whether records are on their way to a topic, `prime` gets to know the leader
    of a new one, and `takes_events` says whether a topic is known not to be sealed.
    """

    def __init__(
        self,
        *,
        send_to: SendTo,
        is_writing: Callable[[str], bool],
        prime: Callable[[str], Awaitable[None]],
        takes_events: Callable[[str], Awaitable[bool]],
        timeout_seconds: float,
    ) -> None:
        self._send_to = send_to
        self._is_writing = is_writing
        self._prime = prime
        self._takes_events = takes_events
        self._timeout_seconds = timeout_seconds
        self._topics: dict[str, str] = {}
        """The topics to which records of logs go that were sealed."""
        self._logs: dict[str, str] = {}
        """The logs of these topics."""
        self._moving: dict[str, _Move] = {}
        self._again: WeakKeyDictionary[Ack, asyncio.Future[Ack]] = WeakKeyDictionary()
        self.reopeners: dict[str, Reopener] = {}
        """By the prefix of topics."""

    def topic(self, log: str) -> str:
        """The topic to which the records of a log go."""
        return self._topics.get(log, log)

    def is_moving(self, log: str) -> bool:
        """Whether records of the log have to wait."""
        return log in self._moving

    def forget(self, log: str) -> None:
        """No more records of the log are expected."""
        if (topic := self._topics.pop(log, None)) is not None:
            del self._logs[topic]

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Forgets which logs go on in these topics. Later records find them again."""
        for log in [self._logs[topic] for topic in topics if topic in self._logs]:
            self.forget(log)

    async def settled(self, log: str) -> None:
        """Returns when the log does not move. Raises the error of its move."""
        while (move := self._moving.get(log)) is not None:
            await asyncio.shield(move.task)

    async def move(self, log: str, topic: str) -> None:
        """Returns when records can go to the topic after this one."""
        if self.topic(log) == topic:
            self._begin(log, topic)
        await self.settled(log)

    def take_refusal(self, ack: Ack, sending: Sending, topic: str, error: BaseException) -> None:
        """Takes records that were refused, if they may go again to the next topic."""
        if not isinstance(error, SEALED) or self._reopener(sending.log) is None:
            return
        again: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._again[ack] = again
        self._begin(sending.log, topic).refused.append(_Refused(sending, again, error))

    async def follow(self, ack: Ack) -> Ack | None:
        """The acknowledgement that counts instead of a refused one. None if there is none."""
        await asyncio.sleep(0)  # what is told of refusals runs first
        again = self._again.get(ack)
        return None if again is None else await asyncio.shield(again)

    def note_drained(self) -> None:
        """Notes that no records are on their way to some topic."""
        for move in self._moving.values():
            move.has_drained.set()

    async def is_moved(self, topic: str) -> bool:
        """Whether the log of a missing topic goes on elsewhere."""
        log = self._logs.get(topic, topic)
        reopener = self._reopener(log)
        return reopener is not None and await reopener.is_moved(log, base_of(topic))

    def close(self) -> None:
        for move in self._moving.values():
            move.task.cancel()

    def _reopener(self, log: str) -> Reopener | None:
        prefix, _, rest = log.partition(".")
        return self.reopeners.get(prefix) if rest.startswith("run.") else None

    def _begin(self, log: str, topic: str) -> _Move:
        move = self._moving.get(log)
        if move is None:
            move = self._moving[log] = _Move()
            move.task = asyncio.create_task(self._move(log, topic, move))
            move.task.add_done_callback(_retrieve)
        return move

    async def _move(self, log: str, topic: str, move: _Move) -> None:
        refused: list[_Refused] = []
        try:
            with kafka_errors():
                is_first = True
                while move.refused or is_first:
                    is_first = False
                    async with asyncio.timeout(self._timeout_seconds):
                        # Those on their way are refused too, and come first.
                        while self._is_writing(topic):
                            move.has_drained.clear()
                            await move.has_drained.wait()
                        if move.refused and await self._takes_events(topic):
                            return
                        following = await self._open_next(log, topic)
                        refused, move.refused = move.refused, []
                        stored = await self._find(log, topic, refused)
                    topic = following
                    while refused:
                        ack = stored.pop(0) or await self._send_to(topic, refused[0].sending)
                        refused[0].again.set_result(ack)
                        del refused[0]
        finally:
            del self._moving[log]
            for each in (*refused, *move.refused):
                each.again.set_exception(_lasting(each.error))
                each.again.exception()  # the caller may have given up

    async def _find(self, log: str, topic: str, refused: Sequence[_Refused]) -> list[Ack | None]:
        """The acknowledgements of records that are in the sealed topic already."""
        reopener, acks = self._reopener(log), list[Ack | None]([None] * len(refused))
        doubtful = [index for index, each in enumerate(refused) if getattr(each.error, "was_sent", False)]
        if not doubtful or reopener is None:
            return acks
        base = base_of(topic)
        firsts = [refused[index].sending.records[0] for index in doubtful]
        for index, offset in zip(doubtful, await reopener.find(log, base, firsts), strict=True):
            if offset is not None:
                at = TopicPartition(topic, refused[index].sending.partition)
                acks[index] = ack = asyncio.get_running_loop().create_future()
                ack.set_result(RecordMetadata(*at, at, offset - base, -1, 0, None))
        return acks

    async def _open_next(self, log: str, topic: str) -> str:
        reopener = self._reopener(log)
        assert reopener is not None
        following = await reopener.next_topic(log, base_of(topic))
        await self._prime(following)
        self.forget(log)
        self._topics[log], self._logs[following] = following, log
        return following


def _lasting(error: Exception) -> Exception:
    """The error of records for which no next topic could be opened."""
    reason = "the log goes on in another topic, which could not be opened in time"
    return UnavailableError("Kafka", reason=reason) if isinstance(error, SealedError) else error


def _retrieve(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()
