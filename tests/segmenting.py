"""Seals the logs of runs by hand, as an archiver does."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from tests.processes import until

from runfold import Runfold
from runfold.log import sealing
from runfold.log.catalog import partition_of, segments_record
from runfold.log.leaders import Leaders
from runfold.log.publisher import Outgoing
from runfold.log.reader import read
from runfold_schemas.catalog import ArchivedRun, Life, Segments
from runfold_schemas.codec import Record

GAP = 1000
"""The offsets between the end of a sealed topic and the next base."""


def topic_of(runfold: Runfold, life: Life, base: int = 0) -> str:
    return runfold.connection.topics.segment(life.run_id, life.log_id, base)


async def seal_topic(runfold: Runfold, life: Life, base: int = 0) -> Segments:
    """Seals the topic of this base, and returns the entry that names the next one."""
    connection, topic = runfold.connection, topic_of(runfold, life, base)
    ends: dict[str, int] = {}

    async def is_sealed() -> bool:
        """A broker that stands still does not answer for the topic."""
        ends.update((await sealing.seal(admin, leaders, [topic], timeout_seconds=60)).ends)
        return topic in ends

    admin = connection.admin.client._client
    async with Leaders.connect(connection.settings) as leaders:
        await until(is_sealed, what="the seal")
    end = ends[topic]
    return Segments(run_id=life.run_id, log_id=life.log_id, base=end + GAP, end=end, sealed_base=base)


async def seal(runfold: Runfold, life: Life, base: int = 0) -> Segments:
    """Seals the topic of this base, and announces the next one, which does not exist yet."""
    entry = await seal_topic(runfold, life, base)
    await announce(runfold, entry)
    return entry


async def append(runfold: Runfold, topic: str, record: Outgoing, *, partition: int = 0) -> int:
    publisher = runfold.connection.publisher
    sent = await publisher.send(topic, record, partition=partition)
    return (await publisher.wait(sent)).offset


async def announce(runfold: Runfold, entry: Segments) -> None:
    topics = runfold.connection.topics
    number = partition_of(topics, entry.run_id)
    await append(runfold, topics.catalog, segments_record(entry), partition=number)


@dataclass
class HandArchive:
    """An archive in memory."""

    logs: dict[str, list[Record]] = field(default_factory=dict)
    failure: Exception | None = None
    """What a read raises."""
    failures: int = 0

    async def run(self, run_id: str) -> ArchivedRun | None:
        return None

    async def runs(self) -> AsyncGenerator[ArchivedRun, None]:
        for run in ():
            yield run

    async def records(
        self,
        run_id: str,
        log_id: str,
        *,
        start: int = 0,
        end: int | None = None,
        entry: Segments | None = None,
    ) -> AsyncGenerator[Record, None]:
        if self.failure is not None:
            self.failures += 1
            raise self.failure
        for record in self.logs[run_id]:
            if start <= record.offset and (end is None or record.offset < end):
                yield record

    async def archive(self, runfold: Runfold, life: Life, entry: Segments) -> Segments:
        """Takes the sealed records, announces that, and deletes the topic."""
        assert entry.sealed_base is not None
        connection = runfold.connection
        topic = topic_of(runfold, life, entry.sealed_base)
        log = self.logs.setdefault(life.run_id, [])
        reading = read(
            connection.settings, topic_of(runfold, life), first_offset=entry.sealed_base, end=entry.end
        )
        log += [record async for records in reading for record in records]
        archived = entry.model_copy(update={"sealed_base": None})
        await announce(runfold, archived)
        await connection.delete_topic(topic)
        return archived
