"""Which edition of the projections is read: one document, switched when a rebuild has caught up.

    {current: A} ──begin──> {current: A, building: B} ──join──> {current: A, building: B, joined: B} ──switch──> {current: B}

From `join` until some time after the switch readers look into both editions and take what reaches
further, so none of them sees anything older than it saw before. A rebuild that dies in between is
not read for ever: joining ends by itself.

An edition has its own collections, named by an id that is never used twice. So a database that was
dropped is simply a new edition, which the projector fills from the beginning of the log.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from runfold.ids import uuid7
from runfold.store.database import Database
from runfold.store.unavailable import mongo_errors
from runfold.store.vectors import COLLECTION as VECTORS

POINTER_LOOK_SECONDS = 1.0
"""How often whoever follows the pointer looks at it."""

JOINED_SECONDS = 60.0
"""How long a joined edition is read without a switch. Long, since the clocks of two machines may
differ.
"""

RETIRED_WRITTEN = 1 / 4
"""Of the time that an edition stays after a switch: so long projectors write it."""

RETIRED_READ = 1 / 2
"""Of the same time: so long it is read beside the new one, which must have reached by then what was
written last.
"""

_POINTER = "generation"
_COLLECTIONS = (
    "pages.",
    "runs.",
    "values.",
    "decided.",
    "seen.",
    "sessions.",
    "memories.",
    "revisions.",
    "banks.",
)
_NOT_JOINED = {"joined": "", "joined_until": ""}


class Pointer(NamedTuple):
    """The edition that is read, the one that a rebuild writes, and whether both are read since a
    switch is near.
    """

    current: str
    building: str | None
    joined: str | None
    previous: str | None
    """The one from which a rebuild switched to this one; None of one that began with nothing."""


class Editions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._pointers = database["pointers"]

    async def current(self) -> str | None:
        """The id of the edition that is read; None in an empty database."""
        pointer = await self.pointer()
        return pointer.current if pointer else None

    async def pointer(self) -> Pointer | None:
        """What is read; None in an empty database."""
        with mongo_errors():
            found = await self._pointers.find_one({"_id": _POINTER})
        if not found:
            return None
        is_joined = "joined" in found and found["joined_until"] > datetime.now(UTC)
        joined = found["joined"] if is_joined else None
        return Pointer(found["current"], found.get("building"), joined, found.get("previous"))

    async def current_or_first(self) -> str:
        """The id of the edition that is read; the first one begins here if there is none."""
        try:
            with mongo_errors():
                pointer = await self._pointers.find_one_and_update(
                    {"_id": _POINTER},
                    {"$setOnInsert": {"current": new_edition()}},
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                )
        except DuplicateKeyError:
            # Two services began it at the same time; the other one's stands.
            return await self.current_or_first()
        return str(pointer["current"])

    async def begin(self, *, old: str, new: str) -> bool:
        """Notes that a rebuild has begun `new`, instead of any that began before. False if `old` is
        not read any more.
        """
        return await self._move({"current": old}, {"$set": {"building": new}, "$unset": _NOT_JOINED})

    async def join(self, *, old: str, new: str) -> bool:
        """Has `new` read beside `old`, for `JOINED_SECONDS` at the most. False if another rebuild
        has begun or finished since.
        """
        until = datetime.now(UTC) + timedelta(seconds=JOINED_SECONDS)
        return await self._move(
            {"current": old, "building": new}, {"$set": {"joined": new, "joined_until": until}}
        )

    async def switch(self, *, old: str, new: str) -> bool:
        """Makes `new` the edition that is read. False if it is not joined any more: another rebuild
        has begun or finished since, or too much time has passed.
        """
        return await self._move(
            {"current": old, "joined": new, "joined_until": {"$gt": datetime.now(UTC)}},
            {"$set": {"current": new, "previous": old}, "$unset": {"building": "", **_NOT_JOINED}},
        )

    async def give_up(self, new: str) -> None:
        """Notes that `new` is not built any more; changes nothing after the switch to it."""
        await self._move({"building": new}, {"$unset": {"building": "", **_NOT_JOINED}})

    async def drop(self, edition: str) -> None:
        """Removes the collections of an edition."""
        for name in await self._collections():
            if name.endswith(f".{edition}"):
                with mongo_errors():
                    await self._database.drop_collection(name)

    async def drop_all(self) -> None:
        """Throws all projections away; the projector begins a new edition from the log."""
        with mongo_errors():
            await self._pointers.drop()
            await self._database.drop_collection(VECTORS)
        for edition in await self.others():
            await self.drop(edition)

    async def others(self) -> list[str]:
        """Editions that have collections and are not read: left by a rebuild that did not
        finish.
        """
        current = await self.current()
        return sorted({name.rpartition(".")[2] for name in await self._collections()} - {current})

    async def _move(self, expected: dict[str, Any], change: dict[str, Any]) -> bool:
        with mongo_errors():
            answer = await self._pointers.update_one({"_id": _POINTER, **expected}, change)
        return bool(answer.matched_count)

    async def _collections(self) -> list[str]:
        with mongo_errors():
            return [
                name for name in await self._database.list_collection_names() if name.startswith(_COLLECTIONS)
            ]


def new_edition() -> str:
    return uuid7().hex
