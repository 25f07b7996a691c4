"""Compacted topics with one partition, each folded as a whole: API keys, tenants, keys of subjects.

A service reads such a topic at its start and follows it in the background. So a change takes effect
in all processes within a second, and no request needs a look-up.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from runfold.log.admin import LogAdmin
from runfold.log.leaders import Leaders
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.reader import LogGoneError, read
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError, RunfoldError, UnavailableError
from runfold_schemas.topics import Partition

_RETRY_SECONDS: Final = 1.0

_MISSING_SECONDS: Final = 2.0
"""How often a service looks for a topic that does not exist and that others create."""

_LOOKS: Final = 3
_LOOK_SECONDS: Final = 0.2
"""A topic is missing if several looks do not find it: another broker may know a new topic."""

_log = logging.getLogger(__name__)

FoldT = TypeVar("FoldT")


@dataclass(frozen=True)
class CompactedTopic(Generic[FoldT]):
    """A topic and its fold. `take` folds a record in place, also one without a value, and raises
    `ValueError` for a record that cannot be decoded.
    """

    name: str
    contents: str
    """The word for the contents in messages, such as "API keys"."""
    new: Callable[[], FoldT]
    take: Callable[[FoldT, Record], None]
    config: Mapping[str, str] = field(default_factory=dict)
    """Kafka's settings of the topic, beside compaction."""


async def create(settings: LogSettings, topic: CompactedTopic[Any]) -> None:
    """Creates the topic if it does not exist."""
    async with LogAdmin.connect(settings) as admin:
        await admin.check_broker()
        await admin.create_compacted_topic(topic.name, topic.config)


async def append(publisher: Publisher, topic: CompactedTopic[Any], key: bytes, value: bytes | None) -> int:
    """Returns the offset when the record is durable. None as the value removes the key."""
    stored = await publisher.wait(await publisher.send(topic.name, Outgoing(key=key, value=value)))
    return int(stored.offset)


async def read_all(
    settings: LogSettings, topic: CompactedTopic[FoldT], leaders: Leaders | None = None
) -> tuple[FoldT, int]:
    """The fold of the whole topic, and the offset behind it. Raises `LogGoneError` if the topic
    does not exist.
    """
    fold, next_offset = topic.new(), 0
    async for records in read(settings, topic.name, leaders=leaders):
        next_offset = fold_records(topic, fold, records)
    return fold, next_offset


def fold_records(topic: CompactedTopic[FoldT], fold: FoldT, records: Iterable[Record]) -> int:
    """Folds records, and returns the offset behind them. A record that cannot be decoded changes
    nothing.
    """
    next_offset = 0
    for record in records:
        next_offset = record.offset + 1
        try:
            topic.take(fold, record)
        except Exception as error:  # noqa: BLE001  # whatever one record causes concerns that record alone
            _log.warning(
                "the record at offset %d of the %s cannot be decoded",
                record.offset,
                topic.contents,
                exc_info=None if isinstance(error, ValueError) else error,
            )
    return next_offset


class Followed(Generic[FoldT]):
    """The fold as it is now, from the first read to the end of the `async with` block. It connects
    in the background, and again after an outage of Kafka. Meanwhile the fold stays as it is.

    A missing topic is created, or with `creates=False` counts as empty until somebody creates it.
    With `leaders`, it uses their client.
    """

    def __init__(
        self,
        settings: LogSettings,
        topic: CompactedTopic[FoldT],
        *,
        creates: bool = True,
        leaders: Leaders | None = None,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._creates = creates
        self._leaders = leaders
        self._state: FoldT | None = None
        self._next_offset = 0
        self._changes = 0
        self._answered_at = time.monotonic()
        self._moved = asyncio.Condition()
        self._refusal: RunfoldError = UnavailableError(
            "Kafka", reason=f"the {topic.contents} are not read yet"
        )
        self._following: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    @property
    def state(self) -> FoldT:
        """Raises `UnavailableError` or `ConfigurationError` until the topic is read."""
        if self._state is None:
            raise self._refusal
        return self._state

    @property
    def silent_seconds(self) -> float:
        """For how long Kafka has answered nothing, so that changes may be missing here."""
        return time.monotonic() - self._answered_at

    @property
    def next_offset(self) -> int:
        """The offset behind the last record that is folded."""
        return self._next_offset

    async def wait_for(self, offset: int, *, timeout_seconds: float) -> None:
        """Returns when the record at this offset is folded, or after the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds), self._moved:
                await self._moved.wait_for(lambda: self._next_offset > offset)

    async def changes(self) -> AsyncIterator[FoldT]:
        """Endless: the fold when it is read, and again after each change. Changes that come
        together are one.
        """
        seen = 0
        while True:
            async with self._moved:
                await self._moved.wait_for(lambda: self._changes > seen)  # noqa: B023  # waited for within the turn
                seen = self._changes
            yield self.state

    async def _follow(self) -> None:
        while True:
            try:
                await self._read_and_follow()
            except (UnavailableError, ConfigurationError) as error:
                self._note(error)
            except Exception:  # noqa: BLE001  # with a new connection, the next attempt may succeed
                _log.exception(
                    "the %s are read again after an error that was not expected", self._topic.contents
                )
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read_and_follow(self) -> None:
        at = Partition(self._topic.name, 0)
        async with Tail.connect(self._settings, leaders=self._leaders) as tail:
            fold, next_offset = await self._read(tail.leaders)
            await self._move(fold, next_offset)
            tail.follow(at, next_offset)
            async for portion in tail.fetches():
                self._answered_at = max(self._answered_at, tail.answered_at)
                if tail.rewound:
                    return  # the topic was made anew, so its fold begins anew
                for fetched in portion:
                    await self._move(fold, fold_records(self._topic, fold, fetched.records))

    async def _read(self, leaders: Leaders) -> tuple[FoldT, int]:
        """The fold, as soon as the topic exists."""
        looks = 0
        while True:
            looks += 1
            asked_at = time.monotonic()
            try:
                folded = await read_all(self._settings, self._topic, leaders)
            except LogGoneError:
                folded = None
            self._answered_at = asked_at
            if folded is not None:
                return folded
            if self._creates:
                await create(self._settings, self._topic)
                await asyncio.sleep(_LOOK_SECONDS)
            elif looks < _LOOKS:
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                if self._state is None:
                    await self._move(self._topic.new(), 0)
                await asyncio.sleep(_MISSING_SECONDS)

    async def _move(self, fold: FoldT, next_offset: int) -> None:
        async with self._moved:
            is_new = fold is not self._state
            if is_new or next_offset > self._next_offset:
                self._state = fold
                self._next_offset = next_offset
                self._changes += 1
                self._moved.notify_all()

    def _note(self, error: RunfoldError) -> None:
        if str(error) != str(self._refusal):
            _log.warning("the %s are not followed: %s", self._topic.contents, error)
        self._refusal = error
