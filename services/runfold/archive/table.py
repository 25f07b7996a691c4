"""One Delta table: its versions, queries, and commits that happen at one version only.

Two processes that commit at the same version are ordered by the store: it takes the name of the
next version once. The other process reads what is new, and decides again.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from runfold.archive.duck import duckdb_cursor
from runfold.secret_urls import SecretUrl, without_secrets
from runfold_schemas.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from arro3.core import Table
    from deltalake import DeltaTable, WriterProperties

_CONFIGURATION: Final[Mapping[str, str | None]] = {
    # The log of the table has the smallest and the largest values of these columns only, so that it
    # has nothing of what was said.
    "delta.dataSkippingStatsColumns": "run_id,run_offset,deleted_at",
    "delta.checkpointInterval": "50",
    # Versions are removed by `remove_history`.
    "delta.enableExpiredLogCleanup": "false",
}

_ResultT = TypeVar("_ResultT")

_STORAGE: Final = {"timeout": "120s", "connect_timeout": "5s"}

_ATTEMPTS: Final = 50

ROW_GROUP_ROWS: Final = 20_480
"""A read of one run reads at least one group of rows. DuckDB makes groups of whole vectors, which
have 2,048 rows.
"""

_FILE_BYTES: Final = 256 * 1024 * 1024

_ROWS_AT_ONCE: Final = 5_000

_IDS_FEW: Final = 20
_IDS_MANY: Final = 500
"""The numbers of ids in a query. Of few ids, a query passes over each part of a file that has none
of them. Of many, only over parts whose ids are all smaller, or all larger.
"""

MISSING: Final = "the archive needs the packages deltalake and duckdb: install 'runfold[archive]'"


class Fence(NamedTuple):
    """Lets one process at a time write under a name: the one with the highest token."""

    name: str
    token: int


class FencedError(Exception):
    """Another process has written under the name with a higher token."""

    def __init__(self, name: str) -> None:
        super().__init__(f"another process writes as {name}")
        self.name = name


class Snapshot:
    """The rows of a table at one version, also if the table is moved to a later one."""

    def __init__(self, table: "DeltaTable") -> None:
        from deltalake import QueryBuilder  # noqa: PLC0415

        self.table = table
        # A slice has few rows, so further threads would only wait.
        builder = QueryBuilder({"datafusion.execution.target_partitions": "2"})
        self._query = builder.register("events", table)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query, in which the table is called `events`."""
        with table_errors(), duckdb_cursor() as cursor:
            answer = self._query.execute(sql)  # noqa: F841  # DuckDB finds it by name
            # DuckDB lets other threads of Python run meanwhile, and deltalake does not.
            return cursor.execute("select * from answer").fetchall()

    def portions(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        """The same, some thousand rows at a time."""
        with table_errors(), duckdb_cursor() as cursor:
            answer = self._query.execute(sql)  # noqa: F841  # DuckDB finds it by name
            cursor.execute("select * from answer")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield rows

    def files(self, run_ids: Sequence[str] | None = None) -> list[str]:
        """The paths of the table's files, below its folder: all, or those that may have rows of
        these runs.
        """
        with table_errors():
            actions = self.table.get_add_actions(flatten=True)
            names = ("path", "min.run_id", "max.run_id")
            files = list(zip(*(actions[name].to_pylist() for name in names), strict=True))
        if run_ids is None:
            return [path for path, _, _ in files]
        return [
            path
            for path, first, last in files
            if first is None or last is None or any(first <= each <= last for each in run_ids)
        ]


class ArchiveTable:
    """A table of the archive. Its methods wait for the store, and may raise `UnavailableError`."""

    def __init__(self, url: str, columns: Callable[[], "Table"]) -> None:
        self._url = url
        self._columns = columns
        self._read: DeltaTable | None = None
        self._reading = Lock()

    def latest(self) -> Snapshot | None:
        """The newest version, to read its rows. None if there is no table yet."""
        from deltalake.exceptions import DeltaError  # noqa: PLC0415

        with self._reading, table_errors():
            try:
                if self._read is not None:
                    self._read.update_incremental()
            except DeltaError:
                self._read = None  # it may have been restored from an older copy
            if self._read is None:
                self._read = self._opened()
            return Snapshot(self._read) if self._read is not None else None

    def opened(self) -> Snapshot | None:
        """The newest version, in a table that nobody else moves. None if there is no table yet."""
        with table_errors():
            table = self._opened()
            return Snapshot(table) if table is not None else None

    def commit(self, fences: Collection[Fence], make: Callable[[Snapshot], "Table | None"]) -> int | None:
        """Appends the rows that `make` returns for the newest version. Returns the version of the
        commit, or None if `make` returns None. If anybody else commits meanwhile, `make` is called
        again. Raises `FencedError` for the first fence of another process.
        """
        from deltalake import CommitProperties, Transaction, write_deltalake  # noqa: PLC0415

        transactions = [Transaction(*fence) for fence in fences]

        def append(snapshot: Snapshot) -> int | None:
            table = snapshot.table
            for fence in fences:
                if (table.transaction_version(fence.name) or 0) > fence.token:
                    raise FencedError(fence.name)
            rows = make(snapshot)
            if rows is None:
                return None
            version = table.version() + 1
            write_deltalake(
                table,
                rows,
                mode="append",
                schema_mode="merge",
                target_file_size=_FILE_BYTES,
                writer_properties=writer_properties(),
                # The commit has the version after the one that `make` has read, or it is refused.
                commit_properties=CommitProperties(max_commit_retries=0, app_transactions=transactions),
            )
            return version

        return self.change(append)

    def delete(self, predicate: str) -> None:
        """Deletes rows from the newest version."""
        from deltalake import CommitProperties  # noqa: PLC0415

        def delete(snapshot: Snapshot) -> None:
            once = CommitProperties(max_commit_retries=0)
            snapshot.table.delete(predicate, writer_properties=writer_properties(), commit_properties=once)

        self.change(delete)

    def merge_small_files(self, files_max: int) -> None:
        """Makes one file of small ones, if there are more than `files_max`."""
        from deltalake import CommitProperties  # noqa: PLC0415

        def merge(snapshot: Snapshot) -> None:
            if len(snapshot.files()) > files_max:
                once = CommitProperties(max_commit_retries=0)
                snapshot.table.optimize.z_order(
                    ["run_id"], writer_properties=writer_properties(), commit_properties=once
                )

        self.change(merge)

    def touch(self) -> int:
        """Makes a version with the same rows, and returns its number."""
        from deltalake import CommitProperties, Transaction  # noqa: PLC0415

        def touch(snapshot: Snapshot) -> int:
            table, version = snapshot.table, snapshot.table.version() + 1
            number = Transaction("versions", version)
            once = CommitProperties(max_commit_retries=0, app_transactions=[number])
            table.create_write_transaction([], "append", table.schema(), commit_properties=once)
            return version

        return self.change(touch)

    def change(self, change: Callable[[Snapshot], _ResultT]) -> _ResultT:
        """Makes a change of the newest version. It is made again if others commit meanwhile."""
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415

        for _ in range(_ATTEMPTS):
            try:
                with table_errors():
                    # A table of its own, because a read of another thread would move its version.
                    return change(Snapshot(self._opened() or self._created()))
            except CommitFailedError:
                time.sleep(random.random() * 0.1)  # noqa: S311  # so that two processes do not keep step
        raise UnavailableError("the archive", reason=f"others committed first {_ATTEMPTS} times")

    def _opened(self) -> "DeltaTable | None":
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

        try:
            return DeltaTable(self._url, storage_options=_STORAGE)
        except TableNotFoundError:
            return None

    def _created(self) -> "DeltaTable":
        from deltalake import DeltaTable  # noqa: PLC0415

        # If two processes create the table, one of them finds it.
        DeltaTable.create(
            self._url,
            schema=self._columns().schema,
            mode="ignore",
            configuration=_CONFIGURATION,
            storage_options=_STORAGE,
        )
        return DeltaTable(self._url, storage_options=_STORAGE)


def writer_properties() -> "WriterProperties":
    """How files are written."""
    from deltalake import BloomFilterProperties, ColumnProperties, WriterProperties  # noqa: PLC0415

    return WriterProperties(
        compression="ZSTD",
        compression_level=3,
        max_row_group_size=ROW_GROUP_ROWS,
        column_properties={
            # A run is found although a file has runs with smaller and larger ids.
            "run_id": ColumnProperties(bloom_filter_properties=BloomFilterProperties(True, fpp=0.01)),
            "value": ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE"),
            "text": ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE"),
            "key": ColumnProperties(statistics_enabled="NONE"),
        },
    )


def literal(text: str) -> str:
    """The text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def literals(texts: Sequence[str]) -> str:
    return ", ".join(map(literal, texts))


def portions(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """The ids in the order in which files have them, for one query each."""
    ordered, at_once = sorted(ids), _IDS_FEW if len(ids) <= _IDS_FEW else _IDS_MANY
    return (ordered[first : first + at_once] for first in range(0, len(ordered), at_once))


def is_among(ids: Sequence[str]) -> str:
    """The condition that a row's run is one of these, which are in order."""
    first, last = literal(ids[0]), literal(ids[-1])
    return f"run_id >= {first} and run_id <= {last} and run_id in ({literals(ids)})"


def check_libraries() -> None:
    """Raises `ConfigurationError` if the libraries of the table are not installed."""
    if not all(map(find_spec, ("deltalake", "duckdb"))):
        raise ConfigurationError(MISSING)


@contextmanager
def table_errors() -> Iterator[None]:
    """Errors of both libraries inside become errors of ours. All others are defects, and pass."""
    from deltalake.exceptions import CommitFailedError, DeltaError  # noqa: PLC0415
    from duckdb import Error as DuckDbError  # noqa: PLC0415

    try:
        yield
    except CommitFailedError:
        raise
    except Exception as error:
        # deltalake raises errors of Arrow as `Exception` itself.
        if not isinstance(error, DeltaError | DuckDbError | OSError) and type(error) is not Exception:
            raise
        reason = without_secrets(str(error).partition("\n")[0])[:300] or type(error).__name__
        raise UnavailableError("the archive", reason=reason) from error


def url_of(url: SecretUrl, *names: str) -> str:
    """The URL of a table under the archive's URL."""
    return "/".join([url.get_secret_value().rstrip("/"), *names])
