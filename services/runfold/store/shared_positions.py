"""How far the topics that runs share are folded, what decides about the next change of each memory,
and which events have come: what tells a repetition from the first copy. Written by the partitions'
owners, two of which may be at work for a moment.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.errors import BulkWriteError

from runfold.store.database import Database
from runfold.store.unavailable import duplicates_of, mongo_errors
from runfold.store.writing import upsert_in_order
from runfold_projections.memory import Head, HeadAt, Refused
from runfold_schemas.topics import Partition


class SeenEvent(NamedTuple):
    """An event, by its id, under the key that it changes, with its offset."""

    key: str
    event_id: str
    offset: int


class SharedPositionStore:
    """What is decided in one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._decided = database[f"decided.{edition}"]
        self._seen = database[f"seen.{edition}"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            # There are as many heads as memories ever were, and a few positions among them.
            await self._decided.create_indexes([IndexModel([("topic", ASCENDING)], sparse=True)])

    async def positions(self, of: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """The offset that each partition, or each of these, is folded to; nothing of one that never
        had a record.
        """
        query: dict[str, Any] = {"topic": {"$exists": True}}
        if of is not None:
            query = {"_id": {"$in": [_position_id(at) for at in of]}}
        with mongo_errors():
            return {
                Partition(found["topic"], found["partition"]): found["next_offset"]
                async for found in self._decided.find(query)
            }

    async def save_position(
        self, at: Partition, next_offset: int, heads: Mapping[str, HeadAt] | None = None
    ) -> None:
        """Saves heads, each over an older one, and then how far the partition is folded: when all
        else is saved that is decided up to there.
        """
        operations = [
            UpdateOne(
                {"_id": key, "offset": {"$lt": offset}},
                {"$set": {"offset": offset, "head": head.model_dump_json()}},
                upsert=True,
            )
            for key, (head, offset) in (heads or {}).items()
        ]
        reached = UpdateOne(
            {"_id": _position_id(at)},
            {
                "$max": {"next_offset": next_offset},
                "$setOnInsert": {"topic": at.topic, "partition": at.partition},
            },
            upsert=True,
        )
        await upsert_in_order(self._decided, [*operations, reached])

    async def heads(self, keys: Iterable[str]) -> dict[str, HeadAt]:
        """What decides about these memories, also about those that are gone."""
        with mongo_errors():
            cursor = self._decided.find({"_id": {"$in": list(keys)}})
            return {found["_id"]: _head(found) async for found in cursor}

    async def all_heads(self) -> dict[str, Head]:
        """What decides about every memory that ever was: for `verify`."""
        with mongo_errors():
            cursor = self._decided.find({"head": {"$exists": True}})
            return {found["_id"]: _head(found).head async for found in cursor}

    async def firsts(self, events: Sequence[SeenEvent]) -> dict[tuple[str, str], int]:
        """Where each of these events came first, itself or before, by key and id."""
        firsts = await self.first_offsets({(one.key, one.event_id) for one in events})
        for key, event_id, offset in events:
            firsts[key, event_id] = min(offset, firsts.get((key, event_id), offset))
        return firsts

    async def note(self, firsts: Mapping[tuple[str, str], int]) -> None:
        """Notes of events that they have come, each with where it came first."""
        # Nearly all of them are new, and inserting costs a third of an upsert.
        if known := await self._insert(firsts):
            await self._lower({one: firsts[one] for one in known})

    async def first_offsets(self, events: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Where each of these events came first, by key and id; nothing of one that has not
        come.
        """
        wanted = {_seen_id(*event): event for event in events}
        if not wanted:
            return {}
        with mongo_errors():
            cursor = self._seen.find({"_id": {"$in": list(wanted)}})
            # A refusal may be noted before its event is.
            return {wanted[found["_id"]]: found["offset"] async for found in cursor if "offset" in found}

    async def refuse(self, refused: Iterable[tuple[str, str, Refused]]) -> None:
        """Notes of events, by key and id, that they change nothing, and why."""
        operations = [
            UpdateOne({"_id": _seen_id(key, event_id)}, {"$set": {"refused": list(reason)}}, upsert=True)
            for key, event_id, reason in refused
        ]
        if operations:
            with mongo_errors():
                await self._seen.bulk_write(operations, ordered=False)

    async def refusals(self, events: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Refused]:
        """Why each of these events, by key and id, changes nothing; nothing of one that does, or
        that has not come.
        """
        wanted = {_seen_id(*event): event for event in events}
        with mongo_errors():
            cursor = self._seen.find({"_id": {"$in": list(wanted)}, "refused": {"$exists": True}})
            return {wanted[found["_id"]]: Refused(*found["refused"]) async for found in cursor}

    async def _insert(self, firsts: Mapping[tuple[str, str], int]) -> list[tuple[str, str]]:
        """Those that were noted before."""
        documents: list[dict[str, Any]] = [
            {"_id": _seen_id(*event), "offset": offset} for event, offset in firsts.items()
        ]
        if not documents:
            return []
        try:
            with mongo_errors():
                await self._seen.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            events = list(firsts)
            return [events[index] for index in duplicates_of(error)]
        return []

    async def _lower(self, firsts: Mapping[tuple[str, str], int]) -> None:
        operations = [
            UpdateOne({"_id": _seen_id(*event)}, {"$min": {"offset": offset}})
            for event, offset in firsts.items()
        ]
        with mongo_errors():
            await self._seen.bulk_write(operations, ordered=False)


def _head(found: Mapping[str, Any]) -> HeadAt:
    return HeadAt(Head.model_validate_json(found["head"]), found["offset"])


def _position_id(at: Partition) -> str:
    return f"{at.topic}-{at.partition}"


def _seen_id(key: str, event_id: str) -> bytes:
    # A fifth of both as texts; there is one for every event that ever came.
    return blake2b(f"{event_id}:{key}".encode(), digest_size=16).digest()
