"""The progress of the projectors as MongoDB tells it: a change stream on the positions of the
shared topics of one edition.

MongoDB looks at every write while the stream is open, which costs it a twentieth of a core under
load. So a reader opens the stream only while somebody waits.
"""

import inspect
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any, Final

from pymongo.errors import PyMongoError

from runfold.store.database import Database
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition

_WAIT_MS: Final = 1_000

_POSITIONS: Final[list[dict[str, Any]]] = [
    {
        "$match": {
            "$or": [
                {"updateDescription.updatedFields.next_offset": {"$exists": True}},
                # Heads of memories are in the same collection, and have no topic.
                {"fullDocument.topic": {"$exists": True}},
            ],
        }
    },
    {"$project": {"documentKey": 1}},
]


class ProgressStore:
    """The progress of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._decided = database[f"decided.{edition}"]

    async def positions(self) -> AsyncGenerator[str | None, None]:
        """Yields None when the stream is open, and when there was no change for a second; otherwise
        the partition that was folded further, as `position_key` names it. Ends if the edition is
        dropped. Raises `UnavailableError`, also if MongoDB has no change streams.
        """
        try:
            async with AsyncExitStack() as stack:
                opening = self._decided.watch(_POSITIONS, max_await_time_ms=_WAIT_MS)
                # PyMongo's own client has to be awaited here, Motor opens the stream in the block.
                stream: Any = await opening if inspect.isawaitable(opening) else opening
                await stack.enter_async_context(stream)
                yield None
                while stream.alive:
                    change = await stream.try_next()
                    yield str(change["documentKey"]["_id"]) if change else None
        except (PyMongoError, OSError) as error:
            raise UnavailableError("MongoDB", reason=str(error)) from error


def position_key(at: Partition) -> str:
    """The name of a partition in `ProgressStore.positions`."""
    return f"{at.topic}-{at.partition}"
