"""The table `runs`: what the catalog says of each archived run, for the time when the catalog does
not have it any more.

A run that went on and was archived again has another row, with a higher base. The last one counts.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runfold.archive.columns import empty_table, table_of
from runfold.archive.table import ArchiveTable, Fence, Snapshot, is_among, literals, portions
from runfold_schemas.catalog import ArchivedRun, Life, Segments

if TYPE_CHECKING:
    from arro3.core import Table

RUN_COLUMNS: Final = {
    "run_id": "utf8",
    "log_id": "utf8",
    "agent_id": "utf8",
    "session_id": "utf8",
    "user_id": "utf8",
    "ended": "bool",
    "status": "utf8",
    "opened_at": "int64",
    "last_at": "int64",
    "segment_end": "int64",
    "next_base": "int64",
    "life": "utf8",
    "segments": "utf8",
    "noted_at": "int64",
}
"""The columns of `runs`."""

_FILES_MAX: Final = 50
"""The number of files above which they are merged."""


class _Times(NamedTuple):
    """What the records of a run say of it. The times are milliseconds since 1970."""

    opened_at: int
    last_at: int
    status: str | None


class ArchivedRuns:
    """The table `runs` of one prefix. Its methods may raise `UnavailableError`."""

    def __init__(
        self,
        table: ArchiveTable,
        *,
        events: ArchiveTable,
        deleted_among: Callable[[Sequence[str]], set[str]],
    ) -> None:
        self._table = table
        self._events = events
        self._deleted_among = deleted_among

    def add(self, runs: Sequence[ArchivedRun], fence: Fence) -> None:
        """Adds what the table lacks, in one commit. Runs without archived records, and deleted
        runs, are left out. Raises `FencedError` if a process with a higher token has written.
        """
        if self._table.commit([fence], lambda snapshot: self._new_rows(runs, snapshot)) is not None:
            self._table.merge_small_files(_FILES_MAX)

    def find(self, run_ids: Sequence[str]) -> dict[str, ArchivedRun]:
        """The runs with these ids that the table has, by id."""
        return _runs_in(self._table.latest(), run_ids)

    def all(self) -> Iterator[list[ArchivedRun]]:
        """All runs, each once, some thousand at a time."""
        snapshot, last = self._table.latest(), None
        for rows in (
            snapshot.portions(f"{_SELECT} order by run_id, next_base desc, segment_end desc, noted_at desc")
            if snapshot
            else ()
        ):
            portion: list[ArchivedRun] = []
            for run in map(_run, rows):
                if run.life.run_id != last:
                    portion.append(run)
                last = run.life.run_id
            if portion:
                yield portion

    def delete(self, run_ids: Sequence[str]) -> None:
        """Deletes the rows of runs whose deletion is noted."""
        if self._table.latest() is None:
            return
        # As for the events: what is added from here on was decided with the note.
        self._table.touch()
        while _runs_in(self._table.latest(), run_ids):
            self._table.delete(f"run_id in ({literals(run_ids)})")

    def _new_rows(self, runs: Sequence[ArchivedRun], snapshot: Snapshot) -> "Table | None":
        run_ids = sorted({run.life.run_id for run in runs})
        known, deleted = _runs_in(snapshot, run_ids), self._deleted_among(run_ids)
        new = {
            run.life.run_id: run
            for run in runs
            if run.life.run_id not in deleted and _is_news(run, known.get(run.life.run_id))
        }
        times = _times_in(self._events.latest(), sorted(new))
        archived = [run for run in new.values() if (run.life.run_id, run.life.log_id) in times]
        return _table_of(archived, times) if archived else None


_SELECT: Final = "select life, segments from events"
"""A snapshot calls every table so."""


def _run(row: tuple[Any, ...]) -> ArchivedRun:
    life, segments = row
    return ArchivedRun(Life.model_validate_json(life), Segments.model_validate_json(segments))


def _runs_in(snapshot: Snapshot | None, run_ids: Sequence[str]) -> dict[str, ArchivedRun]:
    found: dict[str, ArchivedRun] = {}
    for ids in portions(run_ids) if snapshot is not None else ():
        assert snapshot is not None
        rows = snapshot.rows(f"{_SELECT} where {is_among(ids)} order by next_base, segment_end, noted_at")
        found |= {run.life.run_id: run for run in map(_run, rows)}
    return found


def _is_news(run: ArchivedRun, known: ArchivedRun | None) -> bool:
    """Whether a row says more than the one that is known of the run."""
    if known is None or known.segments is None or run.segments is None:
        return known is None
    before, now = ((each.base, each.end) for each in (known.segments, run.segments))
    return known.life.log_id == run.life.log_id and (before < now or (before == now and known != run))


def _times_in(events: Snapshot | None, run_ids: Sequence[str]) -> dict[tuple[str, str], _Times]:
    times: dict[tuple[str, str], _Times] = {}
    for ids in portions(run_ids) if events is not None else ():
        assert events is not None
        rows = events.rows(
            "select run_id, log_id, min(log_time), max(log_time),"
            " last_value(status order by run_offset) filter (where status is not null)"
            f" from events where {is_among(ids)} group by run_id, log_id"
        )
        times |= {(run_id, log_id): _Times(*rest) for run_id, log_id, *rest in rows}
    return times


def _table_of(runs: Sequence[ArchivedRun], times: dict[tuple[str, str], _Times]) -> "Table":
    rows = [
        {
            **run.life.model_dump(),
            **times[run.life.run_id, run.life.log_id]._asdict(),
            "segment_end": run.segments.end,
            "next_base": run.segments.base,
            "life": run.life.model_dump_json(),
            "segments": run.segments.model_dump_json(),
            "noted_at": int(time.time() * 1000),
        }
        for run in runs
        if run.segments is not None
    ]
    return table_of(RUN_COLUMNS, {name: [row[name] for row in rows] for name in RUN_COLUMNS})


def empty_runs() -> "Table":
    """The table without rows."""
    return empty_table(RUN_COLUMNS)
