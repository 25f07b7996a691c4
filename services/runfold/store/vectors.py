"""Vectors of facts. A vector belongs to a text and a model and not to an edition, because it stays
valid for the text. Missing vectors are computed again. MongoDB removes vectors that were not read
for a month.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.database import Database
from runfold.store.lazy_indexes import LazyIndexes
from runfold.store.unavailable import mongo_errors

_KEPT: Final = timedelta(days=30)
_NOTED_EVERY: Final = timedelta(days=1)

COLLECTION: Final = "vectors"

_UNUSED: Final = IndexModel([("used", ASCENDING)], expireAfterSeconds=int(_KEPT.total_seconds()))


class VectorStore:
    """The vectors of all editions."""

    def __init__(self, database: Database) -> None:
        self._vectors = database[COLLECTION]
        self.indexes: Final = LazyIndexes(self._vectors, [_UNUSED])

    async def create_indexes(self) -> None:
        await self.indexes.create()

    async def get(self, model: str, names: Sequence[str]) -> dict[str, bytes]:
        """The stored vectors of this model among `names`, by name."""
        if not names:
            return {}
        before = datetime.now(UTC) - _NOTED_EVERY
        names_by_id = {f"{model}:{name}": name for name in names}
        vectors: dict[str, bytes] = {}
        idle = []
        with mongo_errors():
            query = {"_id": {"$in": list(names_by_id)}}
            async for document in self._vectors.find(query).batch_size(10_000):
                vectors[names_by_id[document["_id"]]] = document["vector"]
                if document["used"] < before:
                    idle.append(document["_id"])
            if idle:
                await self._vectors.update_many({"_id": {"$in": idle}}, {"$set": {"used": datetime.now(UTC)}})
        return vectors

    async def delete(self, names: Collection[str]) -> None:
        """Deletes the vectors with these names, of every model. Reads the names of all vectors."""
        if not names:
            return
        with mongo_errors():
            ids = [
                document["_id"]
                async for document in self._vectors.find({}, {"_id": 1}).batch_size(10_000)
                if document["_id"].rpartition(":")[2] in names
            ]
            await self._vectors.delete_many({"_id": {"$in": ids}})

    async def save(self, model: str, vectors: Mapping[str, bytes]) -> None:
        now = datetime.now(UTC)
        operations = [
            UpdateOne({"_id": f"{model}:{name}"}, {"$set": {"vector": vector, "used": now}}, upsert=True)
            for name, vector in vectors.items()
        ]
        if operations:
            await self.indexes.before_insert()
            with mongo_errors():
                await self._vectors.bulk_write(operations, ordered=False)
