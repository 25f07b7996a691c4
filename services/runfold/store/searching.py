"""All documents of a database as texts, to search them for names."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import zstandard

from runfold.store.database import Database
from runfold.store.page import read_document
from runfold.store.unavailable import mongo_errors
from runfold_schemas.codec import Record


class DocumentText(NamedTuple):
    """The texts of one document. What is neither a record, a value nor an event in it are ids,
    times and counts.
    """

    id: str
    text: bytes
    record: bytes | None
    """What a fold stored, as JSON."""
    value: bytes | None
    """A value of state, as JSON."""
    events: list[bytes]
    """The records of a page. Damaged bytes are as they are."""


async def collections(database: Database) -> list[str]:
    """The names of all collections."""
    with mongo_errors():
        return sorted(await database.list_collection_names())


async def texts(database: Database, collection: str) -> AsyncIterator[DocumentText]:
    """The texts of every document of a collection, with what is compressed in it."""
    with mongo_errors():
        async for document in database[collection].find({}):
            record, value, records = document.get("record"), _value(document), _records(document)
            parts = [*_strings(document), value or b"", *_strings(records)]
            yield DocumentText(
                str(document["_id"]),
                b"\n".join(parts),
                record.encode(errors="surrogatepass") if isinstance(record, str) else None,
                value,
                [each.value or b"" for each in records],
            )


def _strings(value: Any) -> Iterator[bytes]:
    if isinstance(value, str):
        yield value.encode(errors="surrogatepass")
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _value(document: Mapping[str, Any]) -> bytes | None:
    packed = document.get("json")
    if not isinstance(packed, bytes):
        return None
    try:
        return zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError:
        return packed


def _records(document: Mapping[str, Any]) -> list[Record]:
    body = document.get("body")
    if not isinstance(body, bytes):
        return []
    with suppress(Exception):  # a document of another form raises any error
        return read_document(document).records()
    return [Record(0, 0, None, (), body)]
