"""Memories with their content, until they expire.

A document replaces only a document with a lower offset, so a late owner of a partition does no
harm. A deleted memory stays as the offset of its deletion for as long as it can be rolled back.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.damage import read_record, seal
from runfold.store.database import Database
from runfold.store.lazy_indexes import LazyIndexes
from runfold.store.listing import after_cursor, cursor_of, list_index, list_order, microseconds
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import upsert_where
from runfold_projections.memory import MemoryRecord
from runfold_schemas.errors import DamagedError
from runfold_schemas.memories import RESTORABLE, memory_key, scope_text

_FIELDS: Final = (
    "record",
    "seal",
    "bank",
    "scope",
    "vector",
    "created_us",
    "updated_us",
    "expires_us",
    "expires",
)

_INDEXES = [
    list_index("created_us", "bank"),
    list_index("updated_us", "bank"),
    list_index("created_us", "bank", "scope"),
    list_index("updated_us", "bank", "scope"),
    # Covers the query of similarity search over a scope. MongoDB reads no other documents than
    # those of the answer.
    IndexModel([(name, ASCENDING) for name in ("bank", "scope", "_id", "vector", "expires_us")]),
    IndexModel([("expires", ASCENDING)], expireAfterSeconds=0),
]

_NEVER: Final = 2**63 - 1


class MemoryVectorName(NamedTuple):
    """The key of a memory, and the name of the vector of its fact."""

    key: str
    vector: str


class MemoryStore:
    """The memories of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._memories = database[f"memories.{edition}"]
        self.indexes: Final = LazyIndexes(self._memories, _INDEXES)

    async def create_indexes(self) -> None:
        await self.indexes.create()

    async def save(self, memories: Mapping[str, tuple[MemoryRecord | None, int]]) -> None:
        """Saves each memory, or None for a deleted memory, with the offset of its last change."""
        operations = [
            UpdateOne(
                {"_id": key, "offset": {"$lt": offset}},
                _save_update(record, offset) if record is not None else _delete_update(offset),
                upsert=True,
            )
            for key, (record, offset) in memories.items()
        ]
        if operations:
            await self.indexes.before_insert()
        await upsert_where(self._memories, operations)

    async def delete(self, key: str) -> None:
        """Removes what is stored of a memory, because its events are folded anew."""
        with mongo_errors():
            await self._memories.delete_one({"_id": key})

    async def get(self, keys: Sequence[str], *, now: datetime) -> dict[str, MemoryRecord]:
        with mongo_errors():
            cursor = self._memories.find({"_id": {"$in": list(keys)}, **_unexpired(now)})
            return {document["_id"]: _record(document) async for document in cursor}

    async def vector_names(
        self, bank_id: str, scope: Mapping[str, str], *, now: datetime
    ) -> list[MemoryVectorName]:
        """The vector names of all memories with exactly this scope."""
        query = {"bank": bank_id, "scope": scope_text(scope), **_unexpired(now)}
        with mongo_errors():
            cursor = self._memories.find(query, {"_id": 1, "vector": 1}).batch_size(10_000)
            return [MemoryVectorName(document["_id"], document["vector"]) async for document in cursor]

    async def vectors_of(self, keys: Iterable[str]) -> set[str]:
        """The names of the vectors of these memories, as far as they are stored."""
        query = {"_id": {"$in": list(keys)}, "vector": {"$exists": True}}
        with mongo_errors():
            return {document["vector"] async for document in self._memories.find(query, {"vector": 1})}

    async def before(self, offsets: Mapping[str, int]) -> set[str]:
        """The keys of those of these memories that are stored as they were before this offset."""
        query = {"_id": {"$in": list(offsets)}, "record": {"$exists": True}}
        with mongo_errors():
            cursor = self._memories.find(query, {"offset": 1})
            return {each["_id"] async for each in cursor if each["offset"] < offsets[each["_id"]]}

    async def all(self, *, now: datetime) -> dict[str, MemoryRecord]:
        """All memories, for `verify`. Damaged ones are left out."""
        memories = {}
        with mongo_errors():
            async for document in self._memories.find(_unexpired(now)):
                with suppress(DamagedError):
                    memories[document["_id"]] = _record(document)
        return memories

    async def list(
        self,
        bank_id: str,
        *,
        scope: Mapping[str, str] | None,
        order: str,
        ascending: bool,
        now: datetime,
        cursor: str | None,
    ) -> AsyncGenerator[MemoryRecord, None]:
        """The memories after the cursor. Raises `InvalidEventError` for a cursor that no list
        returned.
        """
        time_field = "updated_us" if order == "updated_at" else "created_us"
        query = {"bank": bank_id, **_unexpired(now)}
        if scope is not None:
            query["scope"] = scope_text(scope)
        query = after_cursor(query, time_field, cursor, ascending=ascending)
        with mongo_errors():
            documents = self._memories.find(query).sort(list_order(time_field, ascending=ascending))
            async for document in documents:
                yield _record(document)


def cursor_after(record: MemoryRecord, *, order: str) -> str:
    """The cursor with which `MemoryStore.list` goes on after this memory, in the same order."""
    time = record.updated_at if order == "updated_at" else record.created_at
    return cursor_of((microseconds(time), memory_key(record.bank_id, record.memory_id)))


def vector_name(fact: str) -> str:
    """The name of the vector of a fact. Equal facts have the same vector."""
    return sha256(fact.encode()).hexdigest()


def removal(expires_at: datetime) -> datetime:
    """When MongoDB may remove a document that expires at `expires_at`. One millisecond is added,
    because MongoDB cuts times to milliseconds.
    """
    return expires_at + timedelta(milliseconds=1)


def _save_update(record: MemoryRecord, offset: int) -> dict[str, Any]:
    expires_at, text = record.memory.expires_at, record.model_dump_json()
    fields = {
        "offset": offset,
        "record": text,
        "seal": seal(offset, text),
        "bank": record.bank_id,
        "scope": scope_text(record.memory.scope),
        "vector": vector_name(record.memory.fact),
        "created_us": microseconds(record.created_at),
        "updated_us": microseconds(record.updated_at),
        "expires_us": microseconds(expires_at) if expires_at else _NEVER,
    }
    if expires_at is None:
        return {"$set": fields, "$unset": {"expires": ""}}
    return {"$set": {**fields, "expires": removal(expires_at)}}


def _delete_update(offset: int) -> dict[str, Any]:
    unset = {name: "" for name in _FIELDS if name != "expires"}
    return {"$set": {"offset": offset, "expires": datetime.now(UTC) + RESTORABLE}, "$unset": unset}


def _unexpired(now: datetime) -> dict[str, Any]:
    return {"expires_us": {"$gt": microseconds(now)}}


def _record(document: dict[str, Any]) -> MemoryRecord:
    return read_record(MemoryRecord, document, "memories")
