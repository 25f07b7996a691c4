"""Searches every file of an archive for names: those of earlier versions and of commits that failed
too.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from runfold.archive.archive import Archive
from runfold.archive.duck import duckdb_connection, rows, texts
from runfold.archive.files import TableFiles
from runfold.archive.folders import work_folder
from runfold_schemas.errors import UnavailableError

Find = Callable[[bytes], str | None]
"""Returns the first name in a text."""

_COLUMNS: Final = "columns(lambda name: name <> 'time')"
"""All columns but one, which has no names and for which DuckDB needs a further package."""


class FoundText(NamedTuple):
    """A row, or a whole file, that has a name."""

    where: str
    name: str
    value: bytes | None
    """The record's value, if it is a row of one."""


class SearchedFile(NamedTuple):
    """A file that was searched."""

    left: int
    """The number of files after it."""
    path: str
    """Below the folder of the archive."""
    found: list[FoundText]


async def search_files(archive: Archive, find: Find) -> AsyncGenerator[SearchedFile, None]:
    """Searches all files that there are when it begins. Raises `UnavailableError`."""
    listed = [
        (name, files, each.path)
        for name, (_, files) in archive.tables.items()
        for each in await asyncio.to_thread(files.listed)
    ]
    for number, (name, files, path) in enumerate(listed, start=1):
        found = await asyncio.to_thread(_search, files, path, find)
        yield SearchedFile(len(listed) - number, f"{name}/{path}", found)


def _search(files: TableFiles, path: str, find: Find) -> list[FoundText]:
    from duckdb import Error as DuckDbError  # noqa: PLC0415  # few installations have it

    try:
        with files.on_this_machine([path]) as [file]:
            if path.endswith(".parquet"):
                try:
                    return list(_in_rows(file, find))
                except DuckDbError:
                    pass  # nobody has finished it, or it is removed
            name = find(file.read_bytes())
            return [FoundText("the file", name, None)] if name is not None else []
    except FileNotFoundError:
        return []  # somebody has removed it meanwhile
    except UnavailableError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        raise


def _in_rows(file: Path, find: Find) -> Iterator[FoundText]:
    with work_folder() as folder, duckdb_connection(folder) as connection:
        answer = connection.execute(f"select {_COLUMNS} from read_parquet(?) limit 0", [texts([file])])
        names = [column[0] for column in answer.description or ()]
        for row in rows(connection, f"select {_COLUMNS} from read_parquet(?)", [texts([file])]):
            cells = dict(zip(names, row, strict=True))
            if (name := find(b"\n".join(_texts_of(row)))) is not None:
                yield FoundText(_place_of(cells), name, cells.get("value"))


def _place_of(cells: Mapping[str, Any]) -> str:
    """Where a row is. The log of a table has rows of no run, and other tables rows of no record."""
    run_id, offset = cells.get("run_id"), cells.get("run_offset")
    if run_id is None:
        return "the file"
    return f"run {run_id}" if offset is None else f"run {run_id}, offset {offset}"


def _texts_of(cell: Any) -> Iterator[bytes]:
    match cell:
        case bytes():
            yield cell
        case str():
            yield cell.encode(errors="surrogatepass")
        case dict():
            yield from _texts_of(tuple(cell.values()))
        case list() | tuple():
            for each in cell:
                yield from _texts_of(each)
