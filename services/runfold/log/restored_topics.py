"""Writes records of an export back into new topics, with the times and the offsets that they had.

A topic of Runfold takes the broker's time. So it is created as one that takes the producer's, and
changed when all records are there.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from aiokafka import AIOKafkaProducer
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code

from runfold.log.admin import TOPICS_MAX, LogAdmin
from runfold.log.driver import kafka_errors, quieten_aiokafka
from runfold.log.settings import LogSettings
from runfold.log.uncompressed import new_alter_request
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import DEAD_LETTER_BYTES_MAX, Partition

_TIME: Final = "message.timestamp.type"

KEPT: Final = (
    "cleanup.policy",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.ms",
)
"""The settings of a topic that an export keeps."""

_BATCH_BYTES: Final = 4 * 1024 * 1024


async def configs_of(admin: LogAdmin, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """The kept settings of topics."""
    configs: dict[str, dict[str, str]] = {}
    for first in range(0, len(topics), TOPICS_MAX):
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(KEPT))
            for name in topics[first : first + TOPICS_MAX]
        ]
        with kafka_errors():
            answers: Any = await admin.client.describe_configs(resources)
        for answer in answers:
            for code, _, _, name, entries in answer.resources:
                if not code:
                    configs[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
    return configs


class TopicWriter:
    """Creates topics and appends to them. Nobody else may write to them meanwhile."""

    def __init__(self, admin: LogAdmin, producer: AIOKafkaProducer) -> None:
        self._admin = admin
        self._producer = producer
        self._created: list[str] = []

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: LogSettings) -> AsyncIterator[Self]:
        quieten_aiokafka()
        async with LogAdmin.connect(settings) as admin:
            await admin.check_broker()
            producer = AIOKafkaProducer(
                **settings.client_options(),
                enable_idempotence=True,
                acks="all",
                max_batch_size=DEAD_LETTER_BYTES_MAX,
                max_request_size=2 * DEAD_LETTER_BYTES_MAX,
            )
            with kafka_errors():
                await producer.start()
            try:
                yield cls(admin, producer)
            finally:
                await producer.stop()

    async def existing(self) -> list[str]:
        """The topics of the prefix that exist."""
        return await self._admin.list_topics()

    async def create(self, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
        """Creates topics, each with its number of partitions and its settings."""
        await self._admin.create_topics(
            {name: (count, {**config, _TIME: "CreateTime"}) for name, (count, config) in topics.items()}
        )
        self._created.extend(topics)

    async def append(self, at: Partition, records: Sequence[Record], *, keeps_offsets: bool) -> None:
        """Appends records in batches. Raises `ConfigurationError` if an offset would change."""
        first = 0
        while first < len(records):
            batch = self._producer.create_batch()
            size, last = 0, first
            while last < len(records) and size < _BATCH_BYTES:
                record = records[last]
                added = batch.append(
                    key=record.key,
                    value=record.value,
                    timestamp=record.log_time,
                    headers=list(record.headers),
                )
                if added is None:
                    break
                size, last = size + added.size, last + 1
            with kafka_errors():
                sent = await self._producer.send_batch(batch, at.topic, partition=at.partition)
                stored = await sent
            if keeps_offsets and stored.offset != records[first].offset:
                raise ConfigurationError(
                    f"offset {records[first].offset} of {at.topic} became {stored.offset}: drop the tenant"
                )
            first = last

    async def finish(self) -> None:
        """Has the topics take the broker's time from here on."""
        for first in range(0, len(self._created), TOPICS_MAX):
            names = self._created[first : first + TOPICS_MAX]
            request = new_alter_request({name: {_TIME: "LogAppendTime"} for name in names})
            with kafka_errors():
                answer: Any = await self._admin.client._send_request(request)  # noqa: SLF001 - aiokafka shows no other way
            for code, message, _, name in answer.resources:
                if code:
                    raise UnavailableError("Kafka", reason=f"{name}: {for_code(code).__name__} {message}")
