"""Appends records with an idempotent producer, acknowledged by all in-sync replicas. A producer
that has failed is replaced.

After the broker has refused a batch, it refuses every later batch of the same idempotent producer
to that topic, because the sequence numbers have a gap. A publish that timed out may still arrive
later. A caller that repeats it keeps the `event_id`, so the fold counts the event once.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import RecordMetadata

from runfold.log.driver import kafka_errors, quieten_aiokafka, stop
from runfold.log.moving import SEALED, Ack, Moves, Outgoing, Reopener, SealedError, Sending
from runfold.log.producer import Producer
from runfold.log.settings import LogSettings
from runfold.log.topic_use import TopicUse
from runfold.telemetry import spans
from runfold_schemas.errors import EventTooLargeError
from runfold_schemas.topics import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX, Partition, base_of

__all__ = ["NOT_CONNECTED", "Ack", "Outgoing", "Publisher", "record_size"]

NOT_CONNECTED: Final = "not connected: enter the client first, `async with Runfold(...) as runfold:`"

_LOOKS: Final = 3
_LOOK_SECONDS: Final = 0.2
"""Topics are missing if several looks do not find them: another broker may know a new topic."""


class Publisher:
    """Appends records to topics. The topic of a run stands for its log: records go to the last
    topic of the log, also if the one before is sealed meanwhile. After it is closed, it raises
    `RuntimeError`.
    """

    def __init__(self, settings: LogSettings, producer: Producer) -> None:
        self._settings = settings
        self._producer = producer
        self._retired: set[asyncio.Task[None]] = set()
        self._failed: set[str] = set()
        """The topics to which the producer can send no more."""
        self._leaving: dict[str, asyncio.Event] = {}
        """The topics with records on their way in a producer that was replaced."""
        self._closed = False
        self._replacing = asyncio.Lock()
        self._use = TopicUse()
        self._moves = Moves(
            send_to=self._send_to,
            is_writing=self._use.is_writing,
            prime=self._prime,
            takes_events=self._takes_events,
            timeout_seconds=settings.publish_timeout_seconds,
        )
        producer.is_moved = self._moves.is_moved

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: LogSettings) -> AsyncIterator["Publisher"]:
        with kafka_errors():
            publisher = cls(settings, await _start_producer(settings))
        try:
            yield publisher
        finally:
            await publisher.close()

    @contextmanager
    def reopening(self, prefix: str, reopener: Reopener) -> Iterator[None]:
        """Within the block, records for sealed logs of the prefix go where `reopener` says."""
        before = self._moves.reopeners.get(prefix)
        self._moves.reopeners[prefix] = reopener
        try:
            yield
        finally:
            if self._moves.reopeners.get(prefix) is reopener:
                del self._moves.reopeners[prefix]
                if before is not None:
                    self._moves.reopeners[prefix] = before

    async def prime(self, topic: str) -> None:
        """Gets to know the leader of a topic that was just created. Concurrent calls share a
        request.
        """
        await self._prime(topic)

    async def _prime(self, topic: str) -> None:
        producer = await self._producer_for(topic)
        self._use.begin(topic)
        try:
            with kafka_errors():
                async with asyncio.timeout(self._settings.publish_timeout_seconds):
                    unneeded = self._use.unneeded()
                    producer.forget(unneeded)
                    self._moves.forget_topics(unneeded)
                    await producer.know(Partition(topic, 0), is_new=True)
        finally:
            self._end_use(topic)

    def finish(self, topic: str) -> None:
        """No more records of `topic` are expected, so the producer need not know it any longer."""
        self._use.finish(self._moves.topic(topic))

    async def forget(self, topic: str) -> None:
        """Removes a topic that is about to be deleted from the metadata, so that the client stops
        asking for it.
        """
        (await self._producer_for(topic)).forget({topic, self._moves.topic(topic)})
        self._moves.forget(topic)

    async def has_topic(self, topic: str) -> bool:
        """Whether the topic exists, while records for it wait. Also true if no broker answers."""
        for _ in range(_LOOKS):
            client, last = self._producer.client, self._moves.topic(topic)
            known = last not in client._topics or client.cluster.partitions_for_topic(last) is not None  # noqa: SLF001
            if known or last in client.cluster.unauthorized_topics or self._moves.is_moving(topic):
                return True
            with kafka_errors():
                if not await client.force_metadata_update():
                    return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def send(self, topic: str, record: Outgoing, *, partition: int = 0) -> Ack:
        """Puts one record into the producer's buffer. The returned acknowledgement resolves later:
        await it by `wait`. Raises `UnavailableError` if the buffer stays full for the publish
        timeout.
        """
        ack = self.put(topic, record, partition=partition)
        if ack is not None:
            return ack
        return await self._send(Sending(topic, partition, (record,), is_batch=False))

    def put(self, topic: str, record: Outgoing, *, partition: int = 0) -> Ack | None:
        """As `send`, or None if the record cannot be put into the buffer without waiting."""
        last = self._moves.topic(topic)
        if self._closed or last in self._failed or last in self._leaving or self._moves.is_moving(topic):
            return None
        producer = self._producer
        ack = producer.put(
            Partition(last, partition), key=record.key, value=record.value, headers=record.headers
        )
        if ack is None:
            return None
        return self._watched(ack, last, producer, Sending(topic, partition, (record,), is_batch=False))

    async def send_batch(self, topic: str, records: Sequence[Outgoing], *, partition: int = 0) -> Ack:
        """Sends `records` as one record batch: Kafka stores all of them or none. The returned
        acknowledgement resolves to the metadata of the first record. Raises `EventTooLargeError`
        for more than 8 MiB, and `UnavailableError`.
        """
        return await self._send(Sending(topic, partition, records, is_batch=True))

    async def _send(self, sending: Sending) -> Ack:
        """Sends to the last topic of the log, when its move has ended, if it moves."""
        while True:
            with kafka_errors():
                await self._moves.settled(sending.log)
                topic = self._moves.topic(sending.log)
                try:
                    return await self._send_to(topic, sending)
                except SealedError:
                    await self._moves.move(sending.log, topic)

    async def _send_to(self, topic: str, sending: Sending) -> Ack:
        producer = await self._producer_for(topic)
        batch = _batch_of(producer, sending.records) if sending.is_batch else None
        async with self._writing(producer, Partition(topic, sending.partition)):
            if batch is not None:
                ack: Ack = await producer.send_batch(batch, topic, partition=sending.partition)
            else:
                [record] = sending.records
                ack = await producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=sending.partition,
                )
            return self._watched(ack, topic, producer, sending)

    async def wait(self, ack: Ack) -> RecordMetadata:
        """The broker's acknowledgement, with the offset of the run. Raises `UnavailableError` after
        the publish timeout, or if the broker refuses the record.
        """
        with kafka_errors():
            if not ack.done():
                await asyncio.wait((ack,), timeout=self._settings.publish_timeout_seconds)
            if not ack.done():
                raise TimeoutError
            if isinstance(ack.exception(), SEALED) and (again := await self._moves.follow(ack)) is not None:
                return await self.wait(again)
            written: RecordMetadata = ack.result()
        base = base_of(written.topic)
        return written._replace(offset=written.offset + base) if base else written

    async def close(self) -> None:
        self._closed = True
        self._moves.close()
        self._retire(self._producer)
        _, unfinished = await asyncio.wait(self._retired, timeout=self._settings.publish_timeout_seconds)
        for task in unfinished:
            task.cancel()

    @asynccontextmanager
    async def _writing(self, producer: Producer, at: Partition) -> AsyncIterator[None]:
        """For handing one record over within the publish timeout. Keeps the topic known
        meanwhile.
        """
        self._use.begin(at.topic)
        try:
            with kafka_errors():
                async with asyncio.timeout(self._settings.publish_timeout_seconds):
                    await producer.know(at)
                    yield
        finally:
            self._end_use(at.topic)

    def _watched(self, ack: Ack, topic: str, producer: Producer, sending: Sending) -> Ack:
        self._use.begin(topic)
        ack.add_done_callback(lambda ack: self._take_end(ack, topic, producer, sending))
        if (span := spans.sending_span(topic)) is not None:
            ack.add_done_callback(lambda ack: _end(span, ack))
        return ack

    def _take_end(self, ack: Ack, topic: str, producer: Producer, sending: Sending) -> None:
        error = None if ack.cancelled() else ack.exception()
        if isinstance(error, KafkaError) and producer is self._producer:
            self._failed.add(topic)
        if error is not None:
            self._moves.take_refusal(ack, sending, topic, error)
        self._end_use(topic)

    async def _takes_events(self, topic: str) -> bool:
        return await self._producer.takes_events(topic)

    async def _producer_for(self, topic: str) -> Producer:
        """The producer that can send to the topic. Other topics do not wait for a replacement: they
        may be another tenant's.
        """
        if self._closed:
            raise RuntimeError(NOT_CONNECTED)
        if self._cannot_send(topic):
            async with self._replacing:
                if self._cannot_send(topic):
                    with kafka_errors():
                        replacement = await _start_producer(self._settings)
                    replacement.is_moved = self._moves.is_moved
                    self._retire(self._producer)
                    self._producer = replacement
                    self._leaving |= {topic: asyncio.Event() for topic in self._use.writing() - self._failed}
                    self._failed.clear()
        if (left := self._leaving.get(topic)) is not None:
            # The records that are on their way in another producer come first.
            with kafka_errors():
                async with asyncio.timeout(self._settings.publish_timeout_seconds):
                    await left.wait()
        return self._producer

    def _end_use(self, topic: str) -> None:
        self._use.end(topic)
        if not self._use.is_writing(topic) and (left := self._leaving.pop(topic, None)) is not None:
            left.set()
        if not self._use.is_writing(topic):
            self._moves.note_drained()

    def _cannot_send(self, topic: str) -> bool:
        return topic in self._failed or self._producer.is_broken

    def _retire(self, producer: Producer) -> None:
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


def _batch_of(producer: Producer, records: Sequence[Outgoing]) -> Any:
    """One record batch. Raises `EventTooLargeError`."""
    batch = producer.create_batch()
    for record in records:
        appended = batch.append(
            key=record.key, value=record.value, timestamp=None, headers=list(record.headers)
        )
        if appended is None:
            size = sum(map(record_size, records))
            raise EventTooLargeError(size=size, limit=RECORD_BYTES_MAX, events=len(records))
    batch.close()
    return batch


async def _start_producer(settings: LogSettings) -> Producer:
    quieten_aiokafka()
    producer = Producer(
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


def _end(span: Any, ack: Ack) -> None:
    if ack.cancelled():
        spans.end_span(span, "cancelled")
    else:
        error = ack.exception()
        spans.end_span(span, None if error is None else type(error).__name__)
