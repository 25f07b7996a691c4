"""The quarantine: the runs, keys and records that a projector set aside because folding or storing
them failed. All others go on.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from pymongo import ASCENDING, IndexModel, ReturnDocument

from runfold.store.database import Database
from runfold.store.lazy_indexes import LazyIndexes
from runfold.store.unavailable import mongo_errors
from runfold_schemas.lists import QuarantineKind
from runfold_schemas.topics import Partition

Action = Literal["retry", "refold"]

REASON_MAX = 2_000
"""The longest reason that is stored, in characters."""


_NAMED_MAX = 5


class Quarantined(NamedTuple):
    """Something that waits for an operator, and the records that are the cause."""

    id: str
    """`run:{run}`, `key:{key}`, or `record:{topic}-{partition}:{offset}`."""
    kind: QuarantineKind
    """A run, a key of a shared topic, or records that belong to neither: of the catalog, or in a
    batch that cannot be unpacked.
    """
    topic: str
    partition: int
    offset: int
    """The first of the records that cannot be folded or stored."""
    next_offset: int
    """The offset behind the last of these records."""
    owner: int
    """The partition of the catalog whose owner set this aside and tries it again."""
    reason: str
    since: datetime
    attempts: int = 1

    @property
    def at(self) -> Partition:
        return Partition(self.topic, self.partition)

    @property
    def name(self) -> str:
        """The run's id or the key; of a record its partition and offset."""
        return self.id.partition(":")[2]


class Request(NamedTuple):
    """What was asked of a projector."""

    id: str
    """The id of an entry, or of a run that is not in quarantine."""
    action: Action
    owner: int
    begun: int
    """How often projectors have begun it. 0 if it is not kept."""


def run_id_of(run_id: str) -> str:
    """The id under which a run is in quarantine."""
    return f"run:{run_id}"


def key_id_of(key: str) -> str:
    """The id under which a key of a shared topic is in quarantine."""
    return f"key:{key}"


def record_id_of(at: Partition, offset: int) -> str:
    """The id under which a record is in quarantine."""
    return f"record:{at.topic}-{at.partition}:{offset}"


def no_topic(topic: str) -> str:
    """The reason of a run whose log does not exist."""
    return f"Kafka has no topic {topic}"


def short_log(topic: str, *, end: int, position: int) -> str:
    """The reason of a run whose log was truncated, or deleted and created again."""
    return f"topic {topic} ends at offset {end}, and the run was stored up to offset {position}"


def remedy_of(entry: Quarantined) -> str:
    """What an operator can do if the log of an entry does not come back. "" for other entries."""
    if entry.reason == no_topic(entry.topic):
        return (
            "`runfold rebuild --missing keep` keeps what MongoDB has of runs without a log, read-only;"
            " `--missing drop` deletes these runs"
        )
    if entry.reason.startswith(f"topic {entry.topic} ends at offset "):
        return f"`runfold rebuild {entry.name}` makes the run what its log says"
    return ""


def degradation(entry_ids: Iterable[str]) -> list[str]:
    """What readiness says while these entries are in quarantine."""
    names = sorted(entry_ids)
    further = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    listed = ", ".join(names[:_NAMED_MAX])
    return [f"in quarantine: {listed}{further}; see `runfold quarantine ls`"] if names else []


_BY_OWNER: Final = IndexModel([("owner", ASCENDING)])


class QuarantineStore:
    """The quarantine of one edition. Every method may raise `UnavailableError`."""

    def __init__(self, database: Database, edition: str) -> None:
        self._entries = database[f"quarantine.{edition}"]
        self._requests = database[f"requests.{edition}"]
        self.indexes: Final = LazyIndexes(self._entries, [_BY_OWNER])
        self.request_indexes: Final = LazyIndexes(self._requests, [_BY_OWNER])

    async def create_indexes(self) -> None:
        for indexes in (self.indexes, self.request_indexes):
            await indexes.create()

    async def add(self, entry: Quarantined) -> None:
        """Sets something aside. If it is in quarantine already, the time of the first entry stays
        and the attempts are counted. Forgets requests for it, as `remove` does.
        """
        fields = entry._asdict()
        del fields["id"], fields["since"], fields["attempts"]
        fields["reason"] = entry.reason[:REASON_MAX]
        await self._forget_operators([entry.id])
        await self.indexes.before_insert()
        with mongo_errors():
            await self._entries.update_one(
                {"_id": entry.id},
                {
                    "$set": fields,
                    "$setOnInsert": {"since": entry.since},
                    "$inc": {"attempts": 1},
                },
                upsert=True,
            )
        await self.forget([entry.id])

    async def get(self, entry_id: str) -> Quarantined | None:
        with mongo_errors():
            document = await self._entries.find_one({"_id": entry_id})
        return _entry(document) if document else None

    async def existing(self, entry_ids: Iterable[str]) -> set[str]:
        """Those of these ids that are in quarantine."""
        query = {"_id": {"$in": list(entry_ids)}}
        with mongo_errors():
            return {document["_id"] async for document in self._entries.find(query, {"_id": 1})}

    async def all(
        self,
        *,
        owners: Collection[int] | None = None,
        kind: QuarantineKind | None = None,
        after: str = "",
        limit: int = 0,
    ) -> list[Quarantined]:
        """The entries in the order of their ids, after `after`, at most `limit` (0: all). `owners`
        selects partitions of the catalog.
        """
        query: dict[str, Any] = {"_id": {"$gt": after}}
        if owners is not None:
            query["owner"] = {"$in": sorted(owners)}
        if kind is not None:
            query["kind"] = kind
        with mongo_errors():
            cursor = self._entries.find(query).sort("_id", ASCENDING).limit(limit)
            return [_entry(document) async for document in cursor]

    async def count(self, *, owners: Collection[int] | None = None) -> int:
        query: dict[str, Any] = {}
        if owners is not None:
            query["owner"] = {"$in": sorted(owners)}
        with mongo_errors():
            return int(await self._entries.count_documents(query))

    async def request(self, entry_id: str, action: Action, *, owner: int, is_kept: bool = False) -> None:
        """Asks the owner of the partition `owner` to try something again, or to fold a run anew.
        A run need not be in quarantine. A request that is kept remains until its outcome is stored.
        """
        fields = {"action": action, "owner": owner}
        change = {"$set": {**fields, "is_kept": True, "begun": 0}} if is_kept else {"$set": fields}
        await self.request_indexes.before_insert()
        with mongo_errors():
            await self._requests.update_one({"_id": entry_id}, change, upsert=True)

    async def requests(self, owners: Collection[int]) -> dict[str, Action]:
        """What was asked of the owners of these partitions, by id."""
        with mongo_errors():
            cursor = self._requests.find({"owner": {"$in": sorted(owners)}}, {"action": 1})
            return {document["_id"]: document["action"] async for document in cursor}

    async def has_kept_requests(self) -> bool:
        """Whether the outcome of a request that is kept is to come."""
        with mongo_errors():
            return await self._requests.find_one({"is_kept": True}, {"_id": 1}) is not None

    async def begin(self, entry_id: str) -> Request | None:
        """The request, if there is one. It is forgotten now, unless it is kept: its work may kill
        the process, and the next process must not repeat this for ever.
        """
        with mongo_errors():
            document = await self._requests.find_one_and_delete({"_id": entry_id, "is_kept": {"$ne": True}})
            if document is None:
                document = await self._requests.find_one_and_update(
                    {"_id": entry_id, "is_kept": True},
                    {"$inc": {"begun": 1}},
                    return_document=ReturnDocument.AFTER,
                )
        if document is None:
            return None
        return Request(entry_id, document["action"], document["owner"], document.get("begun", 0))

    async def put_back(self, request: Request) -> None:
        """Undoes `begin`, because the request was interrupted and not by its records."""
        await self.request_indexes.before_insert()
        with mongo_errors():
            if request.begun:
                await self._requests.update_one(
                    {"_id": request.id, "begun": {"$gt": 0}}, {"$inc": {"begun": -1}}
                )
            else:
                fields = {"action": request.action, "owner": request.owner}
                await self._requests.update_one({"_id": request.id}, {"$setOnInsert": fields}, upsert=True)

    async def forget(self, entry_ids: Iterable[str]) -> None:
        """Forgets requests that are kept and were begun, because their outcome is stored."""
        with mongo_errors():
            await self._requests.delete_many({"_id": {"$in": list(entry_ids)}, "begun": {"$gt": 0}})

    async def remove(self, entry_ids: Iterable[str]) -> None:
        """Ends the quarantine, and forgets requests, except those that are kept and were not begun:
        their outcome is to come.
        """
        ids = list(entry_ids)
        await self._forget_operators(ids)
        with mongo_errors():
            await self._entries.delete_many({"_id": {"$in": ids}})
        await self.forget(ids)

    async def _forget_operators(self, ids: list[str]) -> None:
        """Before an entry changes: whoever sees the change may ask again at once."""
        with mongo_errors():
            await self._requests.delete_many({"_id": {"$in": ids}, "is_kept": {"$ne": True}})


def _entry(document: Mapping[str, Any]) -> Quarantined:
    fields = {name: document[name] for name in Quarantined._fields if name in document}
    return Quarantined(id=document["_id"], **fields)
