"""State: a document for each scope and key, with the offset of the event that set the value. Values
are stored as JSON, exact to the digit.

A deleted value stays for an hour as its offset, so that a late owner of a partition cannot restore
it.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import zstandard
from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.damage import damaged
from runfold.store.database import Database
from runfold.store.lazy_indexes import LazyIndexes
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import FORGOTTEN, upsert_where
from runfold_projections.state import Value
from runfold_schemas.errors import DamagedError

# Decompressing compares the checksum, so a changed byte is found.
_compress = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
_decompress = zstandard.ZstdDecompressor().decompress


_NO_SCOPE = ""
"""The scope of deleted values. A value that is set again has its own scope, and is kept."""

_REMOVED = IndexModel(
    [("removed", ASCENDING)], expireAfterSeconds=0, partialFilterExpression={"scope": _NO_SCOPE}
)

_LAST_CHARACTER = "\U0010ffff"


class Entry(NamedTuple):
    scope: str
    key: str
    value: Value


class StateStore:
    """The state of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._values = database[f"values.{edition}"]
        self.indexes: Final = LazyIndexes(self._values, [IndexModel([("scope", ASCENDING)]), _REMOVED])

    async def create_indexes(self) -> None:
        await self.indexes.create()

    async def save(self, entries: Iterable[Entry]) -> None:
        """Saves each value over a value with a lower offset."""
        operations = [
            UpdateOne(
                {"_id": value_id(entry.scope, entry.key), "offset": {"$lt": entry.value.offset}},
                {"$set": _fields(entry)},
                upsert=True,
            )
            for entry in entries
        ]
        if operations:
            await self.indexes.before_insert()
        await upsert_where(self._values, operations)

    async def read(self, scopes: Sequence[str]) -> dict[str, dict[str, Value]]:
        """The values of each scope, by key."""
        values: dict[str, dict[str, Value]] = defaultdict(dict)
        with mongo_errors():
            async for document in self._values.find({"scope": {"$in": list(scopes)}}):
                entry = entry_of(document)
                values[entry.scope][entry.key] = entry.value
        return {scope: values[scope] for scope in scopes}

    async def documents(self, scope: str) -> list[dict[str, Any]]:
        """The stored documents of a scope as they are, also if they are damaged."""
        begin = value_id(scope, "")
        with mongo_errors():
            cursor = self._values.find({"_id": {"$gte": begin, "$lt": begin + _LAST_CHARACTER}})
            return [document async for document in cursor]

    async def copy(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Stores documents of another edition, where there are none."""
        for document in documents:
            await self.indexes.before_insert()
            with mongo_errors():
                await self._values.update_one(
                    {"_id": document["_id"]}, {"$setOnInsert": document}, upsert=True
                )

    async def put(self, entry: Entry, *, stored: Mapping[str, Any]) -> None:
        """Stores a value in the place of the document `stored`, unless that has changed."""
        offset = stored.get("offset", {"$exists": False})
        with mongo_errors():
            await self._values.update_one({"_id": stored["_id"], "offset": offset}, {"$set": _fields(entry)})

    async def delete_documents(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Deletes these documents, unless they have changed."""
        for document in documents:
            offset = document.get("offset", {"$exists": False})
            with mongo_errors():
                await self._values.delete_one({"_id": document["_id"], "offset": offset})

    async def delete_before(self, scope: str, offset: int, keys: Collection[str] | None = None) -> None:
        """Deletes the values of a scope that were set before this offset, or only those of some
        keys.
        """
        query: dict[str, Any] = {"scope": scope, "offset": {"$lt": offset}}
        if keys is not None:
            query["_id"] = {"$in": [value_id(scope, key) for key in keys]}
        change = {
            "$set": {"scope": _NO_SCOPE, "offset": offset, "removed": datetime.now(UTC) + FORGOTTEN},
            "$unset": {"key": "", "json": ""},
        }
        with mongo_errors():
            await self._values.update_many(query, change)

    async def scopes_before(self, offsets: Mapping[str, int]) -> set[str]:
        """Those of these scopes that have a value from before this offset."""
        query = {"scope": {"$in": list(offsets)}}
        with mongo_errors():
            cursor = self._values.find(query, {"scope": 1, "offset": 1})
            return {each["scope"] async for each in cursor if each["offset"] < offsets[each["scope"]]}

    async def delete(self, scopes: Sequence[str]) -> None:
        with mongo_errors():
            await self._values.delete_many({"scope": {"$in": list(scopes)}})

    async def all(self) -> list[Entry]:
        """All values, for `verify`. Damaged ones are left out."""
        entries = []
        with mongo_errors():
            async for document in self._values.find({}):
                with suppress(DamagedError):
                    entries.append(entry_of(document))
        return entries


def own_scope(log_id: str) -> str:
    """The scope of a run's own keys, whose values the run's log decides."""
    return f"log:{log_id}"


def value_id(scope: str, key: str) -> str:
    """The `_id` of the value of a key."""
    # The length of the scope says where the key begins, whatever characters both have.
    return f"{len(scope)}:{scope}{key}"


def entry_of(document: Mapping[str, Any]) -> Entry:
    """The entry of a document. Raises `DamagedError`."""
    try:
        entry = Entry(
            document["scope"], document["key"], Value(_unpack(document["json"]), document["offset"])
        )
        if document["_id"] == value_id(entry.scope, entry.key) and isinstance(entry.value.offset, int):
            return entry
        reason = "its fields contradict its id"
    except (KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
        reason = f"it cannot be read: {type(error).__name__}"
    raise damaged("values", document["_id"], reason)


def _fields(entry: Entry) -> dict[str, Any]:
    return {
        "scope": entry.scope,
        "key": entry.key,
        "json": _pack(entry.value.value),
        "offset": entry.value.offset,
    }


def _pack(value: Any) -> bytes:
    # Compressed, because encoding a number again can make it several times as long, and MongoDB
    # limits a document to 16 MB.
    return _compress(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _unpack(packed: bytes) -> Any:
    return json.loads(_decompress(packed))
