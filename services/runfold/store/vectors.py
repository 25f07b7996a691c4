"""Vectors of facts. One belongs to a text and a model, to no edition: it is right for as long as
there is the text, and is made anew where it is missing. What nobody has asked for in a month is
removed.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors

_KEPT: Final = timedelta(days=30)
_NOTED_EVERY: Final = timedelta(days=1)

COLLECTION: Final = "vectors"


class VectorStore:
    def __init__(self, database: Database) -> None:
        self._vectors = database[COLLECTION]

    async def create_indexes(self) -> None:
        index = IndexModel([("used", ASCENDING)], expireAfterSeconds=int(_KEPT.total_seconds()))
        with mongo_errors():
            await self._vectors.create_indexes([index])

    async def get(self, model: str, names: Sequence[str]) -> dict[str, bytes]:
        """The vectors of this model that there are, by name."""
        if not names:
            return {}
        before = datetime.now(UTC) - _NOTED_EVERY
        wanted = {f"{model}:{name}": name for name in names}
        found: dict[str, bytes] = {}
        idle = []
        with mongo_errors():
            async for one in self._vectors.find({"_id": {"$in": list(wanted)}}).batch_size(10_000):
                found[wanted[one["_id"]]] = one["vector"]
                if one["used"] < before:
                    idle.append(one["_id"])
            if idle:
                await self._vectors.update_many({"_id": {"$in": idle}}, {"$set": {"used": datetime.now(UTC)}})
        return found

    async def save(self, model: str, vectors: Mapping[str, bytes]) -> None:
        now = datetime.now(UTC)
        operations = [
            UpdateOne({"_id": f"{model}:{name}"}, {"$set": {"vector": vector, "used": now}}, upsert=True)
            for name, vector in vectors.items()
        ]
        if operations:
            with mongo_errors():
                await self._vectors.bulk_write(operations, ordered=False)
