"""Where the sealed logs of runs lie, folded from the catalog. So a worker need not read the catalog
again to go on in a log that another worker knew.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from pymongo import UpdateOne

from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors
from runfold_schemas.catalog import Segments

_FIELDS: Final = ("log_id", "base", "end", "sealed_base", "archived_end", "archived_records")


class SegmentStore:
    """The entries of one edition. A run whose log was never sealed has none."""

    def __init__(self, database: Database, edition: str) -> None:
        self._segments = database[f"segments.{edition}"]

    async def add(self, entries: Iterable[Segments]) -> None:
        """Takes entries in the order of the catalog, perhaps again. They only move forward."""
        operations = [
            UpdateOne({"_id": entry.run_id}, [{"$replaceWith": _later(entry)}], upsert=True)
            for entry in entries
        ]
        if operations:
            with mongo_errors():
                await self._segments.bulk_write(operations)

    async def count(self) -> int:
        """About how many entries there are. It costs nothing, however many they are."""
        with mongo_errors():
            return int(await self._segments.estimated_document_count())

    async def get(self, run_ids: Collection[str]) -> dict[str, Segments]:
        """The entries of those of the runs that have one."""
        found = {}
        with mongo_errors():
            async for document in self._segments.find({"_id": {"$in": list(run_ids)}}):
                fields = {name: document.get(name) for name in _FIELDS}
                found[document["_id"]] = Segments(run_id=document["_id"], **fields)
        return found


def _later(entry: Segments) -> Mapping[str, Any]:
    """The document after the entry: the entry if it counts after the stored one, as in
    `log.segments.follows`.
    """
    document = {"_id": entry.run_id, **entry.model_dump(include=set(_FIELDS))}
    is_next: dict[str, Any] = {"$lt": ["$base", entry.base]}
    if entry.sealed_base is not None:
        is_next = {"$and": [is_next, {"$lte": ["$base", entry.sealed_base]}]}
    else:
        is_next = {"$or": [is_next, {"$eq": ["$base", entry.base]}]}
    counts = {"$or": [{"$ne": ["$log_id", {"$literal": entry.log_id}]}, is_next]}
    return {"$cond": [counts, {"$literal": document}, "$$ROOT"]}
