"""Shared topics that were deleted under their tail. For an unknown topic, a client requests
metadata without end. So the tail leaves the topic, and follows it again when it exists.
"""

import asyncio
from collections.abc import Callable, Collection

from runfold.log.ends import LogEnds
from runfold.log.tail import Tail
from runfold_schemas.topics import Partition

_LOOK_SECONDS = 2.0


class AbsentSharedTopics:
    """The partitions of one tail whose topic does not exist. `partitions` returns the numbers of
    the partitions that the worker owns.
    """

    def __init__(self, tail: Tail, ends: LogEnds, *, partitions: Callable[[], Collection[int]]) -> None:
        self._tail = tail
        self._ends = ends
        self._partitions = partitions
        self._absent: dict[Partition, int] = {}

    @property
    def owned(self) -> Collection[int]:
        """The numbers of the partitions that the worker owns."""
        return self._partitions()

    def waiting(self) -> dict[str, object]:
        """The names of the topics."""
        return {at.topic: None for at in self._absent}

    async def work(self) -> None:
        """Endless."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for at, position in self._tail.unknown().items():
                self._tail.unfollow(at)
                self._absent[at] = position
            self._absent = {at: offset for at, offset in self._absent.items() if at.partition in self.owned}
            if self._absent:
                ends, _ = await self._ends.look(self._absent)
                for at in ends:
                    self._tail.follow(at, self._absent.pop(at))
