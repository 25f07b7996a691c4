"""Creates topics, the shared topics at the start and the topics of runs in batches, and checks the
broker's configuration.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidReplicationFactorError,
    KafkaError,
    NoError,
    TopicAlreadyExistsError,
    for_code,
)

from runfold.log.driver import kafka_errors, quieten_aiokafka
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import CATALOG_PARTITIONS, DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX, Topics

_CREATE_MAX = 100
"""The number of topics in one request. Kafka creates 2,300 to 5,100 topics a second in requests of
100, and 30 to 250 a second in requests of one.
"""

_BUSY_SECONDS = 0.5
"""The pause before a busy broker is asked again."""


class LogAdmin:
    """Creates topics. Concurrent `create_run_topic` calls share one request to the broker."""

    def __init__(self, settings: LogSettings, client: AIOKafkaAdminClient) -> None:
        self._settings = settings
        self._topics = Topics(settings.prefix)
        self._client = client
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._creator: asyncio.Task[None] | None = None
        self.create_calls = 0

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

    async def check_broker(self) -> None:
        """Raises `ConfigurationError` if the broker creates topics by itself: then the metadata
        refresh of a client could restore a deleted topic.
        """
        with kafka_errors():
            # The brokers are known since the connection. Requesting them again would return all
            # topics as well.
            broker = self._client._client.get_random_node()  # noqa: SLF001 - aiokafka shows no other way
            if broker is None:
                raise UnavailableError("Kafka", reason="no broker is known yet")
            resource = ConfigResource(
                ConfigResourceType.BROKER, str(broker), {"auto.create.topics.enable": None}
            )
            answers = await self._client.describe_configs([resource])
        values = {
            entry[0]: entry[1] for answer in answers for result in answer.resources for entry in result[4]
        }
        if values.get("auto.create.topics.enable") == "true":
            raise ConfigurationError(
                "the Kafka broker has auto.create.topics.enable=true: a client's metadata refresh would"
                " recreate deleted topics with limited retention. Set auto.create.topics.enable=false and"
                " start again"
            )

    async def create_shared_topics(self) -> None:
        """Creates all topics except those of runs. Creating them again has no effect."""
        everlasting = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
        # If two clients open the same run, the first life counts. Compaction must keep it until the
        # owner has published it again after the second.
        catalog = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(24 * 3600 * 1000)}
        await self._create(
            [
                self._new_topic(self._topics.catalog, partitions=CATALOG_PARTITIONS, config=catalog),
                *(
                    self._new_topic(
                        topic,
                        partitions=CATALOG_PARTITIONS,
                        config={**everlasting, "max.message.bytes": str(RECORD_BYTES_MAX)},
                    )
                    for topic in self._topics.shared
                ),
                self._new_topic(
                    self._topics.dead_letters,
                    partitions=1,
                    config={**everlasting, "max.message.bytes": str(DEAD_LETTER_BYTES_MAX)},
                ),
            ]
        )

    async def create_run_topic(self, name: str) -> None:
        """Creates the topic of one life of a run. Concurrent calls share a request."""
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, created))
        if self._creator is None or self._creator.done():
            self._creator = asyncio.create_task(self._create_waiting())
        await created

    async def list_run_topics(self) -> list[str]:
        with kafka_errors():
            names = await self._client.list_topics()
        return [name for name in names if name.startswith(self._topics.run_prefix)]

    async def delete_topics(self, names: Iterable[str]) -> None:
        with kafka_errors():
            await self._client.delete_topics(list(names))

    async def _create_waiting(self) -> None:
        # After one turn of the event loop, all concurrent calls are waiting for the same request.
        await asyncio.sleep(0)
        while self._waiting:
            batch, self._waiting = self._waiting[:_CREATE_MAX], self._waiting[_CREATE_MAX:]
            try:
                await self._create([self._run_topic(name) for name, _ in batch])
            except Exception as error:  # noqa: BLE001  # every waiting call raises it
                failure: Exception | None = error
            else:
                failure = None
            for _, created in batch:
                if created.done():
                    continue
                if failure is None:
                    created.set_result(None)
                else:
                    created.set_exception(failure)

    def _run_topic(self, name: str) -> NewTopic:
        config = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(RECORD_BYTES_MAX),
        }
        return self._new_topic(name, partitions=1, config=config)

    def _new_topic(self, name: str, *, partitions: int, config: dict[str, str]) -> NewTopic:
        return NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self._settings.replication_factor,
            topic_configs={
                "message.timestamp.type": "LogAppendTime",
                "min.insync.replicas": str(self._settings.min_insync_replicas),
                **config,
            },
        )

    async def _create(self, topics: Sequence[NewTopic]) -> None:
        """Creates topics. A broker that cannot create a topic for the moment is asked again, within
        the publish timeout. Raises `ConfigurationError` and `UnavailableError`.
        """
        deadline = time.monotonic() + self._settings.publish_timeout_seconds
        while True:
            self.create_calls += 1
            with kafka_errors():
                answer = await self._client.create_topics(topics, timeout_ms=_timeout_ms(self._settings))
            busy: set[str] = set()
            for name, code, *message in answer.topic_errors:
                error: type[KafkaError] = for_code(code)
                if error in (NoError, TopicAlreadyExistsError):
                    continue
                if error is InvalidReplicationFactorError and await self._has_too_few_brokers(message):
                    raise ConfigurationError(
                        f"the replication factor {self._settings.replication_factor} is higher than the"
                        " number of Kafka's brokers: start more brokers, or lower RUNFOLD_REPLICATION_FACTOR"
                    )
                is_busy = error is InvalidReplicationFactorError or error.retriable
                if not is_busy or time.monotonic() + _BUSY_SECONDS >= deadline:
                    raise UnavailableError(
                        "Kafka", reason=f"topic {name} was not created: {error.__name__} {message}"
                    )
                busy.add(name)
            if not busy:
                return
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
