"""Moves what the catalog says of archived runs to the archive, so that the catalog does not grow
with the number of runs that ended long ago.

    life:, log: --> the table `runs` --> archive: --> tombstones of life: and log:
         ^                 |
         '-----------------'   when the run has a topic again, or was deleted

A row is in the table before the tombstones, so at any time the catalog or the table has the run.
What others write between the pass over the catalog and the tombstones is read again afterwards, and
written once more: compaction would keep the tombstone only. If the process dies before, the next
pass finds the records before the tombstones.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

from runfold.archive.archive import Archive
from runfold.archive.table import Fence, FencedError
from runfold.archiver.catalog_pass import CatalogPass, ListedRun
from runfold.archiver.known_runs import ListedTopics, PartitionRuns
from runfold.log.catalog import archive_record, life_key, life_record, segments_key, segments_record
from runfold.log.leaders import Leaders
from runfold.log.publisher import Outgoing
from runfold.log.settings import LogSettings
from runfold.log.topic_ids import topic_ids
from runfold_schemas.catalog import ArchivedRun, Life, Segments

_RETIRE_SECONDS: Final = 1800.0
"""How often archived runs are noted in the archive."""

_AT_ONCE: Final = 500

_log = logging.getLogger(__name__)

Publish = Callable[[Collection[tuple[int, Outgoing]]], Awaitable[list[int]]]
"""Writes records to partitions of the catalog, and returns their offsets."""

Own = Callable[[Sequence[PartitionRuns]], Awaitable[None]]
"""Takes the ownership of partitions in the archive."""

ListTopics = Callable[[], Awaitable[ListedTopics]]


class Retiring:
    """The runs of the own partitions that are archived."""

    def __init__(
        self, settings: LogSettings, archive: Archive, *, publish: Publish, own: Own, leaders: Leaders
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._archive = archive
        self._publish = publish
        self._own = own
        self._leaders = leaders
        self._known: set[int] = set()
        """The hashes of runs as the table has them."""
        self._due_at: dict[int, float] = {}
        """When a partition is looked at again, in seconds of the monotonic clock."""

    async def restore(self, partition: PartitionRuns) -> None:
        """Writes to the catalog what it lacks of runs that have topics again."""
        run_ids = {run.run_id for log in partition.unnamed if (run := self._topics.parse_run(log))}
        run_ids |= {
            run.run_id for run in partition.runs.values() if run.entry is None and any(run.bases - {0})
        }
        noted = await self._archive.noted(sorted(run_ids))
        if again := [run for run in noted.values() if not run.life.deleted]:
            catalog = CatalogPass()
            await catalog.read(self._settings, partition.number, self._leaders)
            await self._write_again(partition.number, catalog, again)

    async def retire_if_due(
        self, partition: PartitionRuns, list_topics: ListTopics, *, keep_seconds: float | None
    ) -> None:
        """Notes the archived runs of a partition in the table, every half an hour. With
        `keep_seconds`, ended runs that the catalog has not named for that time are removed from it.
        """
        now = time.monotonic()
        if self._due_at.setdefault(partition.number, now + _RETIRE_SECONDS) > now:
            return
        self._due_at[partition.number] = now + _RETIRE_SECONDS
        if partition.fence is None:
            await self._own([partition])
        assert partition.fence is not None
        try:
            await self._retire(partition, list_topics, fence=partition.fence, keep_seconds=keep_seconds)
        except FencedError as error:
            partition.fence = None
            _log.warning("partition %d of the catalog keeps its runs: %s", partition.number, error)

    async def _retire(
        self, partition: PartitionRuns, list_topics: ListTopics, *, fence: Fence, keep_seconds: float | None
    ) -> None:
        number, catalog = partition.number, CatalogPass()
        await catalog.read(self._settings, number, self._leaders)
        # After the catalog: a run that is reopened later is found by `_mend`.
        topics = await list_topics()
        archived = {
            run_id: ArchivedRun(life, segments)
            for run_id, listed in catalog.runs.items()
            if (life := listed.life) is not None
            and (segments := listed.segments) is not None
            and self._is_archived(life, segments, topics)
        }
        await self._note(list(archived.values()), fence)
        await self._go_on(number, catalog, topics)
        if keep_seconds is not None:
            before = (time.time() - keep_seconds) * 1000
            due = [run_id for run_id in archived if _is_due(catalog.runs[run_id], before)]
            for first in range(0, len(due), _AT_ONCE):
                await catalog.read(self._settings, number, self._leaders)
                still_due = [
                    archived[run_id]
                    for run_id in due[first : first + _AT_ONCE]
                    if _is_due(catalog.runs[run_id], before)
                ]
                await self._remove(number, catalog, still_due)

    def _is_archived(self, life: Life, segments: Segments, topics: ListedTopics) -> bool:
        later = self._topics.segment(life.run_id, life.log_id, segments.base)
        return (
            not life.deleted
            and life.log_id == segments.log_id
            and segments.sealed_base is None
            # A name with a hash does not say which run it is.
            and later.rpartition(".")[0] == self._topics.run(life.run_id, life.log_id)
            and not topics.bases_of(life.run_id, life.log_id)
        )

    async def _note(self, runs: Sequence[ArchivedRun], fence: Fence) -> None:
        new = [run for run in runs if _hash_of(run) not in self._known]
        for first in range(0, len(new), _AT_ONCE):
            portion = new[first : first + _AT_ONCE]
            await self._archive.note_runs(portion, fence=fence)
            noted = await self._archive.noted([run.life.run_id for run in portion])
            self._known |= {_hash_of(run) for run in portion if noted.get(run.life.run_id) == run}

    async def _go_on(self, number: int, catalog: CatalogPass, topics: ListedTopics) -> None:
        """Writes again what counts although a tombstone has come after it: the run has a topic, or
        somebody deletes it.
        """
        again = [
            ArchivedRun(life, listed.segments)
            for listed in catalog.runs.values()
            if listed.is_removed
            and (life := listed.life) is not None
            and ((life.deleted and listed.life_removed) or topics.bases_of(life.run_id, life.log_id))
        ]
        await self._write_again(number, catalog, again)

    async def _remove(self, number: int, catalog: CatalogPass, runs: Sequence[ArchivedRun]) -> None:
        """Removes runs from the catalog that the table has as they are."""
        noted = await self._archive.noted([run.life.run_id for run in runs])
        same = [run for run in runs if noted.get(run.life.run_id) == run]
        if not same:
            return
        if not catalog.lacks_archived:
            await self._publish([(number, archive_record())])
        # The life goes first: a life without segments would be a log that was never sealed.
        await self._publish([(number, Outgoing(life_key(run.life.run_id), None)) for run in same])
        await self._publish([(number, Outgoing(segments_key(run.life.run_id), None)) for run in same])
        _log.info("removed %d archived runs from partition %d of the catalog", len(same), number)
        await self._mend(number, catalog, same)

    async def _mend(self, number: int, catalog: CatalogPass, removed: Sequence[ArchivedRun]) -> None:
        """Writes again what was written to removed runs between the pass and the tombstones, and
        runs that have a topic again.
        """
        later = CatalogPass(position=catalog.position)
        await later.read(self._settings, number, self._leaders)
        names = {
            self._topics.segment(run.life.run_id, run.life.log_id, run.segments.base): run
            for run in removed
            if run.segments is not None
        }
        reopened = await topic_ids(self._leaders.client, names)
        changed = [
            run
            for name, run in names.items()
            if name in reopened or (now := later.of(run.life.run_id)).life_value or now.segments_value
        ]
        await self._write_again(number, later, changed)

    async def _write_again(self, number: int, catalog: CatalogPass, runs: Iterable[ArchivedRun]) -> None:
        """Writes runs to the catalog as it says, or else as the archive says. A deletion that comes
        meanwhile is written again behind them.
        """
        records: list[Outgoing] = []
        lives: list[Life] = []
        for run in runs:
            listed = catalog.of(run.life.run_id)
            life, segments = listed.life, listed.segments
            lives.append(life if life is not None and life.log_id == run.life.log_id else run.life)
            records.append(life_record(lives[-1]))
            segments = segments if segments is not None and _is_of(segments, run) else run.segments
            # The tombstone of a deleted run says that nothing of it is archived.
            if segments is not None and not lives[-1].deleted:
                records.append(segments_record(segments))
        if not records:
            return
        await self._publish([(number, record) for record in records])
        later = CatalogPass(position=catalog.position)
        await later.read(self._settings, number, self._leaders)
        deletions = [
            claim
            for life in lives
            if not life.deleted
            and (claim := later.of(life.run_id).life) is not None
            and claim.deleted
            and claim.log_id == life.log_id
        ]
        await self._publish([(number, life_record(claim)) for claim in deletions])


def _is_due(listed: ListedRun, before_ms: float) -> bool:
    life = listed.life
    return (
        life is not None
        and life.ended
        and not life.deleted
        and not (listed.life_removed and listed.segments_removed)
        and listed.noted_ms <= before_ms
    )


def _is_of(segments: Segments, run: ArchivedRun) -> bool:
    """Whether the segments of the catalog are those of the run, or later ones."""
    return segments.log_id == run.life.log_id and (run.segments is None or segments.base >= run.segments.base)


def _hash_of(run: ArchivedRun) -> int:
    assert run.segments is not None
    return hash((run.life.model_dump_json(), run.segments.model_dump_json()))
