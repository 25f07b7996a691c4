"""The steps of a run into the archive. Each is repeated without harm, also by another process.

    seal --> entry with sealed_base --> archive --> entry without sealed_base --> pause --> delete

What was done is in Kafka and in the table: the catalog's entry of the run, its topics, its rows.
"""

import logging
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import Counter

from runfold.archive.archive import Archive
from runfold.archive.table import Fence
from runfold.archiver.archiving import Archiving
from runfold.archiver.clearing import Clearing
from runfold.archiver.known_runs import KnownRun, PartitionRuns
from runfold.archiver.retiring import Retiring
from runfold.archiver.segment_reading import SealedLog, SegmentReader
from runfold.log.admin import LogAdmin
from runfold.log.catalog import partition_of, segments_record
from runfold.log.driver import kafka_errors
from runfold.log.leaders import EARLIEST, Leaders
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.sealing import SealedTopics, seal, sealed_among, settled_ends
from runfold.log.settings import LogSettings
from runfold.log.topic_ids import delete_topics, topic_ids
from runfold_schemas.catalog import Segments
from runfold_schemas.topics import Partition

GAP: Final = 2**20
"""The offsets between the end of a sealed topic and the next base: whatever lands late in the
sealed topic has an offset of its own.
"""

_AGAIN_SECONDS: Final = 5.0
"""The pause after which a run with an open transaction is looked at again."""

_UNANSWERED_SECONDS: Final = 60.0
"""The pause after which a topic is looked at again for which no broker answered."""

_FAILURE_SECONDS: Final = 600.0

_SEAL_SECONDS: Final = 0.03
"""How much longer sealing may take for each topic."""

_ARCHIVED: Final = Counter("runfold_archived_runs", "Runs whose logs this archiver has archived")
_FAILED: Final = Counter("runfold_archiver_failures", "Attempts to archive a run that failed")
_DELETED: Final = Counter("runfold_archiver_deleted_topics", "Topics of archived runs that were deleted")

_log = logging.getLogger(__name__)


class Steps:
    """The steps of the runs in some partitions of the catalog."""

    def __init__(
        self,
        settings: LogSettings,
        archive: Archive,
        *,
        admin: LogAdmin,
        publisher: Publisher,
        leaders: Leaders,
        second: Leaders,
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._archive = archive
        self._configs = admin.client
        self._admin = admin.client._client  # noqa: SLF001 - aiokafka shows no other way
        self._publisher = publisher
        self._leaders = leaders
        self.clearing: Final = Clearing(archive, self._publish)
        self.retiring: Final = Retiring(
            settings, archive, publish=self._publish, own=self.take_ownership, leaders=leaders
        )
        self._archiving = Archiving(
            archive, first=SegmentReader(settings, leaders), second=SegmentReader(settings, second)
        )

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: LogSettings, archive: Archive) -> AsyncIterator["Steps"]:
        """Connected to Kafka for the length of the block."""
        async with (
            LogAdmin.connect(settings) as admin,
            Publisher.connect(settings) as publisher,
            Leaders.connect(settings) as leaders,
            Leaders.connect(settings) as second,
        ):
            yield cls(settings, archive, admin=admin, publisher=publisher, leaders=leaders, second=second)

    async def take_ownership(self, partitions: Sequence[PartitionRuns]) -> None:
        """Takes the ownership of partitions in the archive: by the offset of a record of its own,
        which is higher than that of every earlier owner. If the catalog began anew, the table's
        token is higher.
        """
        names = {each.number: f"archiver-{each.number}" for each in partitions}
        offsets = await self._publish(
            (number, Outgoing(f"archiver:{number}".encode(), b"{}")) for number in names
        )
        tokens = await self._archive.tokens(names.values())
        for each, offset in zip(partitions, offsets, strict=True):
            name = names[each.number]
            each.fence = Fence(name, max(offset, tokens[name] + 1))

    async def check_archive(self) -> None:
        """Raises `UnavailableError` if the archive cannot be read."""
        await self._archive.check()

    async def find_sealed(self, runs: Iterable[KnownRun]) -> None:
        """Notes which of these runs have a sealed last topic: an archiver died before it said where
        their logs go on.
        """
        by_topic = {self._topic(run, run.open_base): run for run in runs}
        for topic in await sealed_among(self._configs, by_topic):
            by_topic[topic].is_sealing = True
            by_topic[topic].not_before = 0.0

    async def restate(self, runs: Iterable[KnownRun]) -> dict[int, int]:
        """Writes the entries of these runs again. Returns as `seal`."""
        return await self._announce(run.entry for run in runs if run.entry is not None)

    async def quiet(self, runs: Sequence[KnownRun], *, quiet_seconds: float) -> list[KnownRun]:
        """Those of the runs whose logs have no record of the last `quiet_seconds`."""
        by_partition = {Partition(self._topic(run, run.open_base), 0): run for run in runs}
        since = int((time.time() - quiet_seconds) * 1000)
        topics = [at.topic for at in by_partition]
        found = await settled_ends(
            self._leaders, topics, timeout_seconds=self._settings.publish_timeout_seconds
        )
        self._pass_over(found, {at.topic: run for at, run in by_partition.items()})
        for topic in found.missing:
            by_partition[Partition(topic, 0)].bases.discard(by_partition[Partition(topic, 0)].open_base)
        existing = [Partition(topic, 0) for topic in found.ends]
        with kafka_errors():
            offsets = (await self._leaders.look(existing, since)).offsets if existing else {}
        quiet: list[KnownRun] = []
        for at in existing:
            run = by_partition[at]
            if at not in offsets:
                run.postpone(_UNANSWERED_SECONDS)
            elif offsets[at] < 0:
                quiet.append(run)
            else:
                run.postpone(max(1.0, quiet_seconds / 20))
        return quiet

    async def seal(self, runs: Sequence[KnownRun]) -> dict[int, int]:
        """Seals the last topics of these runs, and writes to the catalog where their logs go on.
        Returns the offsets behind these records, by partition of the catalog.
        """
        by_topic = {self._topic(run, run.open_base): run for run in runs}
        for run in runs:
            run.is_sealing = True
        sealed = await seal(
            self._admin,
            self._leaders,
            list(by_topic),
            timeout_seconds=self._seal_seconds(by_topic),
        )
        self._pass_over(sealed, by_topic)
        for topic in sealed.missing:
            by_topic[topic].bases.discard(by_topic[topic].open_base)
        entries = [
            Segments(
                run_id=run.run_id,
                log_id=run.log_id,
                base=sealed.ends[topic] + GAP,
                end=sealed.ends[topic],
                sealed_base=run.open_base,
                archived_end=0 if run.entry is None else run.entry.archived_end,
                archived_records=0 if run.entry is None else run.entry.archived_records,
            )
            for topic, run in by_topic.items()
            if topic in sealed.ends
        ]
        return await self._announce(entries)

    def _seal_seconds(self, topics: Collection[str]) -> float:
        """How long sealing may take. A slow broker gets its time: a seal that is given up is begun
        anew with the same topics.
        """
        return self._settings.publish_timeout_seconds + len(topics) * _SEAL_SECONDS

    def _pass_over(self, sealed: SealedTopics, runs: Mapping[str, KnownRun]) -> None:
        """Postpones the runs whose topics are neither settled nor missing."""
        for topic in sealed.unsettled:
            runs[topic].postpone(_AGAIN_SECONDS)
        for topic in sealed.unanswered:
            runs[topic].postpone(_UNANSWERED_SECONDS)
        for topic, reason in sealed.refused.items():
            self.fail(runs[topic], reason)

    async def archive(self, runs: Sequence[KnownRun], fences: Mapping[int, Fence]) -> dict[int, int]:
        """Archives the sealed topics of runs, and announces that. `fences` are those of their
        partitions. Returns as `seal`. Raises `FencedError`.
        """
        sealed = [(run, run.entry.sealed_base) for run in runs if run.entry is not None]
        logs = [self._log(run, base, fences) for run, base in sealed if base is not None]
        done = await self._archive_logs(logs, compares=True)
        behind = await self._announce(map(_archived_entry, done))
        _ARCHIVED.inc(len(done))
        return behind

    async def delete(self, runs: Sequence[KnownRun], fences: Mapping[int, Fence]) -> dict[int, int]:
        """Deletes the topics of runs that are archived. If a topic has a record that is not
        archived, it is archived, and the topic stays until the next call. Returns as `seal`. Raises
        `FencedError`.

        The entry in the catalog does not decide: each topic is sealed, and is deleted if the
        archive has segments up to its end.
        """
        past = [self._log(run, base, fences) for run in runs for base in run.past_bases()]
        logs = {log.topic: log for log in past}
        # Before all looks at the topics: what these find is deleted, and nothing of the same name.
        ids = await topic_ids(self._leaders.client, logs)
        for topic in logs.keys() - ids.keys():
            logs[topic].run.bases.discard(logs[topic].base)
        timeout = self._settings.publish_timeout_seconds
        sealed = await seal(
            self._admin, self._leaders, ids, timeout_seconds=self._seal_seconds(ids), marks=False
        )
        self._pass_over(sealed, {topic: log.run for topic, log in logs.items()})
        done = await self._archive_logs(
            [log for topic, log in logs.items() if topic in sealed.ends], compares=False
        )
        late = [log for log in done if _is_late(log)]
        gone = {log.topic: ids[log.topic] for log in done if not _is_late(log)}
        refused = await delete_topics(self._leaders.client, gone, timeout_seconds=timeout)
        for topic in gone:
            if topic in refused:
                self.fail(logs[topic].run, f"its topic cannot be deleted: {refused[topic]}")
            else:
                _DELETED.inc()
                logs[topic].run.bases.discard(logs[topic].base)
        return await self._announce(map(_archived_entry, late))

    def fail(self, run: KnownRun, reason: str) -> None:
        """Notes that a run cannot be archived now."""
        run.failure = reason
        run.postpone(_FAILURE_SECONDS)
        _FAILED.inc()
        _log.warning("the run %r is not archived, and its topic stays: %s", run.run_id, reason)

    async def _archive_logs(self, logs: Sequence[SealedLog], *, compares: bool) -> list[SealedLog]:
        for log in logs:
            log.run.failure = None
        done = await self._archiving.archive(await self._with_ends(logs), compares=compares)
        for log in logs:
            if log.run.failure is not None:
                self.fail(log.run, log.run.failure)
        return done

    async def _with_ends(self, logs: Sequence[SealedLog]) -> list[SealedLog]:
        """The logs that have all of their records, with their ends."""
        timeout = self._settings.publish_timeout_seconds
        ends = await settled_ends(self._leaders, [log.topic for log in logs], timeout_seconds=timeout)
        partitions = [Partition(topic, 0) for topic in ends.ends]
        with kafka_errors():
            begins = (await self._leaders.look(partitions, EARLIEST)).offsets if partitions else {}
        ready: list[SealedLog] = []
        for log in logs:
            if log.topic in ends.missing:
                log.run.failure = f"there is no topic {log.topic}, and it is not archived"
            elif log.topic in ends.refused:
                log.run.failure = ends.refused[log.topic]
            elif log.topic in ends.unsettled:
                log.run.postpone(_AGAIN_SECONDS)
            elif (begin := begins.get(Partition(log.topic, 0))) is None:
                log.run.postpone(_UNANSWERED_SECONDS)
            elif ends.ends[log.topic] >= log.run.open_base:
                log.run.failure = f"the topic {log.topic} has more records than the log has room for"
            elif begin != log.base:
                log.run.failure = f"the first records of the topic {log.topic} are gone"
            else:
                log.end = ends.ends[log.topic]
                ready.append(log)
        return ready

    def _log(self, run: KnownRun, base: int, fences: Mapping[int, Fence]) -> SealedLog:
        return SealedLog(run, fences[run.number], self._topic(run, base), base, position=base, end=base)

    def _topic(self, run: KnownRun, base: int) -> str:
        return self._topics.segment(run.run_id, run.log_id, base)

    async def _announce(self, entries: Iterable[Segments]) -> dict[int, int]:
        records = [(partition_of(self._topics, each.run_id), segments_record(each)) for each in entries]
        offsets = await self._publish(records)
        behind: dict[int, int] = {}
        for (number, _), offset in zip(records, offsets, strict=True):
            behind[number] = max(behind.get(number, 0), offset + 1)
        return behind

    async def _publish(self, records: Iterable[tuple[int, Outgoing]]) -> list[int]:
        """Writes records to partitions of the catalog. Returns their offsets."""
        acks = [
            await self._publisher.send(self._topics.catalog, record, partition=number)
            for number, record in records
        ]
        return [(await self._publisher.wait(ack)).offset for ack in acks]


def _archived_entry(log: SealedLog) -> Segments:
    """The entry of a log that is archived, with what came after the first look at its end."""
    entry = log.run.entry
    assert entry is not None
    if entry.sealed_base not in (None, log.base):
        return entry
    return entry.model_copy(
        update={
            "sealed_base": None,
            "end": max(entry.end, log.next_offset),
            "archived_end": log.run.archived_end,
            "archived_records": log.run.archived_records,
        }
    )


def _is_late(log: SealedLog) -> bool:
    """Whether records were archived that the entry does not count."""
    entry = log.run.entry
    return entry is not None and entry.sealed_base is None and log.next_offset > entry.end
