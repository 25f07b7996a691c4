"""How far a fold is behind its log, in records and in seconds, and for how long it stands still.

Only the process's clock and what a worker knows anyway are used, so a look costs no request. What
is remembered outlives a worker: a projector that starts again and again without folding anything is
seen to stand still.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from runfold_schemas.topics import Partition

_ENDS_MAX: Final = 20

_BLIND_SECONDS: Final = 5.0
"""If the last look is older, nobody knows what waits, and this time counts as lag."""


class Waiting(NamedTuple):
    """A partition with records that are not stored."""

    stored: int
    """The offset up to which everything is stored."""
    end: int | None
    """The end of the partition, None before it is known."""
    log_time: int = 0
    """The append time of the last stored record in milliseconds, 0 if it is unknown."""


class _Mark:
    """Since when a partition waits. The oldest record that waits was appended before the first of
    `ends` was seen.
    """

    __slots__ = ("ends", "first_stored")

    def __init__(self, waiting: Waiting, now: float) -> None:
        self.first_stored = waiting.stored
        self.ends: deque[tuple[int, float]] = deque([(waiting.end or 0, now)])

    def move(self, waiting: Waiting, now: float) -> None:
        end = waiting.end or 0
        if end > self.ends[-1][0]:
            if len(self.ends) == _ENDS_MAX:
                # Every other one is enough: the age becomes a little too high.
                self.ends = deque(list(self.ends)[::2])
            self.ends.append((end, now))
        while len(self.ends) > 1 and self.ends[0][0] <= waiting.stored:
            self.ends.popleft()

    def since(self, waiting: Waiting) -> float:
        """When the oldest record that waits was appended, at the latest."""
        seen_at = self.ends[0][1]
        # Before this process looked, records may have waited for long. Those that it has folded
        # since say for how long.
        has_folded = waiting.stored > self.first_stored and waiting.log_time
        return min(seen_at, waiting.log_time / 1000) if has_folded else seen_at


class FoldLag:
    """The lag of one tenant's fold in this process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._waiting: Mapping[Partition, Waiting] = {}
        self._marks: dict[Partition, _Mark] = {}
        self._folded = 0
        self._looked_at = self._moved_at = clock()

    def look(self, waiting: Mapping[Partition, Waiting], *, folded: int) -> None:
        """Takes all partitions that wait now, and the number of records that the process has
        folded. Call it only if it is known what waits.
        """
        now = self._clock()
        has_moved = any(
            at not in waiting or waiting[at].stored != before.stored for at, before in self._waiting.items()
        )
        if not waiting or has_moved or folded != self._folded:
            self._moved_at = now
        marks = {}
        for at, each in waiting.items():
            if (mark := self._marks.get(at)) is None:
                mark = _Mark(each, now)
            else:
                mark.move(each, now)
            marks[at] = mark
        self._waiting, self._marks, self._folded, self._looked_at = waiting, marks, folded, now

    @property
    def records(self) -> int:
        """The number of records that are known to wait."""
        return sum(max(0, (each.end or 0) - each.stored) for each in self._waiting.values())

    @property
    def seconds(self) -> float:
        """The age of the oldest record that waits. If there was no look for a while, the time since
        then, if it is longer: nobody knows what has come.
        """
        now = self._clock()
        oldest = min((self._marks[at].since(each) for at, each in self._waiting.items()), default=now)
        blind = now - self._looked_at
        return max(0.0, now - oldest, blind if blind > _BLIND_SECONDS else 0.0)

    @property
    def stalled_seconds(self) -> float:
        """For how long nothing was folded although records wait, or may wait."""
        return self._clock() - self._moved_at
