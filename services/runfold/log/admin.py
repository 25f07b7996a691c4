"""Creates topics, the shared topics at the start and the topics of runs in batches, and checks the
broker's configuration.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupIdNotFound,
    InvalidReplicationFactorError,
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
    for_code,
)
from aiokafka.protocol.admin import DeleteGroupsRequest

from runfold.log.driver import kafka_errors, quieten_aiokafka
from runfold.log.partition_counts import partition_counts, settle, unused_prefix
from runfold.log.settings import LogSettings
from runfold.log.uncompressed import COMPRESSION, Uncompressed, new_alter_request
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import (
    DEAD_LETTER_BYTES_MAX,
    DEAD_LETTER_MS,
    DEAD_LETTER_SEGMENT_MS,
    PARTITIONS_DEFAULT,
    RECORD_BYTES_MAX,
)

TOPICS_MAX = 100
"""The number of topics in one request. Kafka creates 2,300 to 5,100 topics a second in requests of
100, and 30 to 250 a second in requests of one.
"""

_EVERLASTING = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}

RUN_CONFIG = {**_EVERLASTING, "max.message.bytes": str(RECORD_BYTES_MAX)}
"""The settings of topics of runs."""

DEAD_LETTER_CONFIG = {
    **_EVERLASTING,
    "retention.ms": str(DEAD_LETTER_MS),
    "segment.ms": str(DEAD_LETTER_SEGMENT_MS),
    "max.message.bytes": str(DEAD_LETTER_BYTES_MAX),
}
"""The settings of the topic of dead letters."""

_CREATE_MIN = 10
"""The number in a request to a broker that is busy, and the step by which it grows again."""

_SLOW_SECONDS = 2.0
"""A request that takes longer makes the next one smaller, so that no caller waits for long."""

_AGAIN_SECONDS = 0.05
"""The pause before a broker is asked again for topics that were just created."""

_NEW_SECONDS = 2.0
"""How long a client that creates no topics looks for those that a service may just have created."""

_BUSY_SECONDS = 0.5
"""The pause before a busy broker is asked again."""


class LogAdmin:
    """Creates topics. Concurrent `create_run_topic` calls share one request to the broker."""

    def __init__(self, settings: LogSettings, client: AIOKafkaAdminClient) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._client = client
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._creator: asyncio.Task[None] | None = None
        self._create_max = TOPICS_MAX
        self._uncompressed = Uncompressed(client)
        self.create_calls = 0
        self.has_keys = False
        """Whether the topic of keys existed when it was last looked for."""

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: LogSettings) -> AsyncIterator["LogAdmin"]:
        quieten_aiokafka()
        client = AIOKafkaAdminClient(**settings.client_options(), request_timeout_ms=_timeout_ms(settings))
        with kafka_errors():
            await client.start()
        try:
            yield cls(settings, client)
        finally:
            await client.close()

    def with_settings(self, settings: LogSettings) -> "LogAdmin":
        """The same for another prefix, over the client of this one."""
        return LogAdmin(settings, self._client)

    async def check_broker(self) -> None:
        """Raises `ConfigurationError` if a broker creates topics by itself: then the metadata
        refresh of a client could restore a deleted topic. A broker that does not answer is left
        out, unless none does.
        """
        # The brokers are known since the connection. Requesting them again would return all topics
        # as well.
        brokers = [broker.nodeId for broker in self._client._client.cluster.brokers()]  # noqa: SLF001 - aiokafka shows no other way
        if not brokers:
            raise UnavailableError("Kafka", reason="no broker is known yet")
        answers = await asyncio.gather(*map(self._creates_by_itself, brokers), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failures) == len(brokers):
            raise failures[0]
        if True in answers:
            raise ConfigurationError(
                "a Kafka broker has auto.create.topics.enable=true: a client's metadata refresh would"
                " recreate deleted topics with limited retention. Set auto.create.topics.enable=false and"
                " start again"
            )

    async def _creates_by_itself(self, broker: int) -> bool:
        name = "auto.create.topics.enable"
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker), {name: None})
        with kafka_errors():
            answers = await self._client.describe_configs([resource])
        entries = [entry for answer in answers for result in answer.resources for entry in result[4]]
        return any(entry[0] == name and entry[1] == "true" for entry in entries)

    async def create_shared_topics(self) -> LogSettings:
        """Creates those of the topics that do not exist, except those of runs. Returns the settings
        with the number of partitions of the catalog. Raises `ConfigurationError` if the number of a
        topic is another, and if the prefix has no topics and the settings say to create none.
        """
        topics = (self._topics.catalog, *self._topics.shared, self._topics.dead_letters)
        began = time.monotonic()
        deadline = began + self._settings.publish_timeout_seconds
        while True:
            with kafka_errors():
                asked = (*topics, self._topics.keys)
                counts = await partition_counts(self._client._client, asked)  # noqa: SLF001 - as above
            self.has_keys = self._topics.keys in counts
            settled = settle(self._settings, counts)
            missing = set(topics) - counts.keys()
            if not missing:
                return settled
            if time.monotonic() >= deadline:
                raise UnavailableError("Kafka", reason=f"topic {min(missing)} was created, but is not there")
            if self._topics.catalog in missing and not self._settings.create_topics:
                if time.monotonic() - began >= _NEW_SECONDS:
                    raise ConfigurationError(unused_prefix(self._topics))
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            await self._create_missing(missing, settled.partitions or PARTITIONS_DEFAULT)
            # Not every broker knows a new topic at once.
            await asyncio.sleep(_AGAIN_SECONDS)

    async def look_for_keys(self) -> bool:
        """Whether the topic of keys exists: then clients encrypt what they publish."""
        if not self.has_keys:
            with kafka_errors():
                counts = await partition_counts(self._client._client, (self._topics.keys,))  # noqa: SLF001 - as above
            self.has_keys = self._topics.keys in counts
        return self.has_keys

    async def _create_missing(self, missing: Collection[str], partitions: int) -> None:
        # If two clients open the same run, the first life counts. Compaction must keep it until the
        # owner has published it again after the second.
        catalog = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(24 * 3600 * 1000)}
        topics = [
            self._new_topic(self._topics.catalog, partitions=partitions, config=catalog),
            *(
                self._new_topic(
                    topic,
                    partitions=partitions,
                    config={**_EVERLASTING, "max.message.bytes": str(RECORD_BYTES_MAX)},
                )
                for topic in self._topics.shared
            ),
            self._new_topic(
                self._topics.dead_letters,
                partitions=1,
                config=DEAD_LETTER_CONFIG,
            ),
        ]
        refused = await self._create([topic for topic in topics if topic.name in missing])
        for error in refused.values():
            raise error

    async def create_compacted_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Creates a topic of one partition that keeps the last record of each key."""
        await self._create_one(name, {"cleanup.policy": "compact", **config})

    async def create_evidence_topic(self) -> None:
        """Creates the topic of signed trees, which only a projector with a key uses."""
        config = {**_EVERLASTING, "max.message.bytes": str(RECORD_BYTES_MAX)}
        await self._create_one(self._topics.evidence, config)

    async def create_erasure_topic(self) -> None:
        """Creates the topic of erasures, when the first user is erased."""
        await self._create_one(self._topics.erasures, {**_EVERLASTING})

    async def alter(self, topic: str, config: Mapping[str, str]) -> None:
        """Sets these settings of a topic, and no others. Raises `UnavailableError` if Kafka
        refuses.
        """
        with kafka_errors():
            request = new_alter_request({topic: config})
            answer = await self._client._send_request(request)  # noqa: SLF001 - aiokafka shows no other way
        for code, message, _, name in answer.resources:
            if code:
                reason = (
                    f"the settings of topic {name} were not changed: {message or for_code(code).__name__}"
                )
                raise UnavailableError("Kafka", reason=reason)

    async def _create_one(self, name: str, config: dict[str, str]) -> None:
        for error in (await self._create([self._new_topic(name, partitions=1, config=config)])).values():
            raise error

    async def create_topics(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        """Creates topics, each with a number of partitions and settings. Raises an error if a topic
        cannot be created.
        """
        new = [
            self._new_topic(name, partitions=count, config=dict(config))
            for name, (count, config) in topics.items()
        ]
        for first in range(0, len(new), TOPICS_MAX):
            for error in (await self._create(new[first : first + TOPICS_MAX])).values():
                raise error

    @property
    def client(self) -> AIOKafkaAdminClient:
        """For other modules of the log."""
        return self._client

    async def create_run_topic(self, name: str) -> None:
        """Creates the topic of one life of a run. Concurrent calls share a request."""
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, created))
        if self._creator is None or self._creator.done():
            self._creator = asyncio.create_task(self._create_waiting())
        await created

    async def list_run_topics(self) -> list[str]:
        return [name for name in await self.list_topics() if name.startswith(self._topics.run_prefix)]

    async def list_topics(self) -> list[str]:
        """All topics of Runfold below the prefix. Other programs may have topics there too."""
        with kafka_errors():
            names = await self._client.list_topics()
        return [name for name in names if self._topics.has(name)]

    async def delete_groups(self) -> int:
        """Deletes the consumer groups of the prefix, and returns how many there were. Raises
        `UnavailableError` if a group still has members.
        """
        with kafka_errors():
            groups = [name for name, _ in await self._client.list_consumer_groups()]
            named = [name for name in groups if name.startswith(f"{self._topics.prefix}.")]
            for name in named:
                coordinator = await self._client.find_coordinator(name)
                answer: Any = await self._client._client.send(coordinator, DeleteGroupsRequest([name]))  # noqa: SLF001 - as above
                for _, code in answer.results:
                    if (error := for_code(code)) not in (NoError, GroupIdNotFound):
                        raise error(name)
        return len(named)

    async def forbid_compression(self, run_topics: Iterable[str]) -> None:
        """Sets `compression.type` on the shared topics and on `run_topics`, which are all that the
        caller owns, where an earlier version of Runfold or somebody else has set another. Raises
        `UnavailableError`.
        """
        shared = (self._topics.catalog, *self._topics.shared, self._topics.dead_letters)
        await self._uncompressed.settle({*shared, *run_topics})

    async def delete_topics(self, names: Iterable[str]) -> None:
        with kafka_errors():
            await self._client.delete_topics(list(names))

    async def _create_waiting(self) -> None:
        # After one turn of the event loop, all concurrent calls are waiting for the same request.
        await asyncio.sleep(0)
        while self._waiting:
            batch, self._waiting = self._waiting[: self._create_max], self._waiting[self._create_max :]
            began = time.monotonic()
            try:
                refused = await self._create([self._run_topic(name) for name, _ in batch])
            except Exception as error:  # noqa: BLE001  # every waiting call raises it
                refused = dict.fromkeys((name for name, _ in batch), error)
            self._press(took_seconds=time.monotonic() - began)
            for name, created in batch:
                if created.done():
                    continue
                if name in refused:
                    created.set_exception(refused[name])
                else:
                    created.set_result(None)

    def _press(self, *, took_seconds: float) -> None:
        """Asks a slow broker for half as many topics in the next request, and a fast one for some
        more.
        """
        if took_seconds > _SLOW_SECONDS:
            self._create_max = max(_CREATE_MIN, self._create_max // 2)
        else:
            self._create_max = min(TOPICS_MAX, self._create_max + _CREATE_MIN)

    def _run_topic(self, name: str) -> NewTopic:
        return self._new_topic(name, partitions=1, config=RUN_CONFIG)

    def _new_topic(self, name: str, *, partitions: int, config: dict[str, str]) -> NewTopic:
        return NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self._settings.replication_factor,
            topic_configs={
                "message.timestamp.type": "LogAppendTime",
                "min.insync.replicas": str(self._settings.min_insync_replicas),
                **COMPRESSION,
                **config,
            },
        )

    async def _create(self, topics: Sequence[NewTopic]) -> dict[str, Exception]:
        """Creates topics. Returns the errors of the topics that the broker refuses, each a
        `ConfigurationError` or an `UnavailableError`. A broker that is busy is asked again within
        the publish timeout.
        """
        deadline = time.monotonic() + self._settings.publish_timeout_seconds
        refused: dict[str, Exception] = {}
        while True:
            self.create_calls += 1
            with kafka_errors():
                answer = await self._client.create_topics(topics, timeout_ms=_timeout_ms(self._settings))
            busy: dict[str, Exception] = {}
            for name, code, *message in answer.topic_errors:
                error: type[KafkaError] = for_code(code)
                if error in (NoError, TopicAlreadyExistsError):
                    continue
                if error is InvalidReplicationFactorError and await self._has_too_few_brokers(message):
                    refused[name] = ConfigurationError(
                        f"the replication factor {self._settings.replication_factor} is higher than the"
                        " number of Kafka's brokers: start more brokers, or lower RUNFOLD_REPLICATION_FACTOR"
                    )
                    continue
                is_busy = error is InvalidReplicationFactorError or error.retriable
                (busy if is_busy else refused)[name] = UnavailableError(
                    "Kafka", reason=f"topic {name} was not created: {error.__name__} {message}"
                )
            if not busy:
                return refused
            if time.monotonic() + _BUSY_SECONDS >= deadline:
                return refused | busy
            topics = [topic for topic in topics if topic.name in busy]
            await asyncio.sleep(_BUSY_SECONDS)

    async def _has_too_few_brokers(self, message: Sequence[str]) -> bool:
        """Whether all brokers answer and are fewer than the replication factor. The controller
        fences a broker whose heartbeats are late, on a busy machine and at a restart. A fenced
        broker gets no topics, and returns by itself.
        """
        if "fenced" in str(message):
            return False
        with kafka_errors():
            cluster = await self._client.describe_cluster()
        return 0 < len(cluster["brokers"]) < self._settings.replication_factor


def _timeout_ms(settings: LogSettings) -> int:
    return int(settings.publish_timeout_seconds * 1000)
