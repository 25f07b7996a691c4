"""How far the topics that runs share are folded, and which of their events have come: what tells a repetition from the first
copy. Written by the partitions' owners, two of which may be at work for a moment.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from runfold.store.database import Database
from runfold.store.unavailable import duplicates_of, mongo_errors
from runfold_projections.memory import Refused


class Come(NamedTuple):
    """An event, by its id, under the key that it changes, with its offset."""

    key: str
    event_id: str
    offset: int


class DecidedStore:
    """What is decided in one generation."""

    def __init__(self, database: Database, generation: str) -> None:
        self._positions = database[f"positions.{generation}"]
        self._seen = database[f"seen.{generation}"]

    async def positions(self) -> dict[TopicPartition, int]:
        """The offset that each partition is folded to; nothing of one that never had a record."""
        with mongo_errors():
            return {
                TopicPartition(found["topic"], found["partition"]): found["next_offset"]
                async for found in self._positions.find({})
            }

    async def save_position(self, at: TopicPartition, next_offset: int) -> None:
        with mongo_errors():
            await self._positions.update_one(
                {"_id": f"{at.topic}-{at.partition}"},
                {
                    "$max": {"next_offset": next_offset},
                    "$setOnInsert": {"topic": at.topic, "partition": at.partition},
                },
                upsert=True,
            )

    async def note(self, events: Sequence[Come]) -> dict[tuple[str, str], int]:
        """Notes that these events have come, and gives where each came first, by key and id."""
        firsts: dict[tuple[str, str], int] = {}
        for key, event_id, offset in events:
            firsts[key, event_id] = min(offset, firsts.get((key, event_id), offset))
        # Nearly all of them are new, and inserting costs a third of an upsert.
        known = await self._insert(firsts)
        if known:
            await self._lower({one: firsts[one] for one in known})
            firsts |= await self.first_offsets(known)
        return firsts

    async def first_offsets(self, events: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Where each of these events came first, by key and id; nothing of one that has not come."""
        wanted = {_seen_id(*event): event for event in events}
        if not wanted:
            return {}
        with mongo_errors():
            cursor = self._seen.find({"_id": {"$in": list(wanted)}})
            return {wanted[found["_id"]]: found["offset"] async for found in cursor}

    async def refuse(self, refused: Iterable[tuple[str, str, Refused]]) -> None:
        """Notes of events that have come, by key and id, that they change nothing, and why."""
        operations = [
            UpdateOne({"_id": _seen_id(key, event_id)}, {"$set": {"refused": list(reason)}})
            for key, event_id, reason in refused
        ]
        if operations:
            with mongo_errors():
                await self._seen.bulk_write(operations, ordered=False)

    async def refusal(self, key: str, event_id: str) -> Refused | None:
        with mongo_errors():
            found = await self._seen.find_one({"_id": _seen_id(key, event_id)}, {"refused": 1})
        return Refused(*found["refused"]) if found and "refused" in found else None

    async def _insert(self, firsts: dict[tuple[str, str], int]) -> list[tuple[str, str]]:
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

    async def _lower(self, firsts: dict[tuple[str, str], int]) -> None:
        operations = [
            UpdateOne({"_id": _seen_id(*event)}, {"$min": {"offset": offset}})
            for event, offset in firsts.items()
        ]
        with mongo_errors():
            await self._seen.bulk_write(operations, ordered=False)


def _seen_id(key: str, event_id: str) -> str:
    return f"{event_id}:{key}"
