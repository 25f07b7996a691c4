"""Reading a stretch of one topic from the log, up to an end that is known when the reading
starts.
"""

import asyncio
import time
from collections.abc import AsyncIterator
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
"""A broker may not know at once what another one has created."""


class LogGoneError(UnavailableError):
    """Kafka answers, and has no such topic: it was deleted, or is not known everywhere yet."""

    def __init__(self, topic: str) -> None:
        super().__init__("Kafka", reason=f"there is no topic {topic}")
        self.topic = topic


async def read(
    settings: LogSettings, topic: str, *, partition: int = 0, first_offset: int = 0, end: int | None = None
) -> AsyncIterator[list[Record]]:
    """The records of a partition of `topic` in order, as they come from the broker, from
    `first_offset` to `end` (exclusive; by default its end as it is now). Raises `LogGoneError`, and
    `UnavailableError` when nothing comes for the publish timeout.
    """
    at = Partition(topic, partition)
    async with _consumer(settings, topic) as consumer:
        last = await _end(settings, consumer, at)
        # A seek while a fetch is under way costs 0.2 s, until aiokafka fetches anew: so nothing is
        # assigned before.
        consumer.assign([at])
        consumer.seek(at, first_offset)
        end = last if end is None else min(end, last)
        position, deadline = first_offset, _deadline(settings)
        while position < end:
            with kafka_errors():
                fetched = (await consumer.getmany(timeout_ms=_WAIT_MS)).get(at, [])
                # Not the last record's: a transaction ends with a record that is never handed out.
                reached = await consumer.position(at)
            if fetched:
                yield [record_of(record) for record in fetched if record.offset < end]
            if reached > position:
                position, deadline = reached, _deadline(settings)
            elif time.monotonic() > deadline:
                raise UnavailableError("Kafka", reason=f"nothing came of {topic} after offset {position}")
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
        # Asked for the end of a topic that does not exist, a consumer waits for it.
        await _check_exists(consumer, topic)
        yield consumer
    finally:
        await stop(consumer)


async def _check_exists(consumer: AIOKafkaConsumer, topic: str) -> None:
    client = consumer._client  # noqa: SLF001 - aiokafka shows no other way
    for pause in (_NEWS_SECONDS, 0):
        with kafka_errors():
            client.set_topics([topic])
            told = await client.force_metadata_update()
        # While no broker answers, nothing is known either way.
        if not told or client.cluster.partitions_for_topic(topic) is not None:
            return
        await asyncio.sleep(pause)
    raise LogGoneError(topic)


def _deadline(settings: LogSettings) -> float:
    return time.monotonic() + settings.publish_timeout_seconds
