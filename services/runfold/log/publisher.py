"""Appends records with an idempotent producer, acknowledged by all in-sync replicas. A producer
that has failed is replaced.

After the broker has refused a batch, it refuses every later batch of the same idempotent producer
to that topic, because the sequence numbers have a gap. A publish that timed out may still arrive
later. A caller that repeats it keeps the `event_id`, so the fold counts the event once.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import RecordMetadata

from runfold.log.driver import kafka_errors, quieten_aiokafka, stop
from runfold.log.settings import LogSettings
from runfold_schemas.errors import EventTooLargeError
from runfold_schemas.topics import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX

NOT_CONNECTED: Final = "not connected: enter the client first, `async with Runfold(...) as runfold:`"


class Outgoing(NamedTuple):
    """A record before it has an offset."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


Ack = asyncio.Future[RecordMetadata]
"""Resolves when the broker has acknowledged a record."""


class Publisher:
    """Appends records to topics. After it is closed, it raises `RuntimeError`."""

    def __init__(self, settings: LogSettings, producer: AIOKafkaProducer) -> None:
        self._settings = settings
        self._producer = producer
        self._retired: set[asyncio.Task[None]] = set()
        self._failed = False
        self._closed = False
        self._replacing = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: LogSettings) -> AsyncIterator["Publisher"]:
        with kafka_errors():
            publisher = cls(settings, await _start_producer(settings))
        try:
            yield publisher
        finally:
            await publisher.close()

    async def prime(self, topics: Sequence[str]) -> None:
        """Requests the metadata of `topics` at once, instead of one by one before the first record
        of each topic.
        """
        client = (await self._healthy()).client
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                await asyncio.gather(*(client.add_topic(topic) for topic in topics))

    async def forget(self, topic: str) -> None:
        """Removes a topic that is about to be deleted from the metadata, so that the client stops
        asking for it.
        """
        # aiokafka only takes the whole set of topics, and shows the set only in this attribute.
        client = (await self._healthy()).client
        with kafka_errors():
            await client.set_topics(client._topics - {topic})  # noqa: SLF001

    async def send(self, topic: str, record: Outgoing, *, partition: int = 0) -> Ack:
        """Puts one record into the producer's buffer. The returned acknowledgement resolves later.
        Raises `UnavailableError` if the buffer stays full for the publish timeout.
        """
        producer = await self._healthy()
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                ack: Ack = await producer.send(
                    topic, record.value, key=record.key, headers=list(record.headers), partition=partition
                )
        return self._watched(ack)

    async def send_batch(self, topic: str, records: Sequence[Outgoing], *, partition: int = 0) -> Ack:
        """Sends `records` as one record batch: Kafka stores all of them or none. The returned
        acknowledgement resolves to the metadata of the first record. Raises `EventTooLargeError`
        for more than 8 MiB, and `UnavailableError`.
        """
        producer = await self._healthy()
        batch = producer.create_batch()
        for record in records:
            if (
                batch.append(key=record.key, value=record.value, timestamp=None, headers=list(record.headers))
                is None
            ):
                raise EventTooLargeError(size=sum(map(record_size, records)), limit=RECORD_BYTES_MAX)
        batch.close()
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                ack: Ack = await producer.send_batch(batch, topic, partition=partition)
        return self._watched(ack)

    async def wait(self, ack: Ack) -> RecordMetadata:
        """The broker's acknowledgement. Raises `UnavailableError` after the publish timeout, or if
        the broker refuses the record.
        """
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                return await asyncio.shield(ack)

    async def close(self) -> None:
        self._closed = True
        self._retire(self._producer)
        _, unfinished = await asyncio.wait(self._retired, timeout=self._settings.publish_timeout_seconds)
        for task in unfinished:
            task.cancel()

    def _watched(self, ack: Ack) -> Ack:
        ack.add_done_callback(self._note_failure)
        return ack

    def _note_failure(self, ack: Ack) -> None:
        if not ack.cancelled() and isinstance(ack.exception(), KafkaError):
            self._failed = True

    async def _healthy(self) -> AIOKafkaProducer:
        if self._closed:
            raise RuntimeError(NOT_CONNECTED)
        if self._failed:
            async with self._replacing:
                if self._failed:
                    with kafka_errors():
                        replacement = await _start_producer(self._settings)
                    self._retire(self._producer)
                    self._producer, self._failed = replacement, False
        return self._producer

    def _retire(self, producer: AIOKafkaProducer) -> None:
        task = asyncio.create_task(stop(producer))
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)


def record_size(record: Outgoing) -> int:
    """An upper bound of the record's size in bytes, with the header of a batch."""
    return int(
        DefaultRecordBatchBuilder.estimate_size_in_bytes(
            record.key or b"", record.value or b"", record.headers
        )
    )


async def _start_producer(settings: LogSettings) -> AIOKafkaProducer:
    quieten_aiokafka()
    producer = AIOKafkaProducer(
        **settings.client_options(),
        enable_idempotence=True,
        acks="all",
        linger_ms=0,
        max_batch_size=RECORD_BYTES_MAX,
        # A request may hold batches of several partitions, or one dead letter, which is larger.
        max_request_size=2 * DEAD_LETTER_BYTES_MAX,
    )
    try:
        await producer.start()
    except BaseException:
        await stop(producer)
        raise
    return producer
