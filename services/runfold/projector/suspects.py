"""The runs that a worker has to examine: folding or storing them failed, or they were in hand when
a process died. Until they are examined, they are neither loaded nor tailed.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from runfold.projector.stuck import GivenUp, Marks
from runfold.store.holdings import Held

_EXAMINED_MAX = 4
"""The number of runs that are examined at the same time."""


class Suspect(NamedTuple):
    run_id: str
    log_id: str
    error: Exception | None = None
    held: Sequence[Held] = ()
    """The records of the run that were in hand when a process died."""
    is_refolded: bool = False
    """Whether the whole log is folded anew first."""
    is_requested: bool = False
    """Whether an operator asked for it."""


class Suspects:
    """The suspected runs of one worker, in the order in which they are examined."""

    def __init__(self) -> None:
        self._suspects: dict[str, Suspect] = {}
        self._waiting: deque[Suspect] = deque()
        self._added = asyncio.Event()
        self._progress: Counter[str] = Counter()
        self._removed = 0
        self.given_up = GivenUp()
        """The runs that were set aside after their examination."""

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._suspects

    def add(self, suspect: Suspect) -> None:
        """Has the run examined. A run that waits already keeps its place."""
        if suspect.run_id not in self._suspects:
            self._suspects[suspect.run_id] = suspect
            self.given_up.discard(suspect.run_id)
            self._waiting.append(suspect)
            self._added.set()

    def add_all(self, suspects: Iterable[Suspect]) -> None:
        """Has these runs examined."""
        for suspect in suspects:
            self.add(suspect)

    async def examine(self, examine: Callable[[Suspect], Awaitable[None]]) -> None:
        """Endless: calls `examine` for each run, for a few of them at the same time. It calls
        `remove` in the end.
        """
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_EXAMINED_MAX):
                tasks.create_task(self._examine(examine))

    async def _examine(self, examine: Callable[[Suspect], Awaitable[None]]) -> None:
        while True:
            while not self._waiting:
                self._added.clear()
                await self._added.wait()
            suspect = self._waiting.popleft()
            self.note_progress(suspect.run_id)
            await examine(suspect)

    def note_progress(self, run_id: str) -> None:
        """Notes that the examination of a run goes on."""
        self._progress[run_id] += 1

    def waiting(self) -> Marks:
        """The suspected runs. The mark of a run that is not examined yet changes with the end of
        each other examination.
        """
        return {
            run_id: (self._progress[run_id], 0 if run_id in self._progress else self._removed)
            for run_id in self._suspects
        }

    def remove(self, run_id: str, *, goes_on: bool = True) -> None:
        """The run is suspected no longer."""
        if self._suspects.pop(run_id, None) is not None:
            self._removed += 1
            del self._progress[run_id]
            if not goes_on:
                self.given_up.add(run_id)
