"""Which run topics there are, and the ends of many at once, on a client of its own.

It keeps which broker leads a partition, since what a client is told of topics makes it forget all
others. Who asks while a request is on its way shares the next one, so there are never more than
two, however many ask.
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
"""A broker may not know at once what another one has created."""

_AGAIN_SECONDS: Final = 0.1

_LEADERS_MAX: Final = 20_000
"""Of partitions that were asked for by name: some 6 MB."""

_CONSUMER, _LATEST, _UNCOMMITTED = -1, -1, 0
"""As Kafka's protocol numbers them."""


@dataclass(slots=True)
class _Answer:
    ends: dict[Partition, int] = field(default_factory=dict)
    failed: dict[Partition, KafkaError] = field(default_factory=dict)
    """What is in neither has no topic."""


class LogEnds:
    def __init__(self, settings: LogSettings, client: AIOKafkaClient, *, timeout_seconds: float) -> None:
        self._topics = Topics(settings.prefix)
        self._client = client
        self._timeout_seconds = timeout_seconds
        self._leaders: dict[Partition, int] = {}
        self._asking = asyncio.Lock()
        self._wanted: set[Partition] = set()
        self._next: asyncio.Task[_Answer] | None = None
        self._tasks: set[asyncio.Task[_Answer]] = set()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, settings: LogSettings, *, timeout_seconds: float | None = None
    ) -> AsyncIterator["LogEnds"]:
        """Every answer comes within `timeout_seconds` (by default the publish timeout), or fails as
        `UnavailableError`.
        """
        seconds = timeout_seconds or settings.publish_timeout_seconds
        # An answer that never comes is given up on, or all that wait for the next one would wait
        # for it too.
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
        """Every run topic there is, with the life it belongs to."""
        with kafka_errors():
            async with asyncio.timeout(self._timeout_seconds):
                cluster = await self._client.fetch_all_metadata()
        found = {name: self._topics.parse_run(name) for name in cluster.topics()}
        topics = {name: life for name, life in found.items() if life is not None}
        for at in (Partition(name, 0) for name in topics):
            if (leader := cluster.leader_for_partition(at)) not in (None, -1):
                self._leaders[at] = leader
        return topics

    async def ends(self, topics: Iterable[str]) -> dict[str, int]:
        """The offset that the next record of each run topic will get; 0 if there is no such
        topic.
        """
        named = [Partition(topic, 0) for topic in topics]
        ends = await self.ends_of(named)
        return {at.topic: ends.get(at, 0) for at in named}

    async def ends_of(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get; nothing of one whose topic
        does not exist.
        """
        ends: dict[Partition, int] = {}
        missing, gone_before = set(partitions), set[Partition]()
        with kafka_errors():
            async with asyncio.timeout(self._timeout_seconds):
                while missing:
                    answer = await self._answer(missing)
                    ends.update((at, answer.ends[at]) for at in missing & answer.ends.keys())
                    failed = missing & answer.failed.keys()
                    for at in failed:
                        if not answer.failed[at].retriable:
                            raise answer.failed[at]
                    gone = missing - ends.keys() - failed
                    missing = failed | (gone - gone_before)
                    gone_before |= gone
                    if missing:
                        await asyncio.sleep(_AGAIN_SECONDS if failed else _NEWS_SECONDS)
        return ends

    async def _answer(self, partitions: Collection[Partition]) -> _Answer:
        """Of these, among others, by a request that is sent from now on."""
        self._wanted.update(partitions)
        if self._next is None:
            self._next = asyncio.create_task(self._ask_next())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        # Others wait for it as well, and need not share the deadline.
        return await asyncio.shield(self._next)

    async def _ask_next(self) -> _Answer:
        async with self._asking:
            wanted, self._wanted, self._next = self._wanted, set(), None
            answer = _Answer()
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    await self._ask(wanted, answer)
            except (KafkaError, TimeoutError) as error:
                failure = error if isinstance(error, KafkaError) else RequestTimedOutError()
                answer.failed |= dict.fromkeys(wanted - answer.ends.keys(), failure)
            return answer

    async def _ask(self, wanted: Collection[Partition], answer: _Answer) -> None:
        if unknown := [at for at in wanted if at not in self._leaders]:
            await self._learn(unknown, answer)
        by_leader: dict[int, list[Partition]] = defaultdict(list)
        for at in wanted:
            if at in self._leaders:
                by_leader[self._leaders[at]].append(at)
        await asyncio.gather(*(self._ask_leader(leader, at, answer) for leader, at in by_leader.items()))

    async def _learn(self, unknown: Collection[Partition], answer: _Answer) -> None:
        """Finds out who leads these partitions, if they exist."""
        # Only these: all topics of a broker that has 5,000 are 0.1 s of decoding, in which nothing
        # else runs.
        self._client.set_topics({at.topic for at in unknown})
        if not await self._client.force_metadata_update():
            raise KafkaConnectionError("no broker tells which topics there are")
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

    async def _ask_leader(self, leader: int, partitions: Collection[Partition], answer: _Answer) -> None:
        by_topic: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for at in partitions:
            by_topic[at.topic].append((at.partition, _LATEST))
        try:
            response = await self._client.send(
                leader, OffsetRequest(_CONSUMER, _UNCOMMITTED, list(by_topic.items()))
            )
        except KafkaError as error:
            self._distrust(dict.fromkeys(partitions, error), answer)
            return
        failed: dict[Partition, KafkaError] = {}
        for topic, parts in response.topics:
            for number, code, _, end, *_ in parts:
                at = Partition(topic, number)
                if code == 0:
                    answer.ends[at] = end
                else:
                    failed[at] = for_code(code)(at)
        self._distrust(failed, answer)

    def _distrust(self, failed: Mapping[Partition, KafkaError], answer: _Answer) -> None:
        """What is known of these partitions is not so any more."""
        for at, error in failed.items():
            self._leaders.pop(at, None)
            if not isinstance(error, UnknownTopicOrPartitionError):
                answer.failed[at] = error
