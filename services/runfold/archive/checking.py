"""Compares what the archive has with what was archived, by another library than the writer's.

A segment is unchanged if its rows have the SHA-256 that stands beside them. Of a damaged file, the
runs are named, and all others are compared.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from runfold.archive.archive import Archive, check
from runfold.archive.columns import RECORD_COLUMNS, SEGMENT_COLUMNS
from runfold.archive.duck import duckdb_connection, rows, texts
from runfold.archive.folders import work_folder
from runfold.archive.segments import ArchivedSegment, Digest, Segment, archived
from runfold_schemas.archive_errors import ArchiveDamagedError

_COLUMNS: Final = ", ".join((*SEGMENT_COLUMNS, *RECORD_COLUMNS))
_KEY: Final = len(SEGMENT_COLUMNS)


async def check_commit(archive: Archive, version: int, segments: Sequence[Segment]) -> None:
    """Compares the segments that a commit has added with these, which somebody else has read from
    the topics. Raises `ArchiveDamagedError` for the first that differs or is missing.
    """

    def check_files() -> None:
        with archive.event_files.on_this_machine(archive.event_files.added_by(version)) as paths:
            stored = {each.key: each for each in _checked(paths, None)}
        for segment in segments:
            expected = archived(segment, archived_at=0)
            each = stored.get(expected.key)
            if each is None:
                raise ArchiveDamagedError(segment.run_id, reason=f"the segment at {segment.base} is missing")
            if each._replace(archived_at=0) != expected:
                raise ArchiveDamagedError(
                    segment.run_id, reason=f"the segment at {segment.base} differs from the log"
                )

    await asyncio.to_thread(check_files)


async def damaged_runs(archive: Archive, run_ids: Sequence[str] | None = None) -> list[ArchiveDamagedError]:
    """Reads all runs, or these, and returns an error for each that is damaged or stored twice."""

    def check_files() -> list[ArchiveDamagedError]:
        snapshot = archive.events.opened()
        if snapshot is None:
            return []
        with archive.event_files.on_this_machine(snapshot.files(run_ids)) as paths:
            return list(_faults(paths, run_ids))

    return await asyncio.to_thread(check_files)


def _faults(paths: Sequence[Path], run_ids: Sequence[str] | None) -> Iterator[ArchiveDamagedError]:
    import duckdb  # noqa: PLC0415

    faults: dict[str, ArchiveDamagedError] = {}
    with suppress(duckdb.Error):
        _read_all(paths, run_ids, faults)
        yield from faults.values()
        return
    # A file cannot be read to its end, so each run is read by itself.
    ids: set[str] = set()
    readable = []
    for path in paths:
        try:
            ids |= _run_ids(path)
        except duckdb.Error as error:
            yield ArchiveDamagedError(f"in {path.name}", reason=_line(error))
            continue
        readable.append(path)
    for run_id in sorted(ids if run_ids is None else ids & set(run_ids)):
        try:
            _read_all(readable, [run_id], faults)
        except duckdb.Error as error:
            faults[run_id] = ArchiveDamagedError(run_id, reason=_line(error))
    yield from faults.values()


def _read_all(
    paths: Sequence[Path], run_ids: Sequence[str] | None, faults: dict[str, ArchiveDamagedError]
) -> None:
    for _ in _checked(paths, run_ids, faults):
        pass


def _run_ids(path: Path) -> set[str]:
    with work_folder() as folder, duckdb_connection(folder) as connection:
        sql = "select distinct run_id from read_parquet(?)"
        return {run_id for (run_id,) in rows(connection, sql, [texts([path])])}


def _checked(
    paths: Sequence[Path], run_ids: Sequence[str] | None, faults: dict[str, ArchiveDamagedError] | None = None
) -> Iterator[ArchivedSegment]:
    """The segments in the files that are unchanged. Errors of the others go into `faults`, or are
    raised.
    """
    for run_id, stored in _runs(paths, run_ids):
        try:
            yield from _segments(run_id, stored)
        except ArchiveDamagedError as error:
            if faults is None:
                raise
            faults[run_id] = error


def _runs(
    paths: Sequence[Path], run_ids: Sequence[str] | None
) -> Iterator[tuple[str, Iterator[tuple[Any, ...]]]]:
    """The rows of each run, in the order of logs and offsets."""
    if not paths:
        return
    where, parameters = "", [texts(paths)]
    if run_ids is not None:
        where, parameters = "where run_id in (select unnest(?))", [*parameters, list(run_ids)]
    sql = (
        f"select {_COLUMNS} from read_parquet(?, union_by_name=true) {where}"
        " order by run_id, log_id, run_offset"
    )
    with work_folder() as folder, duckdb_connection(folder) as connection:
        yield from groupby(rows(connection, sql, parameters), key=itemgetter(0))


def _segments(run_id: str, stored: Iterable[tuple[Any, ...]]) -> Iterator[ArchivedSegment]:
    segment: ArchivedSegment | None = None
    digest, last = Digest(), None
    for row in stored:
        place, (offset, log_time, key, headers, value) = (row[1], row[_KEY]), row[_KEY:]
        if place == last:
            raise ArchiveDamagedError(run_id, reason=f"the record at {offset} is stored twice")
        last = place
        if row[2] is not None:
            if segment is not None:
                yield _whole(segment, digest)
            segment, digest = ArchivedSegment._make(row[:_KEY]), Digest()
        if segment is None or segment.log_id != row[1] or not segment.base <= offset < segment.end:
            raise ArchiveDamagedError(run_id, reason=f"the record at {offset} is in no segment")
        pairs = tuple((header["key"], header["value"]) for header in headers)
        digest.add(offset, log_time, key, pairs, value)
    if segment is not None:
        yield _whole(segment, digest)


def _whole(segment: ArchivedSegment, digest: Digest) -> ArchivedSegment:
    check(segment, digest)
    return segment


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
