"""The positions up to which the shared topics are folded, the heads of memories, and the ids of
events that were seen, which tell a repetition from the first copy. The owners of partitions write
them; for a moment a partition may have two owners.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.errors import BulkWriteError

from runfold.store.damage import read_record, seal
from runfold.store.database import Database
from runfold.store.unavailable import duplicates_of, mongo_errors
from runfold.store.writing import upsert_in_order
from runfold_projections.memory import Head, HeadAt, Refused
from runfold_schemas.errors import DamagedError
from runfold_schemas.topics import Partition


class SeenEvent(NamedTuple):
    """The id of an event under the key that it changes, with its offset."""

    key: str
    event_id: str
    offset: int


class SharedPositionStore:
    """The positions, the heads and the seen events of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._decided = database[f"decided.{edition}"]
        self._seen = database[f"seen.{edition}"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            # The collection has a head for every memory that ever existed, and a few positions.
            await self._decided.create_indexes([IndexModel([("topic", ASCENDING)], sparse=True)])

    async def positions(self, of: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """The offset up to which each partition is folded, or each partition in `of`. Partitions
        without a record are left out.
        """
        query: dict[str, Any] = {"topic": {"$exists": True}}
        if of is not None:
            query = {"_id": {"$in": [_position_id(at) for at in of]}}
        with mongo_errors():
            return {
                Partition(document["topic"], document["partition"]): document["next_offset"]
                async for document in self._decided.find(query)
            }

    async def save_position(
        self, at: Partition, next_offset: int, heads: Mapping[str, HeadAt] | None = None
    ) -> None:
        """Saves heads, each over an older head, and then the position of the partition. Call
        it when everything else that was folded up to the position is saved.
        """
        position = UpdateOne(
            {"_id": _position_id(at)},
            {
                "$max": {"next_offset": next_offset},
                "$setOnInsert": {"topic": at.topic, "partition": at.partition},
            },
            upsert=True,
        )
        await upsert_in_order(self._decided, [*map(_head_update, (heads or {}).items()), position])

    async def catalog_positions(self, of: Iterable[Partition]) -> dict[Partition, int]:
        """The offset up to which the effects of these partitions of the catalog are stored, as far
        as a worker without a consumer group has saved it.
        """
        by_id = {_catalog_id(at): at for at in of}
        with mongo_errors():
            cursor = self._decided.find({"_id": {"$in": list(by_id)}})
            return {by_id[document["_id"]]: document["catalog_offset"] async for document in cursor}

    async def save_catalog_positions(self, positions: Mapping[Partition, int]) -> None:
        """Saves how far the effects of the catalog are stored. It never goes back."""
        operations = [
            UpdateOne({"_id": _catalog_id(at)}, {"$max": {"catalog_offset": offset}}, upsert=True)
            for at, offset in positions.items()
        ]
        await upsert_in_order(self._decided, operations)

    async def save_heads(self, heads: Mapping[str, HeadAt]) -> None:
        """Saves heads, each over an older head, when their keys are ahead of the position, or were
        held back before it.
        """
        await upsert_in_order(self._decided, [*map(_head_update, heads.items())])

    async def delete_head(self, key: str) -> None:
        """Removes the head of a memory, because its events are folded anew."""
        with mongo_errors():
            await self._decided.delete_one({"_id": key})

    async def heads(self, keys: Iterable[str]) -> dict[str, HeadAt]:
        """The heads of these memories by key, also of deleted and expired memories."""
        with mongo_errors():
            cursor = self._decided.find({"_id": {"$in": list(keys)}})
            return {document["_id"]: _head(document) async for document in cursor}

    async def all_heads(self) -> dict[str, Head]:
        """The heads of all memories that ever existed, for `verify`. Damaged ones are left out."""
        heads = {}
        with mongo_errors():
            async for document in self._decided.find({"head": {"$exists": True}}):
                with suppress(DamagedError):
                    heads[document["_id"]] = _head(document).head
        return heads

    async def firsts(self, events: Sequence[SeenEvent]) -> dict[tuple[str, str], int]:
        """The offset of the first copy of each event, by key and id. The copy may be an event in
        `events` itself or an earlier one.
        """
        firsts = await self.first_offsets({(event.key, event.event_id) for event in events})
        for key, event_id, offset in events:
            firsts[key, event_id] = min(offset, firsts.get((key, event_id), offset))
        return firsts

    async def note(self, firsts: Mapping[tuple[str, str], int]) -> None:
        """Saves that events were seen, each with the offset of its first copy."""
        # Nearly all of them are new, and an insert costs a third of an upsert.
        if existing := await self._insert(firsts):
            await self._lower({event: firsts[event] for event in existing})

    async def first_offsets(self, events: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """The offset of the first copy of each event, by key and id. Events that were not seen are
        left out.
        """
        by_id = {_seen_id(*event): event for event in events}
        if not by_id:
            return {}
        with mongo_errors():
            cursor = self._seen.find({"_id": {"$in": list(by_id)}})
            # The refusal of an event may be saved before its offset.
            return {
                by_id[document["_id"]]: document["offset"]
                async for document in cursor
                if "offset" in document
            }

    async def forget(self, key: str, event_id: str, *, offset: int) -> None:
        """Forgets that an event was seen first at this offset, because an operator skipped it
        there. A later copy counts instead.
        """
        with mongo_errors():
            await self._seen.delete_one({"_id": _seen_id(key, event_id), "offset": offset})

    async def refuse(self, refused: Iterable[tuple[str, str, Refused]]) -> None:
        """Saves why events, given by key and id, were refused."""
        operations = [
            UpdateOne({"_id": _seen_id(key, event_id)}, {"$set": {"refused": list(reason)}}, upsert=True)
            for key, event_id, reason in refused
        ]
        if operations:
            with mongo_errors():
                await self._seen.bulk_write(operations, ordered=False)

    async def refusals(self, events: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Refused]:
        """Why each of these events was refused, by key and id. Accepted events and events that were
        not seen are left out.
        """
        by_id = {_seen_id(*event): event for event in events}
        with mongo_errors():
            cursor = self._seen.find({"_id": {"$in": list(by_id)}, "refused": {"$exists": True}})
            return {by_id[document["_id"]]: Refused(*document["refused"]) async for document in cursor}

    async def _insert(self, firsts: Mapping[tuple[str, str], int]) -> list[tuple[str, str]]:
        """Inserts new events. Returns the events that existed already."""
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


def _head_update(item: tuple[str, HeadAt]) -> UpdateOne:
    key, (head, offset) = item
    text = head.model_dump_json()
    return UpdateOne(
        {"_id": key, "offset": {"$lt": offset}},
        {"$set": {"offset": offset, "head": text, "seal": seal(offset, text)}},
        upsert=True,
    )


def _head(document: Mapping[str, Any]) -> HeadAt:
    return HeadAt(read_record(Head, document, "decided", text="head"), document["offset"])


def _position_id(at: Partition) -> str:
    return f"{at.topic}-{at.partition}"


def _catalog_id(at: Partition) -> str:
    # Without the fields of a position, because a rebuild compares those of two editions.
    return f"catalog:{at.topic}-{at.partition}"


def _seen_id(key: str, event_id: str) -> bytes:
    # A hash is a fifth as long as the two texts, and there is one for every event.
    return blake2b(f"{event_id}:{key}".encode(), digest_size=16).digest()
