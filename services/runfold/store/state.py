"""State: a document for each scope and key, with the offset that set it. What a key holds is kept
as JSON, exact to the digit.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
        """Saves each value over one that was set before it."""
        operations = [
            UpdateOne(
                {"_id": _id(entry.scope, entry.key), "offset": {"$lt": entry.value.offset}},
                {
                    "$set": {
                        "scope": entry.scope,
                        "key": entry.key,
                        "json": _packed(entry.value.value),
                        "offset": entry.value.offset,
                    }
                },
                upsert=True,
            )
            for entry in entries
        ]
        await upsert_where(self._values, operations)

    async def read(self, scopes: Sequence[str]) -> dict[str, dict[str, Value]]:
        """What each scope holds, by key."""
        found: dict[str, dict[str, Value]] = defaultdict(dict)
        with mongo_errors():
            async for one in self._values.find({"scope": {"$in": list(scopes)}}):
                found[one["scope"]][one["key"]] = Value(_unpacked(one["json"]), one["offset"])
        return {scope: found[scope] for scope in scopes}

    async def delete(self, scopes: Sequence[str]) -> None:
        with mongo_errors():
            await self._values.delete_many({"scope": {"$in": list(scopes)}})

    async def all(self) -> list[Entry]:
        """Every value there is: for `verify`."""
        with mongo_errors():
            return [
                Entry(one["scope"], one["key"], Value(_unpacked(one["json"]), one["offset"]))
                async for one in self._values.find({})
            ]


def own_scope(log_id: str) -> str:
    """The scope of the keys that a run's own log decides."""
    return f"log:{log_id}"


def _id(scope: str, key: str) -> str:
    # The length tells where the key begins, whatever characters either has.
    return f"{len(scope)}:{scope}{key}"


def _packed(value: Any) -> bytes:
    # Compressed, since a number may be written several times as long as it came, and a document
    # ends at 16 MB.
    return _compress(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _unpacked(packed: bytes) -> Any:
    return json.loads(_decompress(packed))
