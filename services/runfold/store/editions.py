"""The pointer to the edition that readers use: one document. A rebuild switches it when its edition
has caught up.

    {current: A}
        ──begin──> {current: A, building: B}
        ──join───> {current: A, building: B, joined: B}
        ──switch─> {current: B}

From `join` until some time after the switch, readers look into both editions and use the data that
reaches further. So no reader sees older data than before. Joining ends by itself after a while, so
an edition whose rebuild died is not read for ever.

Each edition has its own collections, named by an id that is never used twice. If the database is
dropped, the projector begins a new edition and fills it from the beginning of the log.
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
"""How often services that follow the pointer read it."""

JOINED_SECONDS = 60.0
"""How long a joined edition is read without a switch. The time is long, because the clocks of two
machines may differ.
"""

RETIRED_WRITTEN = 1 / 4
"""The part of `retire_seconds` for which projectors still write the old edition after a switch."""

RETIRED_READ = 1 / 2
"""The part of `retire_seconds` for which readers use both editions after a switch. By then the new
edition includes the last writes to the old edition.
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
    "quarantine.",
    "requests.",
    "skips.",
    "segments.",
    "holding.",
)
_NOT_JOINED = {"joined": "", "joined_until": ""}


class Pointer(NamedTuple):
    """The edition that readers use, the edition that a rebuild writes, and the edition that readers
    use as well because a switch is near.
    """

    current: str
    building: str | None
    joined: str | None
    previous: str | None
    """The edition before the last switch. None if there was no switch yet."""
    partitions: int | None = None
    """The number of partitions of the shared topics from which all editions are folded. None before
    a projector has noted it.
    """


class Editions:
    """Reads and moves the pointer, and drops editions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pointers = database["pointers"]

    async def current(self) -> str | None:
        """The id of the current edition. None in an empty database."""
        pointer = await self.pointer()
        return pointer.current if pointer else None

    async def pointer(self) -> Pointer | None:
        """The pointer. None in an empty database."""
        with mongo_errors():
            document = await self._pointers.find_one({"_id": _POINTER})
        if not document:
            return None
        is_joined = "joined" in document and document["joined_until"] > datetime.now(UTC)
        joined = document["joined"] if is_joined else None
        return Pointer(
            document["current"],
            document.get("building"),
            joined,
            document.get("previous"),
            document.get("partitions"),
        )

    async def current_or_first(self) -> str:
        """The id of the current edition. Begins the first edition if there is none."""
        try:
            with mongo_errors():
                pointer = await self._pointers.find_one_and_update(
                    {"_id": _POINTER},
                    {"$setOnInsert": {"current": new_edition()}},
                    upsert=True,
                    return_document=ReturnDocument.AFTER,
                )
        except DuplicateKeyError:
            # Another service began the first edition at the same time.
            return await self.current_or_first()
        return str(pointer["current"])

    async def note_partitions(self, count: int) -> int:
        """Notes the number of partitions of the shared topics, unless one was noted before. Returns
        the noted number.
        """
        with mongo_errors():
            pointer = await self._pointers.find_one_and_update(
                {"_id": _POINTER},
                [{"$set": {"partitions": {"$ifNull": ["$partitions", count]}}}],
                return_document=ReturnDocument.AFTER,
            )
        return int(pointer["partitions"]) if pointer else count

    async def begin(self, *, old: str, new: str) -> bool:
        """Registers `new` as the edition that a rebuild writes, instead of any other. Returns False
        if `old` is not current any more.
        """
        return await self._move({"current": old}, {"$set": {"building": new}, "$unset": _NOT_JOINED})

    async def join(self, *, old: str, new: str) -> bool:
        """Lets readers use `new` beside `old`, for `JOINED_SECONDS` at most. Returns False if
        another rebuild has begun or finished since.
        """
        until = datetime.now(UTC) + timedelta(seconds=JOINED_SECONDS)
        return await self._move(
            {"current": old, "building": new}, {"$set": {"joined": new, "joined_until": until}}
        )

    async def switch(self, *, old: str, new: str) -> bool:
        """Makes `new` the current edition. Returns False if it is not joined any more: another
        rebuild has begun or finished since, or `JOINED_SECONDS` have passed.
        """
        return await self._move(
            {"current": old, "joined": new, "joined_until": {"$gt": datetime.now(UTC)}},
            {"$set": {"current": new, "previous": old}, "$unset": {"building": "", **_NOT_JOINED}},
        )

    async def give_up(self, new: str) -> None:
        """Forgets the rebuild that writes `new`. Has no effect after the switch to `new`."""
        await self._move({"building": new}, {"$unset": {"building": "", **_NOT_JOINED}})

    async def drop(self, edition: str) -> None:
        """Removes the collections of an edition."""
        for name in await self._collections():
            if name.endswith(f".{edition}"):
                with mongo_errors():
                    await self._database.drop_collection(name)

    async def drop_all(self) -> None:
        """Drops all projections. The projector then begins a new edition from the log."""
        with mongo_errors():
            await self._pointers.drop()
            await self._database.drop_collection(VECTORS)
        for edition in await self.others():
            await self.drop(edition)

    async def others(self) -> list[str]:
        """The editions that have collections and are not current, for example of a rebuild that
        died.
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
    """A new id of an edition."""
    return uuid7().hex
