"""State: a document for each scope and key, with the offset of the event that set the value. Values
are stored as JSON, exact to the digit.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import zstandard
from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import upsert_where
from runfold_projections.state import Value

_compress = zstandard.ZstdCompressor(level=1).compress
_decompress = zstandard.ZstdDecompressor().decompress


class Entry(NamedTuple):
    scope: str
    key: str
    value: Value


class StateStore:
    """The state of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._values = database[f"values.{edition}"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._values.create_indexes([IndexModel([("scope", ASCENDING)])])

    async def save(self, entries: Iterable[Entry]) -> None:
        """Saves each value over a value with a lower offset."""
        operations = [
            UpdateOne(
                {"_id": _id(entry.scope, entry.key), "offset": {"$lt": entry.value.offset}},
                {
                    "$set": {
                        "scope": entry.scope,
                        "key": entry.key,
                        "json": _pack(entry.value.value),
                        "offset": entry.value.offset,
                    }
                },
                upsert=True,
            )
            for entry in entries
        ]
        await upsert_where(self._values, operations)

    async def read(self, scopes: Sequence[str]) -> dict[str, dict[str, Value]]:
        """The values of each scope, by key."""
        values: dict[str, dict[str, Value]] = defaultdict(dict)
        with mongo_errors():
            async for document in self._values.find({"scope": {"$in": list(scopes)}}):
                entry = _entry(document)
                values[entry.scope][entry.key] = entry.value
        return {scope: values[scope] for scope in scopes}

    async def delete(self, scopes: Sequence[str]) -> None:
        with mongo_errors():
            await self._values.delete_many({"scope": {"$in": list(scopes)}})

    async def all(self) -> list[Entry]:
        """All values, for `verify`."""
        with mongo_errors():
            return [_entry(document) async for document in self._values.find({})]


def own_scope(log_id: str) -> str:
    """The scope of a run's own keys, whose values the run's log decides."""
    return f"log:{log_id}"


def _id(scope: str, key: str) -> str:
    # The length of the scope says where the key begins, whatever characters both have.
    return f"{len(scope)}:{scope}{key}"


def _entry(document: Mapping[str, Any]) -> Entry:
    value = Value(_unpack(document["json"]), document["offset"])
    return Entry(document["scope"], document["key"], value)


def _pack(value: Any) -> bytes:
    # Compressed, because encoding a number again can make it several times as long, and MongoDB
    # limits a document to 16 MB.
    return _compress(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _unpack(packed: bytes) -> Any:
    return json.loads(_decompress(packed))
