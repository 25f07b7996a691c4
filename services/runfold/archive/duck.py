"""DuckDB, the second library. It reads and sorts the files that the library of the table wrote."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_CONFIGURATION: Final[dict[str, str | bool | int | float | list[str]]] = {
    # Nothing is loaded from other hosts.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "1GB",
    "threads": "2",
}

_ROWS_AT_ONCE: Final = 5_000

_opening: Final = Lock()


@contextmanager
def duckdb_connection(temporary: Path) -> "Iterator[DuckDBPyConnection]":
    """A database in memory. What does not fit goes into a folder."""
    import duckdb  # noqa: PLC0415

    connection = duckdb.connect(config={**_CONFIGURATION, "temp_directory": str(temporary)})
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def duckdb_cursor() -> "Iterator[DuckDBPyConnection]":
    """A connection to the one database in memory that all reads of the process share."""
    with _opening:
        cursor = _shared_database().cursor()
    try:
        yield cursor
    finally:
        cursor.close()


@cache
def _shared_database() -> "DuckDBPyConnection":
    # Making a database takes 20 ms.
    import duckdb  # noqa: PLC0415

    return duckdb.connect(config=_CONFIGURATION)


def rows(connection: "DuckDBPyConnection", sql: str, parameters: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of a query, some at a time."""
    answer = connection.execute(sql, list(parameters))
    while portion := answer.fetchmany(_ROWS_AT_ONCE):
        yield from portion


def texts(paths: Sequence[Path]) -> list[str]:
    """Paths for `read_parquet`, in which nothing is a pattern."""
    return [str(path).replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") for path in paths]
