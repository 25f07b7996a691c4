"""The runs whose traces are to be exported, and how far they were. They belong to no edition."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pymongo import UpdateOne

from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors

_BEGAN: Final = "began"


class PendingTrace(NamedTuple):
    """`change` is another number each time the run is noted. The spans before `exported_to` were
    exported. `since`: only if the run had events since then.
    """

    run_id: str
    change: int
    exported_to: int
    since: datetime | None


class PendingTraces:
    """Every method may raise `UnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._traces = database["traces"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._traces.create_index([("due", 1)], sparse=True)

    async def began(self, now: datetime) -> datetime:
        """When the first tracer of this database began, which is now if there was none."""
        with mongo_errors():
            await self._traces.update_one({"_id": {"is": _BEGAN}}, {"$setOnInsert": {"at": now}}, upsert=True)
            document = await self._traces.find_one({"_id": {"is": _BEGAN}})
        return document["at"] if document else now

    async def note(
        self, runs: Sequence[tuple[str, int]], *, due: datetime, since: datetime | None = None
    ) -> None:
        """The traces of these runs, each with its partition of the catalog, are to be exported.
        With `since`, from the beginning, if the run had events since then.
        """
        change: dict[str, Any] = {"$inc": {"change": 1}, "$min": {"due": due}}
        if since is not None:
            change["$set"] = {"exported_to": 0, "since": since}
        writes = [
            UpdateOne({"_id": run_id}, change | {"$setOnInsert": {"partition": partition}}, upsert=True)
            for run_id, partition in runs
        ]
        if writes:
            with mongo_errors():
                await self._traces.bulk_write(writes, ordered=False)

    async def due(self, partitions: Collection[int], *, limit: int) -> list[PendingTrace]:
        """The runs of these partitions that are due, those that wait longest first."""
        query = {"due": {"$lte": datetime.now(UTC)}, "partition": {"$in": [*partitions]}}
        with mongo_errors():
            found = await self._traces.find(query).sort("due", 1).limit(limit).to_list(limit)
        return [
            PendingTrace(each["_id"], each["change"], each.get("exported_to", 0), each.get("since"))
            for each in found
        ]

    async def postpone(self, pending: PendingTrace, *, seconds: float) -> None:
        """The trace is due later. The run stays due if it was noted meanwhile."""
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        with mongo_errors():
            await self._traces.update_one(
                {"_id": pending.run_id, "change": pending.change}, {"$set": {"due": due}}
            )

    async def settle(self, pending: PendingTrace, *, exported_to: int) -> None:
        """The trace was exported. The run stays due if it was noted meanwhile."""
        with mongo_errors():
            await self._traces.update_one(
                {"_id": pending.run_id, "change": pending.change},
                {"$set": {"exported_to": exported_to}, "$unset": {"due": "", "since": ""}},
            )

    async def forget(self, pending: PendingTrace) -> None:
        """The run has ended and its trace was exported, or the run is gone."""
        with mongo_errors():
            await self._traces.delete_one({"_id": pending.run_id, "change": pending.change})
