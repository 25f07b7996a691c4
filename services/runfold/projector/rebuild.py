"""A rebuild is a projector of the next edition: it reads the catalog from the beginning, folds
every run, keeps up with what is appended meanwhile, and then the pointer is switched.

Readers go on with the old edition until shortly before; around the switch they look into both, so
nothing that they saw is gone for a moment. The projectors notice the switch within a second, take
the new edition over from the rebuild's worker, and leave the old one, which is dropped after the
grace time.
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
"""After that every reader looks into both editions."""


class RebuildError(RunfoldError):
    """The rebuild was not switched to; the edition that is read is as it was."""


class Progress(NamedTuple):
    """Records that the new edition holds, of those that the old one holds."""

    done: int
    total: int


async def rebuild(
    settings: Settings, *, report: Callable[[Progress], None], switched: Callable[[], None]
) -> Progress:
    """Rebuilds every projection from the log; tells its progress, and when readers use the new
    ones.

    Raises `RebuildError` when another rebuild overtakes it, and `UnavailableError`; either may come
    in a group.
    """
    async with connect(settings.mongo, settings.database) as database:
        editions = Editions(database)
        old, new = await editions.current_or_first(), new_edition()
        _must(await editions.begin(old=old, new=new))
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
                _must(await editions.join(old=old, new=new))
                await asyncio.sleep(_JOIN_SECONDS)
                _must(await editions.switch(old=old, new=new))
                switched()
                # The projectors take over, and readers who have not noticed the switch still read
                # the old edition.
                await asyncio.sleep(settings.retire_seconds)
                working.cancel()
        except* RebuildError:
            await editions.drop(new)
            raise
        finally:
            await editions.give_up(new)
        await editions.drop(old)
    return progress


def _must(done: bool) -> None:
    if not done:
        raise RebuildError(
            "another rebuild has begun or finished since this one began, or the switch came too late; this"
            " one was given up"
        )


async def _catching_up(
    database: Database, editions: Editions, *, old: str, new: str
) -> AsyncIterator[Progress]:
    """The progress again and again, until all of the old edition has reached its old end in the new
    one.
    """
    while True:
        pointer = await editions.pointer()
        _must(pointer is not None and pointer.building == new)
        wanted, reached = await _positions(database, old), await _positions(database, new)
        done = sum(min(offset, reached.get(name, 0)) for name, offset in wanted.items())
        yield Progress(done, sum(wanted.values()))
        if all(name in reached and reached[name] >= offset for name, offset in wanted.items()):
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _positions(database: Database, edition: str) -> dict[object, int]:
    """How far an edition is: of each run by its id, and of each partition of what runs share."""
    positions: dict[object, int] = dict([entry async for entry in RunStore(database, edition).progress()])
    positions.update(await SharedPositionStore(database, edition).positions())
    return positions
