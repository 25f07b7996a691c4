"""Ended runs: they leave the tail at once, and until they are parked their logs are looked at.

    followed --ended, all stored--> ended --parked after a while
       ^                              |
       +---- a bell, a late event ----+

The tail's fetches look at every run that was just heard of, and an ended run has no more to say. If
thousands of short runs stayed there, the broker would look at them most of the time.
"""

import asyncio
from typing import Final

from runfold.log.ends import LogEnds
from runfold.projector.active import ActiveRun
from runfold.projector.backlog import Backlog

_LOOK_SECONDS: Final = 2.0
"""How long a late event waits that no bell announces."""


class EndedRuns:
    """The active runs of one worker that have ended, and that the tail does not follow."""

    def __init__(self, backlog: Backlog, ends: LogEnds) -> None:
        self._backlog = backlog
        self._ends = ends
        self._runs: dict[str, ActiveRun] = {}

    def __contains__(self, run: ActiveRun) -> bool:
        return self._runs.get(run.run_id) is run

    def add(self, run: ActiveRun) -> None:
        """Has the tail follow the run no more, unless there are records that are not stored."""
        if run.stored_offset == run.next_offset and self._backlog.release(run):
            self._runs[run.run_id] = run

    def remove(self, run: ActiveRun) -> None:
        if run in self:
            del self._runs[run.run_id]

    def follow_again(self, run: ActiveRun) -> None:
        """Has the tail follow a run again that is about to get a late event."""
        if run in self:
            del self._runs[run.run_id]
            self._backlog.add(run)

    async def look(self) -> None:
        """Endless: looks for late events."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            runs = list(self._runs.values())
            ends = await self._ends.ends([run.topic for run in runs])
            for run in runs:
                if ends[run.topic] != run.next_offset:
                    self.follow_again(run)
