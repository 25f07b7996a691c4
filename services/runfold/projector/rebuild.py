"""A rebuild: a projector that writes the next edition. It reads the catalog from the beginning,
folds every run, keeps up with new events, and then switches the pointer.

Readers use the old edition until shortly before the switch. Around the switch they use both, so
data that a reader saw never disappears. The projectors notice the switch within a second, take over
the new edition from the rebuild's worker, and leave the old edition, which is dropped after
`retire_seconds`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from runfold.projector.worker import connect_worker
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.editions import POINTER_LOOK_SECONDS, Editions, new_edition
from runfold.store.runs import RunStore
from runfold.store.shared_positions import SharedPositionStore
from runfold_schemas.errors import RunfoldError

_LOOK_SECONDS = 0.25

_JOIN_SECONDS = 3 * POINTER_LOOK_SECONDS
"""The time after which every reader uses both editions."""


class RebuildError(RunfoldError):
    """The rebuild was given up. The current edition is unchanged."""


class Progress(NamedTuple):
    """The number of records in the new edition, and in the old edition."""

    done: int
    total: int


async def rebuild(
    settings: Settings, *, report: Callable[[Progress], None], switched: Callable[[], None]
) -> Progress:
    """Rebuilds every projection from the log. Calls `report` with its progress, and `switched` when
    readers use the new edition.

    Raises `RebuildError` if another rebuild overtakes it, and `UnavailableError`. Either error may
    be in a group.
    """
    async with connect(settings.mongo, settings.database) as database:
        editions = Editions(database)
        old, new = await editions.current_or_first(), new_edition()
        _require(await editions.begin(old=old, new=new))
        for leftover in await editions.others():
            await editions.drop(leftover)
        try:
            async with (
                connect_worker(settings, database, new, rebuilt_from=old) as worker,
                asyncio.TaskGroup() as tasks,
            ):
                working = tasks.create_task(worker.work())
                async for progress in _catching_up(database, editions, old=old, new=new):
                    report(progress)
                _require(await editions.join(old=old, new=new))
                await asyncio.sleep(_JOIN_SECONDS)
                _require(await editions.switch(old=old, new=new))
                switched()
                # Projectors take over the new edition now. Readers that have not noticed the switch
                # still use the old edition.
                await asyncio.sleep(settings.retire_seconds)
                working.cancel()
        except* RebuildError:
            await editions.drop(new)
            raise
        finally:
            await editions.give_up(new)
        await editions.drop(old)
    return progress


def _require(done: bool) -> None:
    if not done:
        raise RebuildError(
            "another rebuild has begun or finished since this one began, or the switch came too late; this"
            " one was given up. Run it again"
        )


async def _catching_up(
    database: Database, editions: Editions, *, old: str, new: str
) -> AsyncIterator[Progress]:
    """Yields the progress until the new edition includes everything that the old edition has."""
    while True:
        pointer = await editions.pointer()
        _require(pointer is not None and pointer.building == new)
        targets, reached = await _positions(database, old), await _positions(database, new)
        done = sum(min(offset, reached.get(name, 0)) for name, offset in targets.items())
        yield Progress(done, sum(targets.values()))
        if all(name in reached and reached[name] >= offset for name, offset in targets.items()):
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _positions(database: Database, edition: str) -> dict[object, int]:
    """The positions of an edition: of each run by its id, and of each partition of the shared
    topics.
    """
    positions: dict[object, int] = dict([entry async for entry in RunStore(database, edition).progress()])
    positions.update(await SharedPositionStore(database, edition).positions())
    return positions
