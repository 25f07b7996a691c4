"""The producer of aiokafka, with two differences that matter where many topics are new.

A broker answers the creation of a topic before it has the topic's log, and refuses records until
then. aiokafka then sends nothing to that broker for 0.1 s, so that all records of the process wait
for one new topic. Here only the refused partition waits, and a new topic waits for a few
milliseconds.

aiokafka asks for the metadata of every topic that it knows whenever it gets to know another one.
Here a request names the new topics alone, and concurrent calls share requests.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    ProducerClosed,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import MessageBatch
from aiokafka.producer.sender import Sender, SendProduceReqHandler
from aiokafka.structs import RecordMetadata, TopicPartition

from runfold.log.leaders import Leaders
from runfold.log.moving import RefusedAgainError, SealedError
from runfold.log.sealing import takes_events
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition

NEW_SECONDS: Final = 5.0
"""How long a topic counts as new if no record of it has arrived."""

_NOT_READY: Final = frozenset(
    error.errno
    for error in (UnknownTopicOrPartitionError, NotLeaderForPartitionError, LeaderNotAvailableError)
)
"""The errors of a broker that does not have a new topic's log yet."""

_DOUBTED_LOOKS: Final = 5
"""After so many looks for a missing topic, it may be archived."""

_LOOK_SECONDS: Final = 0.5
"""How often the catalog is asked for a topic that is missing while records for it wait."""

_PAUSE_SECONDS: Final = 0.005
_PAUSE_MAX_SECONDS: Final = 0.1
"""The pauses until a broker is asked again, or sent a record again."""


class Producer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
    """An idempotent producer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_moved: Callable[[str], Awaitable[bool]] = _stays
        """Says whether the log of a missing topic goes on in another topic."""
        self._looking: dict[str, asyncio.Task[None]] = {}
        plain: Sender = self._sender
        self._sender: _Sender = _Sender(
            self.client,
            acks=plain._acks,
            txn_manager=self._txn_manager,
            message_accumulator=self._message_accumulator,
            retry_backoff_ms=1000 * plain._retry_backoff,
            request_timeout_ms=self._request_timeout_ms,
            note_missing=self._note_missing,
        )
        self._leaders = Leaders(self.client, note=self._add_metadata, closes_hung=False)

    async def know(self, at: Partition, *, is_new: bool = False) -> None:
        """Returns when the leader of the partition is known, at once if its topic is known already,
        and also if the broker refuses the topic or has no such partition: the first record then
        raises an error that says so. A new topic may have no log yet. The caller sets the deadline.
        Raises `SealedError` if the log of a missing topic goes on elsewhere, and other errors of
        Kafka.
        """
        if is_new:
            self._sender.expect(at.topic)
        cluster = self.client.cluster
        if cluster.partitions_for_topic(at.topic) is not None:
            return
        # Later requests for all metadata include the topic.
        self.client._topics.add(at.topic)
        pause, looks = _PAUSE_SECONDS, 0
        while not await self._find(at):
            looks += 1
            if not is_new and looks % _DOUBTED_LOOKS == 0 and await self.is_moved(at.topic):
                raise SealedError(at.topic)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_SECONDS)

    @property
    def is_broken(self) -> bool:
        """Whether it can send no more at all, because of an error that concerns all topics."""
        return self._message_accumulator._exception is not None

    async def takes_events(self, topic: str) -> bool:
        """Whether the topic is not sealed, as far as its leader answers. Raises errors of Kafka."""
        return await takes_events(self._leaders, topic)

    def put(
        self,
        at: Partition,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> asyncio.Future[RecordMetadata] | None:
        """Puts a record into the buffer of the partition. None if `send` would wait or fail: the
        topic is not known yet, the buffer is full, or the producer has ended.
        """
        buffer = self._message_accumulator
        if at.partition not in (self.client.cluster.partitions_for_topic(at.topic) or ()):
            return None
        if buffer._closed or buffer._exception is not None:
            return None
        to = TopicPartition(*at)
        waiting = buffer._batches.get(to)
        batch = waiting[-1] if waiting else buffer._append_batch(buffer.create_builder(), to)
        ack: asyncio.Future[RecordMetadata] | None = batch.append(key, value, None, headers=list(headers))
        return ack

    def forget(self, topics: Collection[str]) -> None:
        """Forgets topics that are no longer written to."""
        self._sender.forget(topics)
        forgotten = set(topics)
        # An empty set of topics would stand for all topics.
        if needed := self.client._topics - forgotten:
            self.client._topics = needed
            cluster = self.client.cluster
            for topic in forgotten & cluster._partitions.keys():
                for number, partition in cluster._partitions.pop(topic).items():
                    self._leaders.forget(Partition(topic, number))
                    cluster._broker_partitions[partition.leader].discard(TopicPartition(topic, number))

    async def stop(self) -> None:
        for task in self._looking.values():
            task.cancel()
        self._leaders.close(ProducerClosed())
        await super().stop()

    def _note_missing(self, topic: str) -> None:
        """Looks in the background whether the log of a missing topic goes on elsewhere."""
        if topic not in self._looking:
            task = self._looking[topic] = asyncio.create_task(self._look_for_move(topic))
            task.add_done_callback(lambda _: self._looking.pop(topic, None))

    async def _look_for_move(self, topic: str) -> None:
        with suppress(UnavailableError):
            if await self.is_moved(topic):
                self._sender.fail(topic)
                return
        await asyncio.sleep(_LOOK_SECONDS)

    async def _find(self, at: Partition) -> bool:
        """Asks for the leader of the partition. Returns whether nothing is left to wait for."""
        try:
            search = await self._leaders.find([at])
        except KafkaError as error:
            if not error.retriable:
                raise
            return False
        has_topic = self.client.cluster.partitions_for_topic(at.topic) is not None
        return at in search.leaders or at in search.refused or (at in search.missing and has_topic)

    def _add_metadata(self, response: Any) -> None:
        """Adds what a broker says of some topics to what the client knows of all."""
        metadata = ClusterMetadata()
        metadata.update_metadata(response)
        cluster = self.client.cluster
        cluster._partitions.update(metadata._partitions)
        for broker, partitions in metadata._broker_partitions.items():
            cluster._broker_partitions[broker] |= partitions


async def _stays(_: str) -> bool:
    return False


class _Sender(Sender):  # type: ignore[misc]  # aiokafka has no types
    """Sends batches. A partition that the broker refuses waits alone."""

    def __init__(self, *arguments: Any, note_missing: Callable[[str], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.note_missing = note_missing
        self._moved: set[str] = set()
        """The topics whose logs go on elsewhere."""
        self._new: dict[str, float] = {}
        """The topics that may have no log yet, each with the time from which on it is not new."""
        self._retrying: set[asyncio.Task[None]] = set()

    def expect(self, topic: str) -> None:
        """Notes a topic that may have no log yet."""
        self._new[topic] = time.monotonic() + NEW_SECONDS

    def is_new(self, topic: str) -> bool:
        """Whether the topic may have no log yet."""
        if topic in self._new and self._new[topic] < time.monotonic():
            del self._new[topic]
        return topic in self._new

    def has_arrived(self, topic: str) -> None:
        """Notes that a broker has the log of the topic."""
        self._new.pop(topic, None)

    def forget(self, topics: Iterable[str]) -> None:
        """Forgets topics that no record is expected for."""
        for topic in topics:
            self._new.pop(topic, None)
            self._moved.discard(topic)

    def fail(self, topic: str) -> None:
        """Fails the batches of a topic that is gone, because its log goes on elsewhere."""
        self._moved.add(topic)
        accumulator = self._message_accumulator
        for to in [to for to in accumulator._batches if to.topic == topic]:
            if to not in self._muted_partitions:
                self._fail_waiting(to)

    def _fail_waiting(self, to: TopicPartition) -> None:
        accumulator = self._message_accumulator
        while to in accumulator._batches:
            batch, error = accumulator._pop_batch(to), SealedError(to.topic)
            error.was_sent = batch.retry_count > 1
            batch.failure(error)

    async def close(self) -> None:
        for task in self._retrying:
            task.cancel()
        await super().close()

    def retry(self, batches: Collection[MessageBatch], *, after_metadata: bool) -> None:
        """Sends the batches again later. Until then, their partitions wait, and no others."""
        task = asyncio.create_task(self._retry(batches, after_metadata=after_metadata))
        self._retrying.add(task)
        task.add_done_callback(self._retrying.discard)

    async def _retry(self, batches: Collection[MessageBatch], *, after_metadata: bool) -> None:
        if after_metadata:
            await asyncio.sleep(self._retry_backoff)
            await self.client._maybe_wait_metadata()
        else:
            attempts = max(batch.retry_count for batch in batches)
            await asyncio.sleep(min(_PAUSE_SECONDS * 2 ** (attempts - 1), _PAUSE_MAX_SECONDS))
        accumulator = self._message_accumulator
        for batch in batches:
            # A batch has failed meanwhile if the sender has ended.
            if not batch.future.done():
                accumulator.reenqueue(batch)
            if batch.tp.topic in self._moved:
                self._fail_waiting(batch.tp)
            self._muted_partitions.discard(batch.tp)
        accumulator._wakeup(accumulator.waiter())

    async def _send_produce_req(self, node_id: int, batches: dict[Any, MessageBatch]) -> None:
        handler = _Handler(self, batches)
        await handler.do(node_id)
        self._in_flight.remove(node_id)
        self._muted_partitions.difference_update(batches.keys() - handler.waiting)


class _Handler(SendProduceReqHandler):  # type: ignore[misc]  # aiokafka has no types
    """One produce request."""

    def __init__(self, sender: _Sender, batches: dict[Any, MessageBatch]) -> None:
        super().__init__(sender, batches)
        self._to_reenqueue: list[MessageBatch] = []
        self.waiting: set[Any] = set()
        """The partitions whose batches are sent again later."""

    def handle_response(self, response: Any) -> None:
        not_ready = self._take_not_ready(response)
        super().handle_response(response)
        refused, self._to_reenqueue = self._to_reenqueue, []
        for batches, after_metadata in ((not_ready, False), (refused, True)):
            if batches:
                self.waiting.update(batch.tp for batch in batches)
                self._sender.retry(batches, after_metadata=after_metadata)

    def _take_not_ready(self, response: Any) -> list[MessageBatch]:
        """Takes the partitions of new topics whose logs do not exist yet out of the response, and
        those of refused batches that were sent before.
        """
        not_ready: list[MessageBatch] = []
        rest = []
        by_name = {(tp.topic, tp.partition): batch for tp, batch in self._batches.items()}
        for topic, partitions in response.topics:
            others = []
            for partition, code, *fields in partitions:
                batch = by_name[topic, partition]
                if code in _NOT_READY and self._sender.is_new(topic):
                    not_ready.append(batch)
                    continue
                if code == RefusedAgainError.errno and batch.retry_count > 1:
                    batch.failure(RefusedAgainError())
                    continue
                if code == 0:
                    self._sender.has_arrived(topic)
                elif code == UnknownTopicOrPartitionError.errno:
                    self._sender.note_missing(topic)
                others.append((partition, code, *fields))
            rest.append((topic, others))
        response.topics = rest
        return not_ready
