"""What the processes of an installation report about their work: the projectors about themselves,
and the commands `verify` and `rebuild` about the last time.

Reports of projectors are in the database of the installation, so that a dropped tenant gets no
collection again. The notes of commands are in the tenant's own database. MongoDB's clock says when
a report was made, because the clocks of machines differ.
"""

import inspect
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from pymongo import ASCENDING, IndexModel

from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors

_KEPT_SECONDS: Final = 24 * 3600
"""How long the report of a projector that is away stays."""

Job = Literal["verify", "rebuild"]

JOB_AWAY_SECONDS: Final = 60.0
"""A job that has noted nothing for so long has died."""


class Report(NamedTuple):
    """A report, and how old it is."""

    fields: Mapping[str, Any]
    seen_at: datetime
    age_seconds: float


class ReportStore:
    """The reports in a database: that of the installation for projectors, the tenant's for jobs."""

    def __init__(self, database: Database) -> None:
        self._projectors = database["projectors"]
        self._jobs = database["jobs"]

    async def create_indexes(self) -> None:
        index = IndexModel([("seen_at", ASCENDING)], expireAfterSeconds=_KEPT_SECONDS)
        with mongo_errors():
            await self._projectors.create_indexes([index])

    async def save(self, worker_id: str, by_tenant: Mapping[str, Mapping[str, Any]]) -> None:
        """Saves what a process reports about each tenant that it works for."""
        with mongo_errors():
            for tenant, fields in by_tenant.items():
                await self._projectors.update_one(
                    {"_id": f"{tenant}/{worker_id}"},
                    _noted({"worker_id": worker_id, "tenant": tenant, **fields}),
                    upsert=True,
                )
        await self.leave(worker_id, except_for=by_tenant)

    async def leave(self, worker_id: str, *, except_for: Collection[str] = ()) -> None:
        """The process works no longer for tenants, except for these."""
        with mongo_errors():
            await self._projectors.delete_many({"worker_id": worker_id, "tenant": {"$nin": list(except_for)}})

    async def projectors(self, tenant: str) -> Sequence[Report]:
        """The reports about a tenant, by worker."""
        return await self._reports(self._projectors, {"tenant": tenant})

    async def note_job(self, job: Job, tenant: str, fields: Mapping[str, Any]) -> None:
        """Notes how far a command is, or how it ended, over what was noted before."""
        with mongo_errors():
            await self._jobs.update_one({"_id": f"{tenant}/{job}"}, _noted(fields), upsert=True)

    async def job(self, job: Job, tenant: str) -> Report | None:
        """What was noted last."""
        reports = await self._reports(self._jobs, {"_id": f"{tenant}/{job}"})
        return reports[0] if reports else None

    async def _reports(self, collection: Any, query: Mapping[str, Any]) -> list[Report]:
        age = {"$subtract": ["$$NOW", "$seen_at"]}
        steps = [{"$match": query}, {"$addFields": {"age_ms": age}}, {"$sort": {"_id": 1}}]
        with mongo_errors():
            reading = collection.aggregate(steps)
            # PyMongo's own client has to be awaited here, Motor's cursor is there at once.
            cursor: Any = await reading if inspect.isawaitable(reading) else reading
            documents = [document async for document in cursor]
        return [
            Report(each, each.get("seen_at") or datetime.fromtimestamp(0, UTC), each["age_ms"] / 1000)
            for each in documents
        ]


def _noted(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"$set": dict(fields), "$currentDate": {"seen_at": True}}
