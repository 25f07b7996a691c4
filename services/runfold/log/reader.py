"""Reads a range of one topic, up to an end that is fixed when the read begins."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer

from runfold.log.driver import kafka_errors, quieten_aiokafka, stop
from runfold.log.settings import LogSettings
from runfold.log.tail import record_of
from runfold_schemas.codec import Record
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition

_WAIT_MS = 500

_NEWS_SECONDS = 0.05
"""How long to wait until all brokers know a topic that was just created."""


class LogGoneError(UnavailableError):
    """Kafka has no such topic: it was deleted, or not every broker knows it yet."""

    def __init__(self, topic: str) -> None:
        super().__init__("Kafka", reason=f"there is no topic {topic}")
        self.topic = topic


async def read(
    settings: LogSettings, topic: str, *, partition: int = 0, first_offset: int = 0, end: int | None = None
) -> AsyncGenerator[list[Record], None]:
    """The records of a partition of `topic` in order, one list for each fetch, from `first_offset`
    to `end` (exclusive, by default the current end). Raises `LogGoneError` for a missing topic, and
    `UnavailableError` if no record arrives within the publish timeout.

    It holds a consumer until it is read to its end or closed: use `aclosing` if a loop may leave it
    early.
    """
    at = Partition(topic, partition)
    async with _consumer(settings, topic) as consumer:
        last = await _end(settings, consumer, at)
        # Assigned only now: a seek during a fetch costs 0.2 s, until aiokafka fetches again.
        consumer.assign([at])
        consumer.seek(at, first_offset)
        end = last if end is None else min(end, last)
        position, deadline = first_offset, _deadline(settings)
        while position < end:
            with kafka_errors():
                fetched = (await consumer.getmany(timeout_ms=_WAIT_MS)).get(at, [])
                # The position may be beyond the last record, because a transaction ends with a
                # marker that consumers do not return.
                reached = await consumer.position(at)
            if fetched:
                yield [record_of(record) for record in fetched if record.offset < end]
            if reached > position:
                position, deadline = reached, _deadline(settings)
            elif time.monotonic() > deadline:
                raise UnavailableError(
                    "Kafka", reason=f"no record of {topic} arrived from offset {position} on"
                )
            elif not fetched:
                await _check_exists(consumer, topic)


async def end_offset(settings: LogSettings, topic: str) -> int:
    """The offset that the next record of `topic` will get. Raises `LogGoneError`,
    `UnavailableError`.
    """
    async with _consumer(settings, topic) as consumer:
        return await _end(settings, consumer, Partition(topic, 0))


async def _end(settings: LogSettings, consumer: AIOKafkaConsumer, at: Partition) -> int:
    with kafka_errors():
        async with asyncio.timeout(settings.publish_timeout_seconds):
            return int((await consumer.end_offsets([at]))[at])


@asynccontextmanager
async def _consumer(settings: LogSettings, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    quieten_aiokafka()
    consumer = AIOKafkaConsumer(
        **settings.client_options(),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
    )
    try:
        with kafka_errors():
            await consumer.start()
        # If the topic does not exist, the consumer would wait for it.
        await _check_exists(consumer, topic)
        yield consumer
    finally:
        await stop(consumer)


async def _check_exists(consumer: AIOKafkaConsumer, topic: str) -> None:
    client = consumer._client  # noqa: SLF001 - aiokafka shows no other way
    for pause in (_NEWS_SECONDS, 0):
        with kafka_errors():
            client.set_topics([topic])
            has_answer = await client.force_metadata_update()
        # Without an answer the topic may exist or not.
        if not has_answer or client.cluster.partitions_for_topic(topic) is not None:
            return
        await asyncio.sleep(pause)
    raise LogGoneError(topic)


def _deadline(settings: LogSettings) -> float:
    return time.monotonic() + settings.publish_timeout_seconds
