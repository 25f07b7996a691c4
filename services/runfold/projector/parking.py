"""Parks quiet runs. A parked run costs nothing until a bell or the sweep wakes it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

from runfold.log.ends import LogEnds
from runfold.log.tail import Tail
from runfold.projector.active import ActiveRun
from runfold.projector.ended import EndedRuns
from runfold.projector.stuck import Steps
from runfold.projector.writer import Writer
from runfold.settings import Settings
from runfold.store.runs import RunStore

_GROUP_MAX = 50
_LOOK_SECONDS = 2.0
"""A look at 10,000 active runs takes 3 ms."""


class Parking:
    """Parks the active runs of one worker. `is_active` says whether a run is still active, `drop`
    ends its tailing, and `wake` activates parked runs. They are called under `membership`.
    """

    def __init__(
        self,
        settings: Settings,
        tail: Tail,
        ends: LogEnds,
        writer: Writer,
        runs: RunStore,
        *,
        ended: EndedRuns,
        membership: asyncio.Lock,
        steps: Steps,
        is_active: Callable[[ActiveRun], bool],
        drop: Callable[[ActiveRun], None],
        wake: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._tail = tail
        self._ends = ends
        self._writer = writer
        self._runs = runs
        self._ended = ended
        self._membership = membership
        self._steps = steps
        self._is_active = is_active
        self._drop = drop
        self._wake = wake

    async def work(self, active: Collection[ActiveRun]) -> None:
        """Endless: parks those of the active runs that are quiet."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._settings.park_seconds / 4))
            quiet = []
            for run in active:
                run.rest()
                if self._is_quiet(run) and self._is_stored(run):
                    quiet.append(run)
            # A few at a time: what a bell wakes or the catalog brings does not wait for all.
            for begin in range(0, len(quiet), _GROUP_MAX):
                group = quiet[begin : begin + _GROUP_MAX]
                await self._writer.flush()
                async with self._membership:
                    idle = [run for run in group if self._is_quiet(run)]
                    await self._steps.run(self._park(idle))

    def _is_quiet(self, run: ActiveRun) -> bool:
        # An ended run has little more to say, so it goes as soon as publishers allow.
        settings = self._settings
        patience = settings.publisher_park_seconds if run.admission.ended else settings.park_seconds
        return self._is_active(run) and run.quiet_since < time.monotonic() - patience

    def _is_stored(self, run: ActiveRun) -> bool:
        if run in self._ended:
            return True
        end = self._tail.end(run.at)
        return end is not None and end <= run.stored_offset and not self._tail.is_held(run.at)

    async def _park(self, runs: Sequence[ActiveRun]) -> None:
        """Parks the runs, and takes back those whose log went on in the meantime. No bell comes in
        between.
        """
        positions = {run.topic: run.next_offset for run in runs}
        for run in runs:
            if self._writer.wants_merge(run, is_quiet=True):
                self._writer.merge_soon(run)
        await self._writer.flush()
        await self._runs.set_active([run.run_id for run in runs], active=False)
        for run in runs:
            self._drop(run)
        ends = await self._ends.ends(positions)
        await self._wake([run.run_id for run in runs if ends[run.topic] > positions[run.topic]])
