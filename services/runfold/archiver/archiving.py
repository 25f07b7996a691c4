"""Writes the records of sealed topics to the archive, and compares them.

    topic --> append, many runs in a commit --> compare with a second reading of the topic

Nothing here depends on what an earlier process remembered: what the table has is looked up.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import Counter, Gauge

from runfold.archive.archive import Archive, check_complete
from runfold.archive.checking import check_commit, damaged_runs
from runfold.archive.segments import ArchivedSegment, Segment, SegmentKey, archived, record_bytes
from runfold.archive.table import FencedError
from runfold.archiver.segment_reading import PART_RECORDS, SealedLog, SegmentReader, UnarchivableError
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.errors import UnavailableError

_LOGS_AT_ONCE: Final = 1_000
"""The number of logs in one commit."""

_GROUPS_AT_ONCE: Final = 2
"""While one group of logs is read, another one is written and compared."""

_BYTES: Final = Counter("runfold_archived_bytes", "Bytes of records that this archiver has archived")
_COMMITTED: Final = Gauge(
    "runfold_archiver_commit_timestamp_seconds", "When this archiver last wrote to the archive"
)
_RECORDS: Final = Counter("runfold_archived_records", "Records that this archiver has archived")

_log = logging.getLogger(__name__)


class Archiving:
    """Archives over two connections to Kafka: the second one reads what is compared."""

    def __init__(self, archive: Archive, *, first: SegmentReader, second: SegmentReader) -> None:
        self._archive = archive
        self._first = first
        self._second = second
        self._committing = asyncio.Lock()

    async def archive(self, logs: Iterable[SealedLog], *, compares: bool) -> list[SealedLog]:
        """Archives what the archive lacks of these logs. With `compares`, what it has is compared
        with the topics too. Returns the logs that are archived. The failures of others are noted in
        their runs. Raises `UnavailableError`, and `FencedError` if another process is the owner.
        """
        limit = asyncio.Semaphore(_GROUPS_AT_ONCE)

        async def archive(group: Sequence[SealedLog]) -> list[SealedLog]:
            async with limit:
                return await self._archive_group(group, compares=compares)

        # All of them come to an end, so that no commit is made beside a later call.
        results = await asyncio.gather(*map(archive, _groups(logs)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [log for result in results if not isinstance(result, BaseException) for log in result]

    async def _archive_group(self, logs: Sequence[SealedLog], *, compares: bool) -> list[SealedLog]:
        has = await self._archived(logs)
        _note_archived(logs, has.values())
        pending = [log for log in logs if log.run.failure is None]
        while pending:
            for log in pending:
                await self._pass_archived(log, has, compares=compares)
            pending = _unfinished(pending)
            parts = await self._first.parts(pending)
            await self._take(pending, parts)
            pending = _unfinished(pending)
        return [log for log in logs if log.run.failure is None and log.position >= log.end]

    async def _archived(self, logs: Sequence[SealedLog]) -> dict[SegmentKey, ArchivedSegment]:
        segments = await self._archive.segments(sorted({log.run.run_id for log in logs}))
        return {segment.key: segment for segment in segments}

    async def _pass_archived(
        self, log: SealedLog, has: dict[SegmentKey, ArchivedSegment], *, compares: bool
    ) -> None:
        """Passes over the segments that an earlier process has archived."""
        while (segment := has.get(log.key)) is not None and log.run.failure is None:
            if compares:
                await self._compare(log, segment)
            if log.run.failure is None:
                log.position = segment.end
                log.next_offset = segment.end

    async def _compare(self, log: SealedLog, segment: ArchivedSegment) -> None:
        """Compares a segment of an earlier process with its topic."""
        expected = Segment(*segment.key, segment.end, [], log.run.skipped)
        try:
            [again] = await self._second.again([(expected, log.topic)])
        except UnarchivableError as gone:
            log.run.failure = str(gone)
            return
        read = archived(again, archived_at=segment.archived_at)
        if read != segment:
            log.run.failure = f"the archived segment at {segment.base} differs from the topic"
        for error in await damaged_runs(self._archive, [log.run.run_id]):
            log.run.failure = error.reason

    async def _take(
        self, logs: Sequence[SealedLog], parts: Sequence[Segment | UnarchivableError | None]
    ) -> None:
        """Archives the parts that were read, and moves the logs' positions."""
        by_key: dict[SegmentKey, tuple[SealedLog, Segment]] = {}
        for log, part in zip(logs, parts, strict=True):
            if isinstance(part, UnarchivableError):
                log.run.failure = str(part)
            elif part is not None and part.records:
                by_key[log.key] = log, part
            elif part is not None:
                log.position = part.end
        if by_key:
            await self._commit(list(by_key.values()))

    async def _commit(self, parts: Sequence[tuple[SealedLog, Segment]]) -> None:
        """Archives parts in one commit. If that fails because of one of them, the others are
        archived without it.
        """
        try:
            await self._append(parts)
        except (UnavailableError, FencedError):
            raise
        except Exception as error:  # noqa: BLE001  # one run does not stop the others
            if len(parts) == 1:
                _log.warning("the run %r cannot be archived", parts[0][0].run.run_id, exc_info=error)
                parts[0][0].run.failure = _line(error)
                return
            middle = len(parts) // 2
            for half in (parts[:middle], parts[middle:]):
                await self._commit(half)

    async def _append(self, parts: Sequence[tuple[SealedLog, Segment]]) -> None:
        async with self._committing:
            version = await self._archive.append(
                [segment for _, segment in parts], fences={log.fence for log, _ in parts}
            )
        again = await self._second.again([(segment, log.topic) for log, segment in parts])
        refused: set[str] = set()
        if version is not None:
            _COMMITTED.set_to_current_time()
            await check_commit(self._archive, version, again)
        else:
            refused = await self._check_stored(again)
        for log, segment in parts:
            if segment.run_id in refused:
                log.run.failure = "the archive has its id as that of a deleted run, and the catalog does not"
                continue
            log.position = segment.end
            log.next_offset = segment.records[-1].offset + 1
            log.run.archived_end = max(log.run.archived_end, segment.end)
            log.run.archived_records += len(segment.records)
            _RECORDS.inc(len(segment.records))
            _BYTES.inc(sum(map(record_bytes, segment.records)))

    async def _check_stored(self, segments: Sequence[Segment]) -> set[str]:
        """Compares segments that another process has archived meanwhile. Returns the runs among
        them that the archive has as deleted: it takes nothing of these.
        """
        run_ids = [segment.run_id for segment in segments]
        has = {each.key: each for each in await self._archive.segments(run_ids)}
        deleted = await asyncio.to_thread(self._archive.deleted_among, run_ids)
        for error in await damaged_runs(self._archive, run_ids):
            raise error
        for segment in segments:
            expected = archived(segment, archived_at=0)
            each = has.get(expected.key)
            if segment.run_id not in deleted and (each is None or each._replace(archived_at=0) != expected):
                raise ArchiveDamagedError(
                    segment.run_id, reason=f"the segment at {segment.base} differs from the log"
                )
        return deleted


def _note_archived(logs: Iterable[SealedLog], segments: Iterable[ArchivedSegment]) -> None:
    """Notes what the archive has of these logs. It must have what it once had."""
    chains: dict[tuple[str, str], list[ArchivedSegment]] = {}
    for segment in segments:
        chains.setdefault((segment.run_id, segment.log_id), []).append(segment)
    for run in (log.run for log in logs):
        chain = chains.get((run.run_id, run.log_id), [])
        run.archived_end = max((each.end for each in chain), default=0)
        run.archived_records = sum(each.record_count for each in chain)
        try:
            if run.entry is not None:
                check_complete(run.entry, chain)
        except ArchiveDamagedError as error:
            run.failure = str(error)


def _groups(logs: Iterable[SealedLog]) -> Iterable[Sequence[SealedLog]]:
    """The logs in groups, each of which becomes one commit if its records are not large. The logs
    of one run, which follow each other, are in one group: what is archived of the run is counted.
    """
    group: list[SealedLog] = []
    count = 0
    for log in logs:
        is_full = len(group) >= _LOGS_AT_ONCE or count + log.end - log.position > PART_RECORDS
        if group and is_full and group[-1].run is not log.run:
            yield group
            group, count = [], 0
        group.append(log)
        count += log.end - log.position
    if group:
        yield group


def _unfinished(logs: Iterable[SealedLog]) -> list[SealedLog]:
    return [log for log in logs if log.run.failure is None and log.position < log.end]


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
