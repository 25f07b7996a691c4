"""The topics that many runs share: what is appended to them, and one partition read from its beginning."""

from collections.abc import AsyncIterator, Iterable

from aiokafka import TopicPartition

from runfold.log.catalog import partition_of
from runfold.log.publisher import Ack, Outgoing, Publisher
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_projections.session import shared_event
from runfold_projections.state import Forward, fits, forwards
from runfold_schemas.codec import Record, encode, headers
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import CATALOG_PARTITIONS, Topics


async def send_shared(publisher: Publisher, settings: LogSettings, forward: Forward) -> Ack:
    """Hands over an event to the topic and the partition that decide its key."""
    record = Outgoing(
        key=forward.key.encode(),
        value=encode(forward.event),
        headers=headers(forward.event, source=settings.source),
    )
    topic = Topics(settings.prefix).deciding(forward.key)
    return await publisher.send(topic, record, partition=partition_of(forward.key))


async def forward(
    publisher: Publisher, settings: LogSettings, events: Iterable[AnyEvent], *, app: str, user: str | None
) -> None:
    """Tells those who decide it what these events of a run change of state that others share."""
    changes = [one for event in events if event.state_delta for one in forwards(event, app=app, user=user)]
    for ack in [await send_shared(publisher, settings, one) for one in changes if fits(one)]:
        await publisher.wait(ack)


async def read_shared(settings: LogSettings, partition: int) -> AsyncIterator[list[Record]]:
    """The records of one partition of `{prefix}.sessions`, up to its end as it is now."""
    async for records in read(settings, Topics(settings.prefix).sessions, partition=partition):
        yield records


def decided_event(record: Record, partition: int) -> tuple[str, AnyEvent]:
    """The key and the event of a record of that partition. Raises `UndecodableError` also where the key belongs to another
    one: what is in the wrong partition has no place in the key's order.
    """
    key, event = shared_event(record)
    if partition_of(key) != partition:
        raise UndecodableError(f"the key belongs to partition {partition_of(key)}")
    return key, event


def shared_partitions(topics: Topics) -> list[TopicPartition]:
    """All partitions of `{prefix}.sessions`."""
    return [TopicPartition(topics.sessions, partition) for partition in range(CATALOG_PARTITIONS)]
