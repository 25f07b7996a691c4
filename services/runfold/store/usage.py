"""How much tenants have used of their quotas: a counter for each tenant, quota and time, which all
processes of an installation increase.
"""

from datetime import datetime

from pymongo import ReturnDocument

from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors

_COLLECTION = "tenant_usage"


class UsageStore:
    """The counters, in the database of the installation."""

    def __init__(self, database: Database) -> None:
        self._counters = database[_COLLECTION]

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._counters.create_index("ends_at", expireAfterSeconds=0)

    async def add(self, tenant: str, quota: str, ends_at: datetime, amount: int) -> int:
        """Increases the counter of a time that ends then. Returns what all processes have added."""
        with mongo_errors():
            document = await self._counters.find_one_and_update(
                {"_id": f"{tenant}:{quota}:{ends_at:%Y%m%dT%H%M}"},
                {"$inc": {"used": amount}, "$setOnInsert": {"tenant": tenant, "ends_at": ends_at}},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        return int(document["used"])

    async def forget(self, tenant: str) -> None:
        """Deletes the counters of a tenant."""
        with mongo_errors():
            await self._counters.delete_many({"tenant": tenant})
