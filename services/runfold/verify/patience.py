"""How long a comparison waits for projectors that work meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

WAIT_SECONDS = 5.0
LOOK_SECONDS = 0.1

_ROUNDS_MAX = 12
"""After this many times `wait_seconds`, a projector that folds other runs is not waited for."""


class Patience:
    """Waits as long as the projectors get on: until nothing was folded for `wait_seconds`, and for
    twelve times that at most.
    """

    def __init__(self, folded: Callable[[], Awaitable[int]], *, at: int, wait_seconds: float) -> None:
        """`folded` gives the number of records that are folded, and `at` what it was at the
        beginning.
        """
        now = asyncio.get_running_loop().time()
        self._folded = folded
        self._at = at
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
        before, self._at = self._at, await self._folded()
        if self._at == before:
            self._last_end = now
            return False
        self._end = now + self._wait_seconds
        return True
