"""Finds the leaders of partitions, and the offsets where they begin and end.

The client keeps the addresses of the brokers. The leaders are kept here, because aiokafka's client
forgets all topics except those that were asked for last.
"""

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from runfold.log.driver import TopicRefusedError, close, kafka_errors, quieten_aiokafka
from runfold.log.segments import SegmentBook, Stretch
from runfold.log.settings import LogSettings
from runfold.log.sharing import SharedRequests
from runfold_schemas.catalog import Segments
from runfold_schemas.topics import Partition, Topics, base_of, is_of_run

LATEST, EARLIEST = -1, -2
"""The end and the beginning of a partition, in Kafka's protocol."""

_AGAIN_SECONDS: Final = 0.05

_REQUEST_SECONDS: Final = 15.0
"""The limit of any request. A fetch waits for records for up to 5 s, and its answer of 8 MiB takes
some seconds over a slow line.
"""

_ANSWER_SECONDS: Final = 3.0
"""The limit of requests for leaders and offsets."""

_SILENT_SECONDS: Final = 30.0
"""How long a broker is asked last after it did not answer."""

_TOPICS_MAX: Final = 1_000
"""The number of topics in one request: decoding the metadata of 5,000 blocks the event loop for
0.1 s.
"""

_LEADERS_MAX: Final = 50_000
"""The number of remembered leaders: about 15 MB."""

_CONSUMER: Final = -1
_UNKNOWN_TOPIC, _REFUSED_TOPIC = 3, 29


@dataclass(slots=True)
class LeaderSearch:
    """The result of a search. A partition in none of the three has no leader at present."""

    leaders: dict[Partition, int] = field(default_factory=dict)
    missing: set[Partition] = field(default_factory=set)
    """The partitions whose topic does not exist, or not at the broker that was asked."""
    refused: set[Partition] = field(default_factory=set)
    """The partitions whose topic Kafka refuses to this login."""

    def of(self, partitions: Iterable[Partition]) -> "LeaderSearch":
        """The result for these partitions."""
        wanted = set(partitions)
        leaders = {at: leader for at, leader in self.leaders.items() if at in wanted}
        return LeaderSearch(leaders, self.missing & wanted, self.refused & wanted)


@dataclass(slots=True)
class OffsetSearch:
    """The result of a search. The broker of a partition in none of the three does not answer."""

    offsets: dict[Partition, int] = field(default_factory=dict)
    missing: set[Partition] = field(default_factory=set)
    refused: set[Partition] = field(default_factory=set)


class _Look(NamedTuple):
    """What one request for offsets looks for. The `LATEST` offset of committed records is before
    the first open transaction.
    """

    leader: int
    where: int
    is_committed: bool


class Leaders:
    """The leaders of partitions, as far as they were asked for. `note` is told each answer about
    topics. `closes_hung` says that nobody else needs the connections of the client, so those that
    hang are closed.

    Concurrent calls share requests for leaders, and requests for offsets at the same broker.
    """

    def __init__(
        self, client: AIOKafkaClient, *, note: Callable[[Any], None] | None = None, closes_hung: bool = True
    ) -> None:
        self.client = client
        self._note = note or client.cluster.update_metadata
        self._closes_hung = closes_hung
        self._leaders: dict[Partition, int] = {}
        self._failed_at: dict[int, float] = {}
        self._searches = SharedRequests(self._find)
        self._looks: dict[_Look, SharedRequests[Partition, OffsetSearch]] = {}
        self._closed: KafkaError | None = None
        self._segments: dict[str, SegmentBook] = {}

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        settings: LogSettings,
        *,
        timeout_seconds: float = _REQUEST_SECONDS,
        segments: SegmentBook | None = None,
    ) -> AsyncIterator["Leaders"]:
        """Connected for the length of the block. `timeout_seconds` is the limit of any request, and
        `segments` is where the logs of the prefix lie, if the process knows some already.
        """
        quieten_aiokafka()
        client = AIOKafkaClient(**settings.client_options(), request_timeout_ms=int(1000 * timeout_seconds))
        # Without a name, the client asks for all topics from time to time.
        client.set_topics([settings.topics.catalog])
        leaders = cls(client)
        if segments is not None:
            leaders._segments[settings.prefix] = segments
        try:
            with kafka_errors():
                await client.bootstrap()
            yield leaders
        finally:
            leaders.close(KafkaConnectionError("the connection is closed"))
            await close(client)

    def close(self, error: KafkaError) -> None:
        """Ends the requests. Calls that wait, and later calls, raise `error`."""
        self._closed = error
        self._searches.close(error)
        for looks in self._looks.values():
            looks.close(error)

    def segments(self, topics: Topics) -> SegmentBook:
        """Where the logs of a prefix lie, as far as this process knows."""
        if (book := self._segments.get(topics.prefix)) is None:
            book = self._segments[topics.prefix] = SegmentBook(topics)
        return book

    def stretch(self, at: Partition, offset: int) -> Stretch:
        """The place of a record of a log, or of the next one, as far as this process knows."""
        book = self._segments.get(at.topic.partition(".")[0])
        return Stretch(at.topic, 0, None) if book is None else book.stretch(at.topic, offset)

    def last(self, at: Partition) -> Partition:
        """The last topic of a log, as far as this process knows. It may not exist."""
        book = self._segments.get(at.topic.partition(".")[0])
        return at if book is None else Partition(book.last_topic(at.topic), at.partition)

    def entry(self, at: Partition) -> Segments | None:
        """Where a log lies. None if it was not sealed, as far as this process knows."""
        book = self._segments.get(at.topic.partition(".")[0])
        return None if book is None else book.of_topic(at.topic)

    def leader(self, at: Partition) -> int | None:
        """The broker that leads the partition, if it is known."""
        return self._leaders.get(at)

    def note_leaders(self, leaders: Mapping[Partition, int]) -> None:
        """Notes what another request said."""
        self._leaders |= leaders
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        for at in list(islice(self._leaders, max(0, len(self._leaders) - _LEADERS_MAX))):
            del self._leaders[at]

    def forget(self, at: Partition) -> None:
        """Forgets the leader of a partition, which may have changed."""
        self._leaders.pop(at, None)

    async def find(self, partitions: Collection[Partition]) -> LeaderSearch:
        """Asks a broker for the leaders of these partitions. Raises aiokafka's errors if none
        answers.
        """
        return (await self._searches.ask(partitions)).of(partitions)

    async def look(
        self, partitions: Collection[Partition], where: int, *, committed: bool = True
    ) -> OffsetSearch:
        """The `EARLIEST` or `LATEST` offsets of these partitions. Of a run's topic, the `LATEST`
        offset is that of the first open transaction, unless `committed` is false. Raises aiokafka's
        errors if no broker says which brokers lead them. The leaders of partitions without an
        answer are forgotten.
        """
        search = OffsetSearch()
        if unknown := [at for at in partitions if at not in self._leaders]:
            leaders = await self.find(unknown)
            search.missing, search.refused = leaders.missing, leaders.refused
        looks: dict[_Look, list[Partition]] = defaultdict(list)
        for at in partitions:
            if (leader := self._leaders.get(at)) is not None:
                looks[_Look(leader, where, committed and is_of_run(at.topic))].append(at)
        try:
            await asyncio.gather(*(self._look_at(look, led, search) for look, led in looks.items()))
        finally:
            for at in partitions:
                if at not in search.offsets:
                    self.forget(at)
        return search

    async def offsets(self, partitions: Collection[Partition], where: int) -> dict[Partition, int]:
        """The `EARLIEST` or `LATEST` offsets of these partitions, or of their first records since a
        time in milliseconds since 1970, -1 without such a record. It asks until all of them have
        answered, so call it with a deadline. Raises `TopicRefusedError`.
        """
        offsets: dict[Partition, int] = {}
        while missing := [at for at in partitions if at not in offsets]:
            with contextlib.suppress(KafkaError):
                offsets |= _checked(await self.look(missing, where)).offsets
            if len(offsets) < len(partitions):
                await self._pause()
        return offsets

    async def ends(
        self, partitions: Collection[Partition], *, committed: bool = True
    ) -> dict[Partition, int]:
        """The `LATEST` offsets of those of the partitions that exist, as `look` has them. It asks
        until all brokers have answered, so call it with a deadline. Raises `TopicRefusedError`.
        """
        ends: dict[Partition, int] = {}
        wanted, missing_before = set(partitions), set[Partition]()
        while wanted:
            search = OffsetSearch()
            with contextlib.suppress(KafkaError):
                search = _checked(await self.look(wanted, LATEST, committed=committed))
            ends |= search.offsets
            # Not every broker knows a new topic at once, so two requests must miss it.
            wanted -= ends.keys() | (search.missing & missing_before)
            missing_before |= search.missing
            if wanted:
                await self._pause()
        return ends

    async def _pause(self) -> None:
        """Waits before the next request. Raises the error of `close`."""
        if self._closed is not None:
            raise self._closed
        await asyncio.sleep(_AGAIN_SECONDS)

    # Requests for leaders.

    async def _find(self, partitions: Collection[Partition]) -> LeaderSearch:
        search = LeaderSearch()
        self._drop_oldest()
        by_topic: dict[str, list[Partition]] = defaultdict(list)
        for at in partitions:
            by_topic[at.topic].append(at)
        topics = list(by_topic)
        for begin in range(0, len(topics), _TOPICS_MAX):
            for error, topic, _, entries in await self._topics(topics[begin : begin + _TOPICS_MAX]):
                self._take(search, by_topic[topic], error, entries)
        return search

    def _take(
        self, search: LeaderSearch, partitions: Sequence[Partition], error: int, entries: Iterable[Any]
    ) -> None:
        leaders = {number: leader for _, number, leader, *_ in entries}
        for at in partitions:
            if error == _REFUSED_TOPIC:
                search.refused.add(at)
            elif error == _UNKNOWN_TOPIC or (not error and at.partition not in leaders):
                search.missing.add(at)
            elif leaders.get(at.partition, -1) >= 0:
                search.leaders[at] = self._leaders[at] = leaders[at.partition]

    async def _topics(self, names: list[str]) -> list[Any]:
        """What a broker says of these topics, and of all brokers."""
        request = MetadataRequest(names, allow_auto_topic_creation=False)
        nodes = [broker.nodeId for broker in self.client.cluster.brokers()]
        random.shuffle(nodes)
        since = time.monotonic() - _SILENT_SECONDS
        for node in sorted(nodes, key=lambda node: self._failed_at.get(node, since) > since):
            with contextlib.suppress(KafkaError, TimeoutError, OSError):
                response = await self._send(node, request)
                if response.brokers:
                    self._note(response)
                    topics: list[Any] = response.topics
                    return topics
            self._failed_at[node] = time.monotonic()
        raise KafkaConnectionError("no broker answered the request for topics")

    # Requests for offsets.

    async def _look_at(self, look: "_Look", partitions: Sequence[Partition], search: OffsetSearch) -> None:
        """Adds what a leader says of partitions to `search`."""
        if (looks := self._looks.get(look)) is None:
            looks = self._looks[look] = SharedRequests(partial(self._send_look, look))
        try:
            answer = await looks.ask(partitions)
        except (KafkaError, TimeoutError, OSError):
            return
        for at in partitions:
            if at in answer.offsets:
                search.offsets[at] = answer.offsets[at]
        search.missing |= answer.missing & set(partitions)
        search.refused |= answer.refused & set(partitions)

    async def _send_look(self, look: "_Look", partitions: set[Partition]) -> OffsetSearch:
        answer, ordered = OffsetSearch(), sorted(partitions)
        for begin in range(0, len(ordered), _TOPICS_MAX):
            by_topic: dict[str, list[tuple[int, int]]] = defaultdict(list)
            for at in ordered[begin : begin + _TOPICS_MAX]:
                by_topic[at.topic].append((at.partition, look.where))
            request = OffsetRequest(_CONSUMER, int(look.is_committed), list(by_topic.items()))
            response = await self._send(look.leader, request)
            for topic, results in response.topics:
                for number, code, _, offset, *_ in results:
                    at = Partition(topic, number)
                    if not code:
                        answer.offsets[at] = offset if offset < 0 else offset + base_of(topic)
                    elif code == _UNKNOWN_TOPIC:
                        answer.missing.add(at)
                    elif code == _REFUSED_TOPIC:
                        answer.refused.add(at)
        return answer

    async def _send(self, node: int, request: Any) -> Any:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self.client.send(node, request)
        except TimeoutError:
            # The way to the broker may be lost, so the next request has a new connection.
            connections = self.client._conns  # noqa: SLF001  # aiokafka does it for its own limit only
            connection = connections.get((node, ConnectionGroup.DEFAULT))
            if connection is not None and self._closes_hung:
                connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise


def connected(
    settings: LogSettings, leaders: Leaders | None, segments: SegmentBook | None = None
) -> contextlib.AbstractAsyncContextManager[Leaders]:
    """`leaders`, or a connection of its own for the length of the block, with what is known of
    `segments`.
    """
    if leaders is not None:
        return contextlib.nullcontext(leaders)
    return Leaders.connect(settings, segments=segments)


def _checked(search: OffsetSearch) -> OffsetSearch:
    for at in search.refused:
        raise TopicRefusedError(at.topic)
    return search
