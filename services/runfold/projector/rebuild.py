"""A rebuild is a projector of the next generation: it reads the catalog from the beginning, folds every run, keeps up with
what is appended meanwhile, and then the pointer is switched.

Readers go on with the old generation until then. The projectors notice the switch within a second, take the new
generation over from the rebuild's worker, and let the old one go after the grace time.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from runfold.projector.worker import connect_worker
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.generations import Generations, new_generation
from runfold.store.runs import RunStore
from runfold_schemas.errors import RunfoldError

_LOOK_SECONDS = 0.25


class RebuildError(RunfoldError):
    """The rebuild was not switched to; the generation that is read is as it was."""


class Progress(NamedTuple):
    """Records that the new generation holds, of those that the old one holds."""

    done: int
    total: int


async def rebuild(
    settings: Settings, *, report: Callable[[Progress], None], switched: Callable[[], None]
) -> Progress:
    """Rebuilds every projection from the log; tells its progress, and when readers use the new ones. Raises `RebuildError`, and `UnavailableError` in a group."""
    async with connect(settings.mongo, settings.database) as database:
        generations = Generations(database)
        old = await generations.current_or_first()
        for leftover in await generations.others():
            await generations.drop(leftover)
        new = new_generation()
        async with (
            connect_worker(settings, database, new, publishing=False) as worker,
            asyncio.TaskGroup() as tasks,
        ):
            working = tasks.create_task(worker.work())
            progress = await _catch_up(RunStore(database, old), RunStore(database, new), report)
            if not await generations.switch(old=old, new=new):
                await generations.drop(new)
                raise RebuildError(
                    "another rebuild was switched to in the meantime: look at it before you start one again"
                )
            switched()
            # The projectors take over, and readers who have not noticed the switch still read the old generation.
            await asyncio.sleep(settings.retire_seconds)
            working.cancel()
        await generations.drop(old)
    return progress


async def _catch_up(old: RunStore, new: RunStore, report: Callable[[Progress], None]) -> Progress:
    while True:
        wanted = dict([entry async for entry in old.progress()])
        reached = dict([entry async for entry in new.progress()])
        done = sum(min(offset, reached.get(run_id, 0)) for run_id, offset in wanted.items())
        progress = Progress(done, sum(wanted.values()))
        report(progress)
        if all(run_id in reached and reached[run_id] >= offset for run_id, offset in wanted.items()):
            return progress
        await asyncio.sleep(_LOOK_SECONDS)
