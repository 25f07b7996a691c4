"""The topics that many runs share: appending to them, and reading one partition from its
beginning.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from runfold.log.catalog import partition_of
from runfold.log.encoding import encoded_exactly
from runfold.log.leaders import Leaders
from runfold.log.publisher import Ack, Outgoing, Publisher, record_size
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_projections.admission import SKIPPED, is_skipped
from runfold_projections.memory import bank_event, memory_event
from runfold_projections.session import shared_event
from runfold_projections.state import FORWARD_BYTES_MAX, Forward, changes_shared, forwards
from runfold_schemas.codec import Record, headers
from runfold_schemas.errors import EventTooLargeError, UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import RECORD_BYTES_MAX, Partition, Topics


class SharedRecord(NamedTuple):
    """An encoded event with the partition that decides its key."""

    at: Partition
    record: Outgoing

    @property
    def value_bytes(self) -> int:
        """The length of the encoded event."""
        return len(self.record.value or b"")

    @property
    def can_be_forwarded(self) -> bool:
        """Whether the event is small enough to be forwarded from a run. A number may be several
        times longer in its new encoding.
        """
        return self.value_bytes <= FORWARD_BYTES_MAX


def shared_record(settings: LogSettings, forward: Forward) -> SharedRecord:
    """The record of an event for the topic and the partition that decide its key. Raises
    `InvalidEventError` if JSON cannot carry the event exactly.
    """
    event, value = encoded_exactly(forward.event)
    record = Outgoing(key=forward.key.encode(), value=value, headers=headers(event, source=settings.source))
    return SharedRecord(deciding(settings.topics, forward.key), record)


def records_to_forward(
    settings: LogSettings, events: Iterable[AnyEvent], *, app: str, user: str | None
) -> list[SharedRecord]:
    """The records of what these events of a run change of shared state, of memories and of
    banks.
    """
    return [
        shared_record(settings, forward)
        for event in events
        if changes_shared(event)
        for forward in forwards(event, app=app, user=user)
    ]


async def send(publisher: Publisher, shared: SharedRecord) -> Ack:
    """Hands a record over to the publisher. Raises `EventTooLargeError` if the topic would refuse
    it.
    """
    if (size := record_size(shared.record)) > RECORD_BYTES_MAX:
        raise EventTooLargeError(size=size, limit=RECORD_BYTES_MAX)
    return await publisher.send(shared.at.topic, shared.record, partition=shared.at.partition)


async def send_shared(publisher: Publisher, settings: LogSettings, forward: Forward) -> Ack:
    """Encodes an event and hands it over to the publisher. Raises `EventTooLargeError` if the topic
    would refuse it.
    """
    return await send(publisher, shared_record(settings, forward))


async def deliver(publisher: Publisher, records: Sequence[SharedRecord]) -> None:
    """Returns when all of the records are durable."""
    for ack in [await send(publisher, record) for record in records]:
        await publisher.wait(ack)


async def forward(
    publisher: Publisher, settings: LogSettings, events: Iterable[AnyEvent], *, app: str, user: str | None
) -> None:
    """Forwards what these events of a run change of shared state, of memories and of banks. A
    change that is too large to be forwarded stays in the run's log and changes nothing else.
    """
    records = records_to_forward(settings, events, app=app, user=user)
    await deliver(publisher, [record for record in records if record.can_be_forwarded])


class Keyed(NamedTuple):
    """An event under the key that it changes, with its offset and the broker's time, in
    milliseconds since 1970.
    """

    key: str
    event: AnyEvent
    offset: int
    log_time: int


async def read_counting(
    settings: LogSettings, at: Partition, skipped: Collection[range], *, leaders: Leaders | None = None
) -> AsyncIterator[Keyed]:
    """The events of one partition that count, up to its end as it is now. An event counts once
    under its key, even if it was sent several times. Undecodable and skipped records are left out;
    the projector keeps them as dead letters.
    """
    seen: set[tuple[str, str]] = set()
    topics = settings.topics
    async for records in read(settings, at.topic, partition=at.partition, leaders=leaders):
        for record in records:
            try:
                keyed = decided_event(topics, record, at, skipped)
            except UndecodableError:
                continue
            if (keyed.key, keyed.event.event_id) not in seen:
                seen.add((keyed.key, keyed.event.event_id))
                yield keyed


def decided_event(topics: Topics, record: Record, at: Partition, skipped: Collection[range] = ()) -> Keyed:
    """The event of a record of that partition. Raises `UndecodableError` also if an operator
    skipped the record, or if the key belongs to another partition: such a record has no place in
    the order of its key.
    """
    if skipped and is_skipped(record.offset, skipped):
        raise UndecodableError(SKIPPED)
    key, event = _DECODERS[at.topic.rpartition(".")[2]](record)
    if (partition := partition_of(topics, key)) != at.partition:
        raise UndecodableError(f"the key belongs to partition {partition}")
    return Keyed(key, event, record.offset, record.log_time)


def deciding(topics: Topics, key: str) -> Partition:
    """The partition whose order decides what is changed under this key."""
    return Partition(topics.deciding(key), partition_of(topics, key))


def partitions_of(topics: Topics, topic: str) -> list[Partition]:
    """All partitions of a topic that runs share."""
    return [Partition(topic, partition) for partition in range(topics.partitions)]


def shared_partitions(topics: Topics) -> list[Partition]:
    """All partitions of all topics that runs share."""
    return [at for topic in topics.shared for at in partitions_of(topics, topic)]


_DECODERS: Final = {"sessions": shared_event, "memories": memory_event, "banks": bank_event}
