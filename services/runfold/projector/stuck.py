"""The stuck detector: finds work that waits for a while without progress. It is named in the log,
in the metric `runfold_stuck` and by readiness, and again in the log when the work goes on.

A watch asks for marks of the waiting work, which change with every progress. The workers keep these
marks anyway, so a look costs nothing per record.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from prometheus_client import Gauge

from runfold.telemetry import outages
from runfold_schemas.errors import UnavailableError

STUCK_SECONDS = 7.0
"""How long work may wait without progress. It is named within 10 s, with the pauses between the
looks.
"""

_LOOK_SECONDS = 1.0

_NAMED_MAX = 12
"""A longer line would not be read. It says how many further ones there are."""

_GIVEN_UP_MAX = 1_000

_STUCK = Gauge("runfold_stuck", "Work of this projector that waits without progress", ["what"])

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

Marks = Mapping[str, object]
"""The work that waits, by name. A mark changes with every progress."""


class Steps:
    """Work that is done one step after the other, as a source of marks."""

    def __init__(self) -> None:
        self._begun = self._done = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step for the length of the block."""
        self._begun += 1
        try:
            yield
        finally:
            self._done += 1

    async def run(self, work: Awaitable[ResultT]) -> ResultT:
        """A step that lasts as long as `work`."""
        with self.step():
            return await work

    @property
    def done(self) -> int:
        """The number of steps that have ended."""
        return self._done

    def waiting(self) -> Marks:
        return {"": self._done} if self._begun > self._done else {}


class GivenUp:
    """The names of work that ended without further progress, for example because a run was set
    aside or deleted. Old names are forgotten.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        self._names[name] = None
        if len(self._names) > _GIVEN_UP_MAX:
            del self._names[next(iter(self._names))]

    def discard(self, name: str) -> None:
        """The work is taken up again."""
        self._names.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._names


class Watch:
    """Looks at one sort of work. `reason` says what is wrong, before the names of the work. If the
    work is to get answers from a server, `server` is its name. Work in `given_up` waits no longer,
    but does not go on. With `is_search` it only looks for work, again and again.
    """

    def __init__(
        self,
        what: str,
        waiting: Callable[[], Marks],
        reason: str,
        *,
        seconds: float = STUCK_SECONDS,
        server: str | None = None,
        given_up: Container[str] = (),
        is_search: bool = False,
    ) -> None:
        self.what = what
        self.tenant: str | None = None
        """The tenant whose work it is, if it is not the installation's own."""
        self._given_up = given_up
        self.server = server
        self._is_search = is_search
        self._waiting = waiting
        self._reason = reason
        self._seconds = seconds
        self._since: dict[str, tuple[object, float]] = {}
        self._stuck: set[str] = set()
        self._looked_at = 0.0

    def look(self, now: float) -> None:
        since, stuck = {}, set()
        for name, mark in self._waiting().items():
            before = self._since.get(name)
            entry = before if before is not None and before[0] == mark else (mark, now)
            since[name] = entry
            if now - entry[1] >= self._seconds:
                stuck.add(name)
        self._since, self._looked_at = since, now
        if new := stuck - self._stuck:
            _log.warning("stuck: %s", self._describe(new))
        resolved = self._stuck - stuck
        if going_on := {name for name in resolved if name not in self._given_up}:
            _log.warning("no longer stuck: %s", self._describe(going_on))
        if new or resolved:
            self._stuck = stuck

    @property
    def stuck(self) -> int:
        return len(self._stuck)

    def stuck_for(self) -> list[tuple[str, float]]:
        """The names of what is stuck, each with the seconds since its last progress."""
        return [(name, self._looked_at - self._since[name][1]) for name in sorted(self._stuck)]

    @property
    def why(self) -> str:
        """What is wrong with whatever is stuck."""
        return self._reason

    @property
    def has_work(self) -> bool:
        """Whether any work waits. Answers of a server are no work, and no search is."""
        return self.server is None and not self._is_search and bool(self._waiting())

    @property
    def reason(self) -> str | None:
        """What is stuck. None if nothing is."""
        return self._describe(self._stuck) if self._stuck else None

    @property
    def is_server_away(self) -> bool:
        """Whether a server gives no answer at all."""
        return self.server is not None and bool(self._stuck) and self._stuck == self._since.keys()

    def _describe(self, names: Iterable[str]) -> str:
        listed = sorted(filter(None, names))
        further = f" and {len(listed) - _NAMED_MAX} more" if len(listed) > _NAMED_MAX else ""
        return f"{self._reason}: {', '.join(listed[:_NAMED_MAX])}{further}" if listed else self._reason


class StuckDetector:
    """Looks at all watches once a second. `watches` returns those of the current worker."""

    def __init__(self, watches: Callable[[], Iterable[Watch]]) -> None:
        self._watches = watches
        self._away: set[str] = set()

    async def work(self) -> None:
        """Endless."""
        clock, looked_at = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            # While the process was stopped, nothing could make progress.
            clock, looked_at = clock + min(now - looked_at, 2 * _LOOK_SECONDS), now
            stuck: Counter[str] = Counter()
            watches = list(self._watches())
            for watch in watches:
                watch.look(clock)
                stuck[watch.what] += watch.stuck
            self._note_servers([watch for watch in watches if watch.server and watch.tenant is None])
            _STUCK.clear()  # a worker that has ended has nothing to do
            for what, count in stuck.items():
                _STUCK.labels(what).set(count)

    def _note_servers(self, watches: Sequence[Watch]) -> None:
        """Servers that accept requests and answer none are away too. While no worker watches a
        server, it stays as it was.
        """
        away = {str(watch.server): str(watch.reason) for watch in watches if watch.is_server_away}
        for server, reason in away.items():
            outages.failed(server, reason)
        for server in {str(watch.server) for watch in watches} & self._away - away.keys():
            outages.answered(server)
        self._away = away.keys() | (self._away - {str(watch.server) for watch in watches})

    def reasons(self) -> list[str]:
        """What is stuck. Raises `UnavailableError` if a server does not answer."""
        watches = list(self._watches())
        for watch in watches:
            if watch.is_server_away and watch.tenant is None:
                raise UnavailableError(str(watch.server), reason=str(watch.reason))
        return [
            f"tenant {watch.tenant}: stuck: {watch.reason}" if watch.tenant else f"stuck: {watch.reason}"
            for watch in watches
            if watch.reason is not None
        ]
