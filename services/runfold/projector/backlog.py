"""The backlog: the active runs whose fold is not at the end of their log yet.

    added --> waiting --> catching up --> caught up
                          (at most 200)
                             |    ^
                             v    |
                            awaited logs

Runs that are catching up are tailed. Runs that have caught up stay in the tail until they are
parked. A run leaves the tail if its log does not exist or is too short.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Container, Mapping

from runfold.log.tail import Tail
from runfold.projector.active import ActiveRun
from runfold.projector.awaited_logs import AwaitedLogs, SetAside
from runfold.projector.stuck import GivenUp

_CATCHING_UP_MAX = 200
"""The number of runs with a backlog that are tailed at once. They fit into the tail's hot session,
beside the runs that have caught up and speak.
"""

_CAUGHT_UP_LAG = 500

_UNKNOWN_SECONDS = 0.25
"""How long the tail follows a topic that its client does not know. A topic of a new run is known
after one or two requests.
"""

_SILENT_SECONDS = 6.0
"""How long a run may be tailed without the answer of a broker before another run gets its place."""

_LOOK_SECONDS = 1.0

_OTHERS = "runs without a place in the tail"


class Backlog:
    """The runs of one worker that wait for the tail, are catching up, or wait for their log."""

    def __init__(self, tail: Tail, awaited: AwaitedLogs, *, set_aside: SetAside, park_seconds: float) -> None:
        self._tail = tail
        self._awaited = awaited
        self._set_aside = set_aside
        self._park_seconds = park_seconds
        self._waiting: OrderedDict[str, ActiveRun] = OrderedDict()
        self._catching_up: dict[str, tuple[ActiveRun, float]] = {}
        """The runs by id, each with the time since when it is tailed."""
        self._left = 0
        """The number of runs that have caught up so far."""
        self.given_up = GivenUp()
        """The topics of runs that were removed before their fold was at the end of their log."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._catching_up) + len(self._awaited)

    @property
    def _unfinished(self) -> tuple[Container[str], ...]:
        return self._awaited, self._waiting, self._catching_up

    def has(self, run: ActiveRun) -> bool:
        """Whether the run waits for the tail, or is catching up. A run that waits for its log is
        set aside soon.
        """
        return run.run_id in self._waiting or run.run_id in self._catching_up

    def end(self, run: ActiveRun) -> int | None:
        """The end of the run's log in the last fetch. None before, and if the run is not tailed."""
        return self._tail.end(run.at)

    @property
    def awaited(self) -> AwaitedLogs:
        return self._awaited

    def waiting(self) -> dict[str, object]:
        """The topics that are catching up, each with its position, and all that wait for them."""
        positions = {run.topic: run.next_offset for run, _ in self._catching_up.values()}
        if not self._waiting:
            return {**positions}
        return {**positions, _OTHERS: (self._left, sum(positions.values()))}

    def add(self, run: ActiveRun) -> None:
        """Has the run tailed as soon as there is room."""
        self._waiting[run.run_id] = run
        self.given_up.discard(run.topic)
        self._feed_tail()

    def remove(self, run: ActiveRun) -> None:
        """Ends the tailing of the run, whether it has caught up or not."""
        if run.at in self._tail.behind or any(run.run_id in runs for runs in self._unfinished):
            self.given_up.add(run.topic)
        self._tail.unfollow(run.at)
        self._awaited.remove(run)
        self._waiting.pop(run.run_id, None)
        self._catching_up.pop(run.run_id, None)
        self._feed_tail()

    def release(self, run: ActiveRun) -> bool:
        """Ends the tailing of a run that is at the end of its log. Returns whether it is."""
        if self._tail.end(run.at) != run.next_offset or run.run_id in self._awaited:
            return False
        self._tail.unfollow(run.at)
        self._catching_up.pop(run.run_id, None)
        self._feed_tail()
        return True

    def suspect(self, run: ActiveRun) -> None:
        """Takes the run from the tail until its log was looked at."""
        self.remove(run)
        self._awaited.add(run)

    async def find_logs(self, by_topic: Mapping[str, ActiveRun]) -> None:
        """Endless: looks for the logs of suspected runs, and suspects runs whose topic was deleted
        while they were tailed. Sets aside runs whose topic Kafka refuses. `by_topic` has all active
        runs.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._awaited.work())
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                while self._tail.refused:
                    topic, reason = self._tail.refused.popitem()
                    if (refused := by_topic.get(topic)) is not None:
                        await self._set_aside(refused, reason)
                for at in self._tail.unknown():
                    run = by_topic.get(at.topic)
                    if run is not None and run.run_id not in self._catching_up:
                        self.suspect(run)

    def find_caught_up(self) -> None:
        """Gives the places of the runs that have caught up to the next runs. A run that had no
        record for long can be parked at once.
        """
        now = time.monotonic()
        for run, since in list(self._catching_up.values()):
            end = self._tail.end(run.at)
            if end is None and self._is_silent(run, now - since):
                self.suspect(run)
            if end is None or end - run.next_offset > (_CAUGHT_UP_LAG if run.max_time else 0):
                continue
            del self._catching_up[run.run_id]
            self._left += 1
            if not run.bells and time.time() - run.max_time / 1000 > self._park_seconds:
                run.quiet_since = float("-inf")
        self._feed_tail()

    def _is_silent(self, run: ActiveRun, seconds: float) -> bool:
        return seconds > (_UNKNOWN_SECONDS if self._tail.is_unknown(run.at) else _SILENT_SECONDS)

    def _feed_tail(self) -> None:
        now = time.monotonic()
        while self._waiting and len(self._catching_up) < _CATCHING_UP_MAX:
            run_id, run = self._waiting.popitem(last=False)
            self._catching_up[run_id] = run, now
            self._tail.follow(run.at, run.next_offset)
