"""The archive: records of runs as rows of a table in an open format.

    archiver --> append --> events        a row for each record, byte for byte, beside typed columns
    readers  <-- records <--'
    archiver --> runs                     what the catalog says of archived runs
    deletion --> deleted_runs             the ids of deleted runs, which stay taken

The first row of a segment names the segment, so a segment is there with all of its rows or with
none: one commit of the table has both.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from runfold.archive.columns import (
    DELETED_COLUMNS,
    EVENT_COLUMNS,
    RECORD_COLUMNS,
    SEGMENT_COLUMNS,
    Row,
    empty_table,
    events_table,
    table_of,
)
from runfold.archive.files import TableFiles
from runfold.archive.runs import ArchivedRuns, empty_runs
from runfold.archive.segments import (
    ArchivedSegment,
    Digest,
    Segment,
    SegmentKey,
    archived,
)
from runfold.archive.table import (
    ArchiveTable,
    Fence,
    Snapshot,
    check_libraries,
    is_among,
    literal,
    literals,
    portions,
    url_of,
)
from runfold.archive.typed_columns import RunColumns
from runfold.secret_urls import SecretUrl
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.catalog import ArchivedRun, Life, Segments
from runfold_schemas.codec import Record

if TYPE_CHECKING:
    from arro3.core import Table

_SLICE_BYTES: Final = 8 * 1024 * 1024
_SLICE_ROWS: Final = 5_000


class Archive:
    """The archive of one prefix. Every verb may raise `UnavailableError`."""

    def __init__(self, url: SecretUrl, *, prefix: str) -> None:
        """Nothing is read yet. Raises `ConfigurationError` if the libraries are not installed."""
        check_libraries()
        self.events = ArchiveTable(url_of(url, prefix, "events"), lambda: empty_table(EVENT_COLUMNS))
        self.deleted = ArchiveTable(url_of(url, prefix, "deleted_runs"), lambda: empty_table(DELETED_COLUMNS))
        runs = ArchiveTable(url_of(url, prefix, "runs"), empty_runs)
        self._runs = ArchivedRuns(runs, events=self.events, deleted_among=self.deleted_among)
        self.event_files = TableFiles(url, f"{prefix}/events")
        self.tables = {
            "events": (self.events, self.event_files),
            "runs": (runs, TableFiles(url, f"{prefix}/runs")),
            "deleted_runs": (self.deleted, TableFiles(url, f"{prefix}/deleted_runs")),
        }

    async def check(self) -> None:
        """Raises `UnavailableError` if the tables cannot be read. They may not exist yet."""
        await asyncio.to_thread(self.events.latest)

    async def append(self, segments: Sequence[Segment], *, fences: Collection[Fence]) -> int | None:
        """Appends the segments that the table lacks, in one commit, and returns its version.
        Returns None if the table has all of them. Segments without records, and segments of deleted
        runs, are left out. Raises `FencedError` if a process with a higher token has written under
        one of the names.
        """
        return await asyncio.to_thread(
            self.events.commit, fences, lambda snapshot: new_rows(self, segments, snapshot)
        )

    async def tokens(self, names: Collection[str]) -> dict[str, int]:
        """The highest tokens of commits under the names of fences, 0 for a name without one."""

        def read() -> dict[str, int]:
            snapshot = self.events.latest()
            if snapshot is None:
                return dict.fromkeys(names, 0)
            return {name: snapshot.table.transaction_version(name) or 0 for name in names}

        return await asyncio.to_thread(read)

    async def segments(self, run_ids: Sequence[str]) -> list[ArchivedSegment]:
        """The archived segments of these runs, by run and base."""
        return await asyncio.to_thread(self._read_segments, run_ids)

    async def known(self, run_ids: Sequence[str]) -> set[str]:
        """Those of the ids that archived or deleted runs have."""

        def read() -> set[str]:
            return {each.run_id for each in self._read_segments(run_ids)} | self.deleted_among(run_ids)

        return await asyncio.to_thread(read)

    async def records(
        self,
        run_id: str,
        log_id: str,
        *,
        start: int = 0,
        end: int | None = None,
        entry: Segments | None = None,
    ) -> AsyncGenerator[Record, None]:
        """The archived records of a log from `start` to `end` (exclusive), in order. A slice of
        them is in memory at a time. Raises `ArchiveDamagedError` if the archive has fewer records
        of the log than the catalog's `entry` says, or if a segment that was read whole has changed:
        a changed record may have been returned before.
        """
        snapshot = await asyncio.to_thread(self.events.latest)
        segments = [] if snapshot is None else await asyncio.to_thread(_segments, snapshot, [run_id])
        chain = [each for each in segments if each.log_id == log_id]
        if entry is not None:
            check_complete(entry, chain)
        for segment in chain:
            assert snapshot is not None
            first, last = max(start, segment.base), min(end if end is not None else segment.end, segment.end)
            if first >= last:
                continue
            is_whole, digest = (first, last) == (segment.base, segment.end), Digest()
            for part in await asyncio.to_thread(_slices, snapshot, segment, first, last):
                for record in await asyncio.to_thread(_read_slice, snapshot, segment, part):
                    if is_whole:
                        digest.add(*record)
                    yield record
            if is_whole:
                check(segment, digest)

    async def note_runs(self, runs: Sequence[ArchivedRun], *, fence: Fence) -> None:
        """Notes what the catalog says of archived runs, in one commit. Runs without archived
        records, and deleted runs, are left out. Raises `FencedError` as `append`.
        """
        await asyncio.to_thread(self._runs.add, runs, fence)

    async def run(self, run_id: str) -> ArchivedRun | None:
        """What is noted of a run. The life of a deleted one says so. None if nothing is noted."""
        return (await self.noted([run_id])).get(run_id)

    async def noted(self, run_ids: Sequence[str]) -> dict[str, ArchivedRun]:
        """What is noted of these runs, by id, as `run` returns it."""

        def read() -> dict[str, ArchivedRun]:
            deleted = {
                run_id: ArchivedRun(Life(run_id=run_id, log_id="", agent_id="", deleted=True), None)
                for run_id in self.deleted_among(run_ids)
            }
            return self._runs.find(run_ids) | deleted

        return await asyncio.to_thread(read) if run_ids else {}

    async def runs(self) -> AsyncGenerator[ArchivedRun, None]:
        """What is noted of all runs that are not deleted, each once, in the order of their ids."""
        portions = self._runs.all()
        while portion := await asyncio.to_thread(next, portions, None):
            for run in portion:
                yield run

    async def delete(self, run_ids: Sequence[str]) -> None:
        """Deletes the records of runs. Their ids stay taken. Repeating it changes nothing. The
        bytes are in the files of earlier versions until `remove_history` has removed them.
        """

        def note(snapshot: Snapshot) -> "Table | None":
            already_deleted = _deleted_in(snapshot, run_ids)
            new = sorted(set(run_ids) - already_deleted)
            now = int(time.time() * 1000)
            return table_of(DELETED_COLUMNS, {"run_id": new, "deleted_at": [now] * len(new)}) if new else None

        def delete() -> None:
            # First, so that a process that dies afterwards leaves rows of unknown runs only.
            self._delete_rows(run_ids)
            self.deleted.commit((), note)
            # The archiver reads the notes at a version of the events. So a commit that has not read
            # this note is before this change of version, or is refused because of it.
            self.events.touch()
            self._delete_rows(run_ids)

        if run_ids:
            await asyncio.to_thread(delete)

    def _delete_rows(self, run_ids: Sequence[str]) -> None:
        while _has_rows(self.events.latest(), run_ids):
            self.events.delete(f"run_id in ({literals(run_ids)})")
        self._runs.delete(run_ids)

    def _read_segments(self, run_ids: Sequence[str]) -> list[ArchivedSegment]:
        snapshot = self.events.latest()
        return _segments(snapshot, run_ids) if snapshot is not None else []

    def deleted_among(self, run_ids: Sequence[str]) -> set[str]:
        """Those of the ids that deleted runs have."""
        snapshot = self.deleted.latest()
        return _deleted_in(snapshot, run_ids) if snapshot is not None else set()


def new_rows(archive: Archive, segments: Sequence[Segment], snapshot: Snapshot) -> "Table | None":
    """The rows of those of the segments that the table lacks. None if it lacks none."""
    segments_by_key = {
        SegmentKey(each.run_id, each.log_id, each.base): each for each in segments if each.records
    }
    run_ids = sorted({key.run_id for key in segments_by_key})
    refused = {each.key for each in _segments(snapshot, run_ids)}
    deleted = archive.deleted_among(run_ids)
    missing = [
        each
        for key, each in sorted(segments_by_key.items())
        if key not in refused and key.run_id not in deleted
    ]
    return (
        events_table([row for each in missing for row in segment_rows(snapshot, each)]) if missing else None
    )


def check_complete(entry: Segments, chain: Iterable[ArchivedSegment]) -> None:
    """Raises `ArchiveDamagedError` if the segments of a log have fewer records than its entry
    says.
    """
    if entry.archived_end is None or entry.archived_records is None:
        return
    found = sum(each.record_count for each in chain if each.base < entry.archived_end)
    if found < entry.archived_records:
        raise ArchiveDamagedError(
            entry.run_id,
            reason=f"it has {found:,} of the {entry.archived_records:,} records before offset"
            f" {entry.archived_end:,}",
        )


def check(segment: ArchivedSegment, digest: Digest) -> None:
    """Raises `ArchiveDamagedError` unless these are all records of the segment, unchanged."""
    if digest.count != segment.record_count:
        reason = f"the segment at {segment.base} has {digest.count} records instead of {segment.record_count}"
        raise ArchiveDamagedError(segment.run_id, reason=reason)
    if digest.hexdigest() != segment.sha256:
        raise ArchiveDamagedError(
            segment.run_id,
            reason=f"the segment at {segment.base} has another checksum than when it was archived",
        )


def _segments(snapshot: Snapshot, run_ids: Sequence[str]) -> list[ArchivedSegment]:
    """The segments of these runs, each once, by run and base."""
    segments: dict[SegmentKey, ArchivedSegment] = {}
    for ids in portions(run_ids):
        rows = snapshot.rows(
            f"select {', '.join(SEGMENT_COLUMNS)} from events"
            f" where {is_among(ids)} and segment_base is not null"
        )
        segments |= {segment.key: segment for segment in map(ArchivedSegment._make, rows)}
    return [segments[key] for key in sorted(segments)]


def _deleted_in(snapshot: Snapshot, run_ids: Sequence[str]) -> set[str]:
    deleted: set[str] = set()
    for ids in portions(run_ids):
        deleted |= {run_id for (run_id,) in snapshot.rows(f"select run_id from events where {is_among(ids)}")}
    return deleted


def _has_rows(snapshot: Snapshot | None, run_ids: Sequence[str]) -> bool:
    return snapshot is not None and any(
        snapshot.rows(f"select run_id from events where {is_among(ids)} limit 1") for ids in portions(run_ids)
    )


def segment_rows(snapshot: Snapshot, segment: Segment) -> Iterable[Row]:
    """The rows of a segment. What its events mean depends on the events before it."""
    columns = RunColumns(segment.run_id, skipped=segment.skipped)
    for earlier in _segments(snapshot, [segment.run_id]) if segment.base else ():
        if earlier.log_id == segment.log_id and earlier.base < segment.base:
            for part in _slices(snapshot, earlier, earlier.base, earlier.end):
                for record in _read_slice(snapshot, earlier, part):
                    columns.next(record)
    named: ArchivedSegment | None = archived(segment, archived_at=int(time.time() * 1000))
    for record in segment.records:
        yield Row(segment.run_id, segment.log_id, record, named, columns.next(record))
        named = None


def _slices(snapshot: Snapshot, segment: ArchivedSegment, first: int, last: int) -> list[range]:
    """The offsets from `first` to `last` in parts that fit into memory."""
    if segment.record_bytes <= _SLICE_BYTES and segment.record_count <= _SLICE_ROWS:
        return [range(first, last)]
    slices, begin, size, count = [], first, 0, 0
    rows = snapshot.rows(
        f"select run_offset, record_bytes from events where {_within(segment, first, last)}"
        " order by run_offset"
    )
    for offset, record_bytes in rows:
        size, count = size + record_bytes, count + 1
        if size > _SLICE_BYTES or count > _SLICE_ROWS:
            if offset > begin:
                slices.append(range(begin, offset))
            begin, size, count = offset, record_bytes, 1
    return [*slices, range(begin, last)]


def _read_slice(snapshot: Snapshot, segment: ArchivedSegment, offsets: range) -> list[Record]:
    """The records of a slice. Of several rows with one offset, one is returned."""
    records: list[Record] = []
    sql = (
        f"select {', '.join(RECORD_COLUMNS)} from events"
        f" where {_within(segment, offsets.start, offsets.stop)} order by run_offset"
    )
    for offset, log_time, key, headers, value in snapshot.rows(sql):
        if not records or records[-1].offset != offset:
            pairs = tuple((header["key"], header["value"]) for header in headers)
            records.append(Record(offset, log_time, key, pairs, value))
    return records


def _within(segment: ArchivedSegment, first: int, last: int) -> str:
    return (
        f"run_id = {literal(segment.run_id)} and log_id = {literal(segment.log_id)}"
        f" and run_offset >= {first} and run_offset < {last}"
    )
