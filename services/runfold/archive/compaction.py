"""Makes few large files of many small ones, sorted by run. So a read of one run needs one file.

The rows are sorted by DuckDB, which uses the disk for what does not fit into its memory. The small
files are given up in the same commit that takes the large one, after its rows were compared.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runfold.archive.archive import Archive
from runfold.archive.columns import RECORD_COLUMNS, SEGMENT_COLUMNS
from runfold.archive.duck import duckdb_connection, texts
from runfold.archive.folders import work_folder
from runfold.archive.table import ROW_GROUP_ROWS, Snapshot
from runfold_schemas.archive_errors import ArchiveDamagedError

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction
    from duckdb import DuckDBPyConnection

TARGET_BYTES: Final = 256 * 1024 * 1024
"""The largest sum of the files that become one."""

SMALL_BYTES: Final = 64 * 1024 * 1024
"""A file of this size stays."""

_COMPARED: Final = ", ".join({*SEGMENT_COLUMNS, *RECORD_COLUMNS} - {"archived_at"})


class _File(NamedTuple):
    path: str
    size: int
    changed_at: int


async def compact(
    archive: Archive,
    *,
    files_min: int = 2,
    small_bytes: int = SMALL_BYTES,
    target_bytes: int = TARGET_BYTES,
) -> int:
    """Makes one file of small files, and returns their number, 0 if there are fewer than
    `files_min`. Call it again until it returns 0. Others may append meanwhile. If rows of the small
    files are deleted meanwhile, nothing is changed, and the next call begins anew. A record that is
    stored twice is stored once afterwards. Raises `ArchiveDamagedError` if a small file is damaged.
    """

    def compact_files() -> int:
        snapshot = archive.events.opened()
        chosen = _small_files(snapshot, small_bytes, target_bytes) if snapshot is not None else []
        if len(chosen) < files_min:
            return 0
        with (
            work_folder() as folder,
            archive.event_files.on_this_machine([each.path for each in chosen]) as sources,
        ):
            target = folder / f"part-{uuid.uuid4()}.zstd.parquet"
            with duckdb_connection(folder) as connection:
                statistics = _merge(connection, sources, target)
            added = _added(target, statistics)
            archive.event_files.put(target.name, target)
        # Without the commit, the new file is removed as those of other failed commits are.
        archive.events.change(lambda newest: _replace(newest, chosen, added))
        return len(chosen)

    return await asyncio.to_thread(compact_files)


def _small_files(snapshot: Snapshot, small_bytes: int, target_bytes: int) -> list[_File]:
    """The smallest files that together have the target's size at most."""
    actions = snapshot.table.get_add_actions(flatten=True)
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "modification_time"))
    chosen, size = [], 0
    for path, size_bytes, changed_at in sorted(zip(*columns, strict=True), key=lambda each: each[1]):
        size += size_bytes
        if size_bytes >= small_bytes or size > target_bytes:
            break
        chosen.append(_File(path, size_bytes, changed_at))
    return chosen


def _merge(connection: "DuckDBPyConnection", sources: Sequence[Path], target: Path) -> tuple[Any, ...]:
    """Writes the rows of the sources into the target, sorted. Returns the number of rows, and the
    smallest and the largest run and offset. Raises `ArchiveDamagedError` unless the target has the
    rows of the sources.

    Its footer has the smallest and the largest texts, unlike in the other files. They are gone with
    the file, as its rows are. The rows are sorted, so the smallest and the largest ids of a group
    say what a filter of ids would say.
    """
    import duckdb  # noqa: PLC0415

    try:
        # Finding doubles takes memory for all columns, and they are rare.
        rows = "distinct on (run_id, log_id, run_offset) *" if _has_doubles(connection, sources) else "*"
        connection.execute(
            f"copy (select {rows} from read_parquet(?, union_by_name=true)"
            f" order by run_id, log_id, run_offset) to '{target}'"
            f" (format parquet, compression zstd, row_group_size {ROW_GROUP_ROWS})",
            [texts(sources)],
        )
        before, after = (_sums(connection, paths) for paths in (sources, [target]))
    except duckdb.Error as error:
        raise ArchiveDamagedError("of many", reason=str(error).partition("\n")[0][:200]) from error
    if before != after:
        raise ArchiveDamagedError("of many", reason="a compacted file differs from its sources")
    return after[1:]


def _has_doubles(connection: "DuckDBPyConnection", paths: Sequence[Path]) -> bool:
    sql = (
        "select count(*) > count(distinct (run_id, log_id, run_offset))"
        " from read_parquet(?, union_by_name=true)"
    )
    answer = connection.execute(sql, [texts(paths)]).fetchone()
    return answer is not None and bool(answer[0])


def _sums(connection: "DuckDBPyConnection", paths: Sequence[Path]) -> tuple[Any, ...]:
    """A sum over all rows in any order, and the statistics of the rows."""
    sql = (
        "select sum(hash), count(*), min(run_id), max(run_id), min(run_offset), max(run_offset) from ("
        f"select distinct run_id, run_offset, hash({_COMPARED}) as hash"
        " from read_parquet(?, union_by_name=true))"
    )
    sums = connection.execute(sql, [texts(paths)]).fetchone()
    assert sums is not None
    return sums


def _added(target: Path, statistics: tuple[Any, ...]) -> "AddAction":
    from deltalake.transaction import AddAction  # noqa: PLC0415

    count, first_run, last_run, first_offset, last_offset = statistics
    stats = {
        "numRecords": count,
        "minValues": {"run_id": first_run, "run_offset": first_offset},
        "maxValues": {"run_id": last_run, "run_offset": last_offset},
        "nullCount": {"run_id": 0, "run_offset": 0},
    }
    stat = target.stat()
    return AddAction(target.name, stat.st_size, {}, int(stat.st_mtime * 1000), False, json.dumps(stats))


def _replace(snapshot: Snapshot, removed: Sequence[_File], added: "AddAction") -> None:
    """Takes the new file in the place of the others, if the newest version has all of them."""
    from deltalake import CommitProperties  # noqa: PLC0415

    if not {each.path for each in removed} <= set(snapshot.files()):
        return
    actions: list[AddAction | RemoveAction] = [added, *map(_removed, removed)]
    snapshot.table.create_write_transaction(
        actions,
        "append",
        snapshot.table.schema(),
        # Rows that are deleted meanwhile would come back, so the commit is refused then.
        commit_properties=CommitProperties(max_commit_retries=0),
    )


def _removed(file: _File) -> "RemoveAction":
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    return RemoveAction(file.path, False, int(time.time() * 1000), file.size, {})
