"""Runs as segments for the archive, and what an archive has on disk."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
from tests.builders import event

from runfold.archive.archive import Archive
from runfold.archive.segments import Segment
from runfold.archive.table import Fence
from runfold.secret_urls import SecretUrl
from runfold_schemas.codec import Record, encode, headers
from runfold_schemas.events import AnyEvent, UserMessage

LOG_ID = "0" * 32
_VALUES = "columns(lambda name: name <> 'time')"
"""All columns but one, for which DuckDB needs a further package."""

FENCE = Fence("archiver-0", 1)


def archive_in(folder: Path) -> Archive:
    """The archive in a directory."""
    return Archive(SecretUrl(f"file://{folder}"), prefix="runfold")


def record_of(offset: int, each: AnyEvent) -> Record:
    """The record of an event, as a publisher makes it."""
    return Record(
        offset, 1_700_000_000_000 + offset, b"key", tuple(headers(each, source="test")), encode(each)
    )


def segment_of(run_id: str, *messages: str, base: int = 0) -> Segment:
    """A segment with one user message for each text."""
    records = [
        record_of(base + index, event(UserMessage(message=message), run_id=run_id))
        for index, message in enumerate(messages)
    ]
    return Segment(run_id, LOG_ID, base, base + len(records), records)


async def read(archive: Archive, run_id: str, log_id: str = LOG_ID) -> list[Record]:
    """All archived records of a run."""
    return [record async for record in archive.records(run_id, log_id)]


def everything_in(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """The bytes of every file below a folder: as they are, and as the values in its pages."""
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content += repr(duckdb.sql(f"select * from parquet_metadata('{path}')").fetchall()).encode()
            content += repr(duckdb.sql(f"select {_VALUES} from read_parquet('{path}')").fetchall()).encode()
        yield path, content


def flip_byte(path: Path, at: int) -> None:
    """Changes one byte of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
