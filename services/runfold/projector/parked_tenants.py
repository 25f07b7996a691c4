"""One tail for the shared topics of all tenants that are parked in this process. A parked tenant
costs its partitions in a fetch that waits, and no task that does anything.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from runfold.log.hot_and_cold import Pace
from runfold.log.tail import Tail
from runfold_schemas.topics import Partition

PARKED_PACE: Final = Pace(hot_seconds=0.0)
"""A partition that has a record leaves the tail at once, so none is hot for long."""


class ParkedTenants:
    """The partitions of parked tenants."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._woken: dict[Partition, asyncio.Event] = {}

    @asynccontextmanager
    async def following(self, positions: Mapping[Partition, int]) -> AsyncIterator[asyncio.Event]:
        """Follows these partitions for the length of the block, which gets an event that is set
        when one of them has a record.
        """
        woken = asyncio.Event()
        for at, offset in positions.items():
            self._woken[at] = woken
            self._tail.follow(at, offset)
        try:
            yield woken
        finally:
            for at in positions:
                self._tail.unfollow(at)
                self._woken.pop(at, None)

    async def work(self) -> None:
        """Endless."""
        async for fetch in self._tail.fetches():
            for part in fetch:
                self._wake(part.partition)
            if self._tail.refused or self._tail.rewound:
                refused = self._tail.refused
                for at in [at for at in self._woken if at.topic in refused or at in self._tail.rewound]:
                    self._wake(at)  # its worker says what is wrong

    def _wake(self, at: Partition) -> None:
        if (woken := self._woken.get(at)) is not None:
            woken.set()
