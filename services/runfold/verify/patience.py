"""How long a comparison waits for projectors that work meanwhile."""

import asyncio

from runfold.store.edition import Edition

WAIT_SECONDS = 5.0
LOOK_SECONDS = 0.1

_ROUNDS_MAX = 12
"""After this many times `wait_seconds`, a projector that folds other runs is not waited for."""


class Patience:
    """Waits as long as the projectors of an edition get on: until nothing was folded for
    `wait_seconds`, and for twelve times that at most.
    """

    def __init__(self, stores: Edition, *, folded: int, wait_seconds: float) -> None:
        """`folded` is what `folded_records` gave at the beginning."""
        now = asyncio.get_running_loop().time()
        self._stores = stores
        self._folded = folded
        self._wait_seconds = wait_seconds
        self._end = now + wait_seconds
        self._last_end = now + _ROUNDS_MAX * wait_seconds

    async def lasts(self) -> bool:
        """Whether to look again after `LOOK_SECONDS`. Once it is over it stays over."""
        now = asyncio.get_running_loop().time()
        if now < self._end:
            return True
        if now >= self._last_end:
            return False
        before, self._folded = self._folded, await folded_records(self._stores)
        if self._folded == before:
            self._last_end = now
            return False
        self._end = now + self._wait_seconds
        return True


async def folded_records(stores: Edition) -> int:
    """The number of records in all runs of an edition."""
    return sum([position async for _, position in stores.runs.progress()])
