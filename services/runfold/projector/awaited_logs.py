"""Runs whose log does not exist, or ends before the position of the run.

    suspected --> looked at, with growing pauses --> there again: tailed
                                                 |-> archived: rests
                                                 \\-> after a while: set aside

The tail does not follow these runs: for an unknown topic its client requests metadata without end.
Another client looks at many of them with one request. A run may be a few seconds ahead of its
topic, because not every broker knows a new topic at once, and a new leader may not know the end of
a log yet.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from runfold.log.ends import LogEnds
from runfold.projector.active import ActiveRun
from runfold.projector.segments import RunSegments
from runfold.store.quarantine import no_topic, short_log

_MISSING_SECONDS = 12.0
"""How long a topic may be missing. Brokers learn of a new topic within a second."""

_SHORT_SECONDS = 4.0
"""How long a log may be shorter than expected."""

_REOPENED_SECONDS = 4.0
"""How long a new topic of an archived log is awaited after a bell. Later, the sweep finds it."""

_PAUSE_SECONDS, _PAUSE_MAX_SECONDS = 0.25, 4.0

_LOOK_MAX = 1_000
"""The number of logs in one request."""

SetAside = Callable[[ActiveRun, str], Awaitable[None]]
"""Sets a run aside with a reason."""


@dataclass(slots=True)
class _Awaited:
    run: ActiveRun
    since: float
    next_look: float
    pause: float = _PAUSE_SECONDS
    is_short: bool = False


class AwaitedLogs:
    """The runs of one worker that wait for their log."""

    def __init__(
        self,
        ends: LogEnds,
        segments: RunSegments,
        *,
        found: Callable[[ActiveRun], None],
        rest: Callable[[ActiveRun], Awaitable[None]],
        set_aside: SetAside,
    ) -> None:
        self._ends = ends
        self._segments = segments
        self._found = found
        self._rest = rest
        self._set_aside = set_aside
        self._awaited: dict[str, _Awaited] = {}
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._awaited)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._awaited

    def waiting(self) -> dict[str, object]:
        """The topics of these runs, each with the time since when it was looked at."""
        return {each.run.topic: each.since for each in self._awaited.values()}

    def add(self, run: ActiveRun) -> None:
        """Looks at the log of a run that the tail does not follow any more."""
        now = time.monotonic()
        self._awaited[run.run_id] = _Awaited(run, since=now, next_look=now)
        self._added.set()

    def remove(self, run: ActiveRun) -> None:
        self._awaited.pop(run.run_id, None)

    async def work(self) -> None:
        """Endless: looks at each log when its time has come."""
        while True:
            while not self._awaited:
                self._added.clear()
                await self._added.wait()
            now = time.monotonic()
            due = [each for each in self._awaited.values() if each.next_look <= now][:_LOOK_MAX]
            if due:
                await self._look(due)
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _look(self, due: Collection[_Awaited]) -> None:
        # A list of topics may tell the end of a log whose entry the tail does not know.
        await self._segments.learn([each.run.run_id for each in due])
        ends, unanswered = await self._ends.look([each.run.at for each in due])
        for each in due:
            # A run waits for a broker as long as the broker is away.
            if self._awaited.get(each.run.run_id) is each and each.run.at not in unanswered:
                await self._decide(each, ends.get(each.run.at))
        now = time.monotonic()
        for each in due:
            each.next_look = now + each.pause
            each.pause = min(2 * each.pause, _PAUSE_MAX_SECONDS)

    async def _decide(self, awaited: _Awaited, end: int | None) -> None:
        run, now = awaited.run, time.monotonic()
        if end is not None and self._segments.rests(run, end):
            if not run.bells or now - awaited.since >= _REOPENED_SECONDS:
                self.remove(run)
                await self._rest(run)
            return
        if end is not None and end >= run.next_offset:
            self.remove(run)
            self._found(run)
            return
        if awaited.is_short != (end is not None):
            awaited.is_short, awaited.since = end is not None, now
        if end is None and now - awaited.since >= _MISSING_SECONDS:
            await self._set_aside(run, no_topic(run.topic))
        elif end is not None and now - awaited.since >= _SHORT_SECONDS:
            await self._set_aside(run, short_log(run.topic, end=end, position=run.next_offset))
