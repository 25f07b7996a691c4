"""The topics that many runs share: what is appended to them, and one partition read from its
beginning.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from runfold.log.catalog import partition_of
from runfold.log.publisher import Ack, Outgoing, Publisher, record_size
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_projections.memory import bank_event, memory_event
from runfold_projections.session import shared_event
from runfold_projections.state import Forward, changes_shared, fits, forwards
from runfold_schemas.codec import Record, encode, headers
from runfold_schemas.errors import EventTooLargeError, UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import CATALOG_PARTITIONS, RECORD_BYTES_MAX, Partition, Topics


async def send_shared(publisher: Publisher, settings: LogSettings, forward: Forward) -> Ack:
    """Hands over an event to the topic and the partition that decide its key. Raises
    `EventTooLargeError` for one that the topic would refuse.
    """
    at = deciding(Topics(settings.prefix), forward.key)
    record = Outgoing(
        key=forward.key.encode(),
        value=encode(forward.event),
        headers=headers(forward.event, source=settings.source),
    )
    if (size := record_size(record)) > RECORD_BYTES_MAX:
        raise EventTooLargeError(size=size, limit=RECORD_BYTES_MAX)
    return await publisher.send(at.topic, record, partition=at.partition)


async def forward(
    publisher: Publisher, settings: LogSettings, events: Iterable[AnyEvent], *, app: str, user: str | None
) -> None:
    """Tells those who decide it what these events of a run change that others share."""
    changes = [
        one for event in events if changes_shared(event) for one in forwards(event, app=app, user=user)
    ]
    for ack in [await send_shared(publisher, settings, one) for one in changes if fits(one)]:
        await publisher.wait(ack)


class Keyed(NamedTuple):
    """An event under the key that it changes, with its offset and the broker's time, in
    milliseconds since 1970.
    """

    key: str
    event: AnyEvent
    offset: int
    log_time: int


async def read_counting(settings: LogSettings, at: Partition) -> AsyncIterator[Keyed]:
    """The events of one partition that count, up to its end as it is now: an event counts once
    under its key, however often it comes. What cannot be decoded the projector keeps as a dead
    letter.
    """
    seen: set[tuple[str, str]] = set()
    async for records in read(settings, at.topic, partition=at.partition):
        for record in records:
            try:
                one = decided_event(record, at)
            except UndecodableError:
                continue
            if (one.key, one.event.event_id) not in seen:
                seen.add((one.key, one.event.event_id))
                yield one


def decided_event(record: Record, at: Partition) -> Keyed:
    """The event of a record of that partition. Raises `UndecodableError` also where the key belongs
    to another one: what is in the wrong partition has no place in the key's order.
    """
    key, event = _DECODERS[at.topic.rpartition(".")[2]](record)
    if partition_of(key) != at.partition:
        raise UndecodableError(f"the key belongs to partition {partition_of(key)}")
    return Keyed(key, event, record.offset, record.log_time)


def deciding(topics: Topics, key: str) -> Partition:
    """The partition whose order decides what is changed under this key."""
    return Partition(topics.deciding(key), partition_of(key))


def partitions_of(topic: str) -> list[Partition]:
    """All partitions of a topic that runs share."""
    return [Partition(topic, partition) for partition in range(CATALOG_PARTITIONS)]


def shared_partitions(topics: Topics) -> list[Partition]:
    """All partitions of all topics that runs share."""
    return [at for topic in topics.shared for at in partitions_of(topic)]


_DECODERS: Final = {"sessions": shared_event, "memories": memory_event, "banks": bank_event}
