"""Appending records: idempotent, acknowledged by all in-sync replicas, and never stuck on a
producer that has failed.

After a batch was refused by the broker, every later batch of the same idempotent producer to that
topic is refused too (its sequence numbers have a hole), so the producer is replaced. A publish that
timed out may still arrive later; whoever repeats it keeps the `event_id`, and the fold counts it
once.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import RecordMetadata

from runfold.log.driver import kafka_errors, quieten_aiokafka, stop
from runfold.log.settings import LogSettings
from runfold_schemas.errors import EventTooLargeError
from runfold_schemas.topics import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX


class Outgoing(NamedTuple):
    """A record before it has an offset."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


Ack = asyncio.Future[RecordMetadata]


class Publisher:
    def __init__(self, settings: LogSettings, producer: AIOKafkaProducer) -> None:
        self._settings = settings
        self._producer = producer
        self._retired: set[asyncio.Task[None]] = set()
        self._failed = False
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
        """Brings `topics` into the metadata with one request, instead of one for each topic at its
        first record.
        """
        client = (await self._healthy()).client
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                await asyncio.gather(*(client.add_topic(topic) for topic in topics))

    async def forget(self, topic: str) -> None:
        """Takes a topic that is about to be deleted out of the metadata, where it would be asked
        for again and again.
        """
        # aiokafka can only be told the whole set, which it shows nowhere else.
        client = (await self._healthy()).client
        with kafka_errors():
            await client.set_topics(client._topics - {topic})  # noqa: SLF001

    async def send(self, topic: str, record: Outgoing, *, partition: int = 0) -> Ack:
        """Hands over one record and returns once it is in the buffer; the acknowledgement resolves
        later.
        """
        producer = await self._healthy()
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                ack: Ack = await producer.send(
                    topic, record.value, key=record.key, headers=list(record.headers), partition=partition
                )
        return self._watched(ack)

    async def send_batch(self, topic: str, records: Sequence[Outgoing], *, partition: int = 0) -> Ack:
        """Hands over `records` as one record batch: all of them or none. Resolves to the first
        one's metadata.
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
        """What the broker answered. Raises `UnavailableError` after the publish timeout, and for
        any refusal.
        """
        with kafka_errors():
            async with asyncio.timeout(self._settings.publish_timeout_seconds):
                return await asyncio.shield(ack)

    async def close(self) -> None:
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
    """An upper bound of the record's size in a batch, in bytes, the batch's own header included."""
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
        # A request holds batches of several partitions; a dead letter alone may have the larger
        # size.
        max_request_size=2 * DEAD_LETTER_BYTES_MAX,
    )
    try:
        await producer.start()
    except BaseException:
        await stop(producer)
        raise
    return producer
