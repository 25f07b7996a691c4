"""Reads which run topics exist, and the ends of many topics at once, with a client of its own.

It remembers the leaders of partitions itself, because aiokafka's client forgets all topics except
those that were set last. Calls during a request share the next request. So there are at most two
requests at a time, whatever the number of callers.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.offset import OffsetRequest

from runfold.log.driver import kafka_errors, quieten_aiokafka
from runfold.log.settings import LogSettings
from runfold_schemas.topics import Partition, RunTopic, Topics

_NEWS_SECONDS: Final = 0.05
"""How long to wait until all brokers know a topic that was just created."""

_AGAIN_SECONDS: Final = 0.1

_LEADERS_MAX: Final = 20_000
"""The number of remembered leaders: about 6 MB."""

_CONSUMER, _LATEST, _UNCOMMITTED = -1, -1, 0
"""Constants of Kafka's protocol."""


@dataclass(slots=True)
class _Answer:
    ends: dict[Partition, int] = field(default_factory=dict)
    failed: dict[Partition, KafkaError] = field(default_factory=dict)
    """A partition in neither of the two does not exist."""


class LogEnds:
    """Reads the topics of runs and the ends of partitions."""

    def __init__(self, settings: LogSettings, client: AIOKafkaClient, *, timeout_seconds: float) -> None:
        self._topics = Topics(settings.prefix)
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._leaders: dict[Partition, int] = {}
        self._sending = asyncio.Lock()
        self._requested: set[Partition] = set()
        self._next: asyncio.Task[_Answer] | None = None
        self._tasks: set[asyncio.Task[_Answer]] = set()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, settings: LogSettings, *, timeout_seconds: float | None = None
    ) -> AsyncIterator["LogEnds"]:
        """A reader of ends, open for the length of the block. Each call returns within
        `timeout_seconds` (by default the publish timeout) or raises `UnavailableError`.
        """
        seconds = timeout_seconds or settings.publish_timeout_seconds
        # The client gives up on a request too, because the next request waits for it.
        quieten_aiokafka()
        client = AIOKafkaClient(**settings.client_options(), request_timeout_ms=int(1000 * seconds))
        ends = cls(settings, client, timeout_seconds=seconds)
        try:
            with kafka_errors():
                await client.bootstrap()
            yield ends
        finally:
            for task in ends._tasks:
                task.cancel()
            await asyncio.gather(*ends._tasks, client.close(), return_exceptions=True)

    async def run_topics(self) -> dict[str, RunTopic]:
        """All topics of runs, each with its run and life. Raises `UnavailableError`."""
        with kafka_errors():
            async with asyncio.timeout(self._timeout_seconds):
                cluster = await self._client.fetch_all_metadata()
        parsed = {name: self._topics.parse_run(name) for name in cluster.topics()}
        topics = {name: run for name, run in parsed.items() if run is not None}
        for at in (Partition(name, 0) for name in topics):
            if (leader := cluster.leader_for_partition(at)) not in (None, -1):
                self._leaders[at] = leader
        return topics

    async def ends(self, topics: Iterable[str]) -> dict[str, int]:
        """The offset that the next record of each run topic will get, 0 for a missing topic. Raises
        `UnavailableError`.
        """
        partitions = [Partition(topic, 0) for topic in topics]
        ends = await self.ends_of(partitions)
        return {at.topic: ends.get(at, 0) for at in partitions}

    async def ends_of(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get. Partitions of missing topics
        are left out. Raises `UnavailableError`.
        """
        ends: dict[Partition, int] = {}
        missing, absent_before = set(partitions), set[Partition]()
        with kafka_errors():
            async with asyncio.timeout(self._timeout_seconds):
                while missing:
                    answer = await self._request(missing)
                    ends.update((at, answer.ends[at]) for at in missing & answer.ends.keys())
                    failed = missing & answer.failed.keys()
                    for at in failed:
                        if not answer.failed[at].retriable:
                            raise answer.failed[at]
                    # A partition is absent only if two requests in a row do not find it.
                    absent = missing - ends.keys() - failed
                    missing = failed | (absent - absent_before)
                    absent_before |= absent
                    if missing:
                        await asyncio.sleep(_AGAIN_SECONDS if failed else _NEWS_SECONDS)
        return ends

    async def _request(self, partitions: Collection[Partition]) -> _Answer:
        """The answer to the next request, which includes these partitions."""
        self._requested.update(partitions)
        if self._next is None:
            self._next = asyncio.create_task(self._send_next())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        # Shielded, because other calls with other deadlines wait for the same task.
        return await asyncio.shield(self._next)

    async def _send_next(self) -> _Answer:
        async with self._sending:
            partitions, self._requested, self._next = self._requested, set(), None
            answer = _Answer()
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    await self._send(partitions, answer)
            except (KafkaError, TimeoutError) as error:
                failure = error if isinstance(error, KafkaError) else RequestTimedOutError()
                answer.failed |= dict.fromkeys(partitions - answer.ends.keys(), failure)
            return answer

    async def _send(self, partitions: Collection[Partition], answer: _Answer) -> None:
        if unknown := [at for at in partitions if at not in self._leaders]:
            await self._find_leaders(unknown, answer)
        by_leader: dict[int, list[Partition]] = defaultdict(list)
        for at in partitions:
            if at in self._leaders:
                by_leader[self._leaders[at]].append(at)
        await asyncio.gather(*(self._send_to(leader, led, answer) for leader, led in by_leader.items()))

    async def _find_leaders(self, unknown: Collection[Partition], answer: _Answer) -> None:
        """Asks for the leaders of these partitions, if the partitions exist."""
        # Only these topics: decoding the metadata of 5,000 topics blocks the event loop for 0.1 s.
        self._client.set_topics({at.topic for at in unknown})
        if not await self._client.force_metadata_update():
            raise KafkaConnectionError("no broker answered the request for topics")
        if len(self._leaders) > _LEADERS_MAX:
            self._leaders.clear()
        cluster = self._client.cluster
        for at in unknown:
            leader = cluster.leader_for_partition(at)
            if at.topic in cluster.unauthorized_topics:
                answer.failed[at] = TopicAuthorizationFailedError(at.topic)
            elif leader == -1:
                answer.failed[at] = LeaderNotAvailableError(at)
            elif leader is not None:
                self._leaders[at] = leader

    async def _send_to(self, leader: int, partitions: Collection[Partition], answer: _Answer) -> None:
        by_topic: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for at in partitions:
            by_topic[at.topic].append((at.partition, _LATEST))
        try:
            response = await self._client.send(
                leader, OffsetRequest(_CONSUMER, _UNCOMMITTED, list(by_topic.items()))
            )
        except KafkaError as error:
            self._forget_leaders(dict.fromkeys(partitions, error), answer)
            return
        failed: dict[Partition, KafkaError] = {}
        for topic, results in response.topics:
            for number, code, _, end, *_ in results:
                at = Partition(topic, number)
                if code == 0:
                    answer.ends[at] = end
                else:
                    failed[at] = for_code(code)(at)
        self._forget_leaders(failed, answer)

    def _forget_leaders(self, failed: Mapping[Partition, KafkaError], answer: _Answer) -> None:
        """Records failures, and forgets the leaders of these partitions, which may have changed."""
        for at, error in failed.items():
            self._leaders.pop(at, None)
            if not isinstance(error, UnknownTopicOrPartitionError):
                answer.failed[at] = error
