"""Revisions: the earlier states of memories. Reads hide a revision as soon as it expires, and
MongoDB removes it some time later.

The id of a revision consists of its memory's key and its offset. A revision is inserted once and
its content never changes. Only its expiry can change, when its memory is deleted or rolled back.
The last change in the log decides the expiry, however late an owner of the partition is.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel, UpdateMany
from pymongo.errors import BulkWriteError

from runfold.store.damage import damaged, read_record, seal
from runfold.store.database import Database
from runfold.store.lazy_indexes import LazyIndexes
from runfold.store.listing import label_pairs, microseconds, moment
from runfold.store.memories import removal
from runfold.store.unavailable import duplicates_of, mongo_errors
from runfold.store.writing import FORGOTTEN
from runfold_projections.memory import ExpiryChange, Revision
from runfold_schemas.errors import DamagedError
from runfold_schemas.memories import RESTORABLE

_INDEXES: Final = [
    IndexModel(
        [("label_pairs", ASCENDING), ("_id", DESCENDING)],
        partialFilterExpression={"label_pairs": {"$exists": True}},
    ),
    IndexModel([("expires", ASCENDING)], expireAfterSeconds=0),
]

_BULK: Final = 2_000

_LATE: Final = timedelta(days=7)
"""How long MongoDB keeps the revisions of a deleted memory after their expiry. A rollback that was
published in time may be folded later, in a rebuild at any time.
"""
_OFFSET_MAX: Final = 2**63 - 1


class RevisionStore:
    """The revisions of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._revisions = database[f"revisions.{edition}"]
        self.indexes: Final = LazyIndexes(self._revisions, _INDEXES)

    async def create_indexes(self) -> None:
        await self.indexes.create()

    async def save(self, revisions: Sequence[tuple[str, Revision]]) -> None:
        """Inserts revisions, each with the key of its memory. Revisions that exist stay as they
        are.
        """
        for begin in range(0, len(revisions), _BULK):
            documents = [_document(key, revision) for key, revision in revisions[begin : begin + _BULK]]
            await self.indexes.before_insert()
            try:
                with mongo_errors():
                    await self._revisions.insert_many(documents, ordered=False)
            except BulkWriteError as error:
                duplicates_of(error)

    async def end(self, endings: Sequence[tuple[str, ExpiryChange]]) -> None:
        """Changes the expiry of revisions, when their memory was deleted or exists again. The
        endings are in the order of the log.
        """
        operations = [_ending_update(key, ending) for key, ending in endings]
        if operations:
            with mongo_errors():
                await self._revisions.bulk_write(operations, ordered=True)

    async def list(
        self,
        key: str,
        *,
        since: int,
        labels: Mapping[str, str],
        now: datetime,
        before: int | None,
        limit: int,
    ) -> list[Revision]:
        """The revisions of a memory from offset `since` on, newest first. With `before` only those
        below that offset.
        """
        query: dict[str, Any] = {
            "_id": _of_memory(key, before, since=since),
            "expires_us": {"$gt": microseconds(now)},
        }
        if labels:
            query["label_pairs"] = {"$all": label_pairs(labels)}
        with mongo_errors():
            cursor = self._revisions.find(query).sort([("_id", DESCENDING)]).limit(limit)
            return [_revision(document) async for document in cursor]

    async def delete(self, key: str) -> None:
        """Removes the revisions of a memory, because its events are folded anew."""
        with mongo_errors():
            await self._revisions.delete_many({"_id": _of_memory(key, None)})

    async def erase(self, key: str, offset: int) -> set[str]:
        """Removes the content of the revisions of a memory before this offset. Returns their facts.
        Their ids stay for an hour, so that a late owner of the partition cannot restore them.
        """
        query = {"_id": _of_memory(key, offset), "record": {"$exists": True}}
        facts = set()
        with mongo_errors():
            async for document in self._revisions.find(query):
                with suppress(DamagedError):
                    facts.add(_revision(document).fact)
            await self._revisions.update_many(
                query,
                {
                    "$set": {"expires": datetime.now(UTC) + FORGOTTEN, "expires_us": 0},
                    "$unset": dict.fromkeys(("record", "seal", "label_pairs", "own_expires"), ""),
                },
            )
        return facts

    async def before(self, offsets: Mapping[str, int]) -> set[str]:
        """The keys of those of these memories that have a revision with content from before this
        offset.
        """
        found = set()
        with mongo_errors():
            for key, offset in offsets.items():
                query = {"_id": _of_memory(key, offset), "record": {"$exists": True}}
                if await self._revisions.find_one(query, {"_id": 1}) is not None:
                    found.add(key)
        return found

    async def get(self, key: str, offset: int, *, now: datetime) -> Revision | None:
        query = {"_id": _id(key, offset), "expires_us": {"$gt": microseconds(now)}}
        with mongo_errors():
            document = await self._revisions.find_one(query)
        return _revision(document) if document else None

    async def all(self, *, now: datetime) -> dict[tuple[str, str], Revision]:
        """All revisions by their memory's key and their id, for `verify`. Damaged ones are left
        out.
        """
        query = {"expires_us": {"$gt": microseconds(now)}}
        revisions = {}
        with mongo_errors():
            async for document in self._revisions.find(query):
                with suppress(DamagedError):
                    revision = _revision(document)
                    revisions[document["_id"]["memory"], revision.revision_id] = revision
        return revisions


def _document(key: str, revision: Revision) -> dict[str, Any]:
    text = revision.model_dump_json()
    document = {
        "_id": _id(key, revision.offset),
        "expires": removal(revision.expires_at),
        "expires_us": microseconds(revision.expires_at),
        "record": text,
        "seal": seal(revision.offset, text),
    }
    if revision.labels:
        document["label_pairs"] = label_pairs(revision.labels)
    return document


def _ending_update(key: str, ending: ExpiryChange) -> UpdateMany:
    """The update after which the revisions up to a deletion expire with it, or no longer do. It
    never overrides a later ending.
    """
    deleted_us = microseconds(ending.deleted_at)
    of_memory = {"_id": _of_memory(key, ending.offset + 1), "ended_by": {"$not": {"$gte": ending.offset}}}
    if ending.undone:
        return UpdateMany(
            {**of_memory, "deleted_us": deleted_us},
            [
                {
                    "$set": {
                        "ended_by": ending.offset,
                        "expires": "$own_expires",
                        "expires_us": "$own_expires_us",
                    }
                },
                {"$unset": ["deleted_us", "own_expires", "own_expires_us"]},
            ],
        )
    until = ending.deleted_at + RESTORABLE
    removed = removal(max(until, datetime.now(UTC)) + _LATE)
    return UpdateMany(
        {**of_memory, "deleted_us": {"$exists": False}},
        [
            {
                "$set": {
                    "ended_by": ending.offset,
                    "deleted_us": deleted_us,
                    "own_expires": "$expires",
                    "own_expires_us": "$expires_us",
                    "expires": {"$min": ["$expires", removed]},
                    "expires_us": {"$min": ["$expires_us", microseconds(until)]},
                }
            }
        ],
    )


def _revision(document: dict[str, Any]) -> Revision:
    if not isinstance(document["_id"], Mapping):
        raise damaged("revisions", document["_id"], "its id has another form")
    at = {"offset": document["_id"].get("offset")}
    revision = read_record(Revision, {**document, **at}, "revisions")
    if "deleted_us" not in document:
        return revision
    return revision.model_copy(update={"expires_at": moment(document["expires_us"])})


def _id(key: str, offset: int) -> dict[str, Any]:
    return {"memory": key, "offset": offset}


def _of_memory(key: str, before: int | None, *, since: int = 0) -> dict[str, Any]:
    """The range of ids of a memory's revisions from offset `since` on and below `before`."""
    return {"$gte": _id(key, since), "$lt": _id(key, _OFFSET_MAX if before is None else before)}
