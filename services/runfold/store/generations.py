"""Which generation of the projections is read: one document, switched when a rebuild has caught up.

A generation has its own collections, named by an id that is never used twice. So a database that was dropped is simply a
new generation, which the projector fills from the beginning of the log.
"""

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from runfold.ids import uuid7
from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors

_POINTER = "generation"


class Generations:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._pointers = database["pointers"]

    async def current(self) -> str | None:
        """The id of the generation that is read; None in an empty database."""
        with mongo_errors():
            pointer = await self._pointers.find_one({"_id": _POINTER})
        return pointer["current"] if pointer else None

    async def current_or_first(self) -> str:
        """The id of the generation that is read; the first one begins here if there is none."""
        try:
            with mongo_errors():
                pointer = await self._pointers.find_one_and_update(
                    {"_id": _POINTER},
                    {"$setOnInsert": {"current": new_generation()}},
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                )
        except DuplicateKeyError:
            # Two services began it at the same time; the other one's stands.
            return await self.current_or_first()
        return str(pointer["current"])

    async def switch(self, *, old: str | None, new: str) -> bool:
        """Makes `new` the generation that is read; False if it was not `old` any more."""
        with mongo_errors():
            answer = await self._pointers.update_one(
                {"_id": _POINTER, "current": old}, {"$set": {"current": new}}
            )
        return bool(answer.modified_count)

    async def drop(self, generation: str) -> None:
        """Removes the collections of a generation."""
        for name in await self._collections():
            if name.endswith(f".{generation}"):
                with mongo_errors():
                    await self._database.drop_collection(name)

    async def drop_all(self) -> None:
        """Throws all projections away; the projector begins a new generation from the log."""
        with mongo_errors():
            await self._pointers.drop()
        for generation in await self.others():
            await self.drop(generation)

    async def others(self) -> list[str]:
        """Generations that have collections and are not read: left by a rebuild that did not finish."""
        current = await self.current()
        return sorted({name.rpartition(".")[2] for name in await self._collections()} - {current})

    async def _collections(self) -> list[str]:
        with mongo_errors():
            return [
                name
                for name in await self._database.list_collection_names()
                if name.startswith(("pages.", "runs."))
            ]


def new_generation() -> str:
    return uuid7().hex
