"""Revisions: what memories were. MongoDB removes them when they expire; until then reads hide them.

A revision is named by its memory and its offset, inserted once and never changed. Only until when
it can be read may change, when its memory is deleted or rolled back: the last change in the log
says when, however late an owner of the partition is.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel, UpdateMany
from pymongo.errors import BulkWriteError

from runfold.store.database import Database
from runfold.store.listing import label_pairs, microseconds, moment
from runfold.store.memories import removal
from runfold.store.unavailable import duplicates_of, mongo_errors
from runfold_projections.memory import Ending, Revision
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
"""For so long MongoDB keeps what a deletion has ended beyond its time: a rollback that came in time
may be folded later, in a rebuild at any time.
"""
_OFFSET_MAX: Final = 2**63 - 1


class RevisionStore:
    """The revisions of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._revisions = database[f"revisions.{edition}"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._revisions.create_indexes(_INDEXES)

    async def save(self, revisions: Sequence[tuple[str, Revision]]) -> None:
        """Saves revisions, each with the key of its memory; of one that is there already nothing is
        to be said.
        """
        for begin in range(0, len(revisions), _BULK):
            documents = [_document(*one) for one in revisions[begin : begin + _BULK]]
            try:
                with mongo_errors():
                    await self._revisions.insert_many(documents, ordered=False)
            except BulkWriteError as error:
                duplicates_of(error)

    async def end(self, endings: Sequence[tuple[str, Ending]]) -> None:
        """Has the revisions of deleted memories expire with them, or not any more, in the order of
        the log.
        """
        operations = [_ended(*one) for one in endings]
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
        """The revisions of a memory from one offset on, the newest first, only those from before
        another one if it is given.
        """
        query: dict[str, Any] = {
            "_id": _of_memory(key, before, since=since),
            "expires_us": {"$gt": microseconds(now)},
        }
        if labels:
            query["label_pairs"] = {"$all": label_pairs(labels)}
        with mongo_errors():
            cursor = self._revisions.find(query).sort([("_id", DESCENDING)]).limit(limit)
            return [_revision(found) async for found in cursor]

    async def get(self, key: str, offset: int, *, now: datetime) -> Revision | None:
        query = {"_id": _id(key, offset), "expires_us": {"$gt": microseconds(now)}}
        with mongo_errors():
            found = await self._revisions.find_one(query)
        return _revision(found) if found else None

    async def all(self, *, now: datetime) -> dict[tuple[str, str], Revision]:
        """Every revision there is, by its memory's key and its id: for `verify`."""
        query = {"expires_us": {"$gt": microseconds(now)}}
        with mongo_errors():
            return {
                (found["_id"]["memory"], (revision := _revision(found)).revision_id): revision
                async for found in self._revisions.find(query)
            }


def _document(key: str, revision: Revision) -> dict[str, Any]:
    document = {
        "_id": _id(key, revision.offset),
        "expires": removal(revision.expires_at),
        "expires_us": microseconds(revision.expires_at),
        "record": revision.model_dump_json(),
    }
    if revision.labels:
        document["label_pairs"] = label_pairs(revision.labels)
    return document


def _ended(key: str, ending: Ending) -> UpdateMany:
    """The update that has the revisions up to a deletion expire with it, or undoes that; never over
    a later one.
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


def _revision(found: dict[str, Any]) -> Revision:
    revision = Revision.model_validate_json(found["record"])
    if "deleted_us" not in found:
        return revision
    return revision.model_copy(update={"expires_at": moment(found["expires_us"])})


def _id(key: str, offset: int) -> dict[str, Any]:
    return {"memory": key, "offset": offset}


def _of_memory(key: str, before: int | None, *, since: int = 0) -> dict[str, Any]:
    """The ids of a memory's revisions, of those before this offset if it is given."""
    return {"$gte": _id(key, since), "$lt": _id(key, _OFFSET_MAX if before is None else before)}
