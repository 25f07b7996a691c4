"""The offsets that operators skipped, folded from the catalog. So a worker knows them before it
reads a run.
"""

from collections.abc import Callable, Collection, Iterable

from pymongo import UpdateOne

from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors
from runfold_schemas.catalog import Skip
from runfold_schemas.topics import Partition


class SkipStore:
    """The skips of one edition. There are few, so a worker holds all of them in memory."""

    def __init__(self, database: Database, edition: str) -> None:
        self._skips = database[f"skips.{edition}"]

    async def add(self, skips: Iterable[Skip]) -> None:
        operations = [
            UpdateOne(
                {"_id": f"{skip.topic}-{skip.partition}:{skip.offset}"},
                {"$set": skip.model_dump()},
                upsert=True,
            )
            for skip in skips
        ]
        if operations:
            with mongo_errors():
                await self._skips.bulk_write(operations, ordered=False)

    async def copy_from(self, previous: "SkipStore") -> None:
        """Adds the skips of another edition."""
        copied = [
            Skip(topic=at.topic, partition=at.partition, offset=offsets.start, next_offset=offsets.stop)
            for at, skipped in (await previous.all()).items()
            for offsets in skipped
        ]
        await self.add(copied)

    async def reader(self) -> Callable[[Partition], Collection[range]]:
        """Returns the skipped offsets of a partition, as they are now."""
        offsets = await self.all()
        return lambda at: offsets.get(at, ())

    async def all(self, topics: Collection[str] | None = None) -> dict[Partition, frozenset[range]]:
        """The skipped offsets by partition, of these topics or of all."""
        query = {} if topics is None else {"topic": {"$in": list(topics)}}
        found: dict[Partition, set[range]] = {}
        with mongo_errors():
            async for document in self._skips.find(query):
                at = Partition(document["topic"], document["partition"])
                found.setdefault(at, set()).add(range(document["offset"], document["next_offset"]))
        return {at: frozenset(offsets) for at, offsets in found.items()}
