"""What the processes of projectors have in hand: large batches that they read, and are folding. The
note of a process that was killed for its memory says what may have been the cause.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pymongo import WriteConcern
from pymongo.read_concern import ReadConcern

from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors
from runfold_schemas.topics import Partition


class Held(NamedTuple):
    """The records of `[offset, next_offset)`. `deaths` counts the processes that died with these
    records in hand before.
    """

    topic: str
    partition: int
    offset: int
    next_offset: int
    deaths: int = 0

    @property
    def at(self) -> Partition:
        return Partition(self.topic, self.partition)


class HoldingStore:
    """The notes of one edition, one document for each process. Every method may raise
    `UnavailableError`.
    """

    def __init__(self, database: Database, edition: str) -> None:
        # A process that dies does not take the server with it, so a write need not be journaled.
        self._holdings = database[f"holding.{edition}"].with_options(
            write_concern=WriteConcern(w=1, j=False), read_concern=ReadConcern("local")
        )

    async def note(self, holder: str, held: Sequence[Held], *, change: int = 0) -> None:
        """Replaces the note of a process. `change` is another number each time."""
        with mongo_errors():
            await self._holdings.replace_one(
                {"_id": holder}, {"held": [list(each) for each in held], "change": change}, upsert=True
            )

    async def clear(self, holder: str) -> None:
        with mongo_errors():
            await self._holdings.delete_one({"_id": holder})

    async def last_change(self, holder: str, held: Held) -> int | None:
        """The number of the last change of the note of a process. None if `held` is not noted."""
        with mongo_errors():
            document = await self._holdings.find_one({"_id": holder, "held": list(held)})
        return None if document is None else document.get("change", 0)

    async def of_others(self, holder: str) -> list[tuple[str, Held]]:
        """What other processes noted, with the name of each process."""
        with mongo_errors():
            return [
                (document["_id"], Held(*each))
                async for document in self._holdings.find({"_id": {"$ne": holder}})
                for each in document["held"]
            ]

    async def settle(self, holder: str, held: Held) -> None:
        """Removes an item from the note of another process, and the note with its last item."""
        with mongo_errors():
            await self._holdings.update_one({"_id": holder}, {"$pull": {"held": list(held)}})
            await self._holdings.delete_one({"_id": holder, "held": []})
