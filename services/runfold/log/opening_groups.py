"""Runs are opened in groups: the next group begins when half of the group before has finished.

A broker answers requests for new topics faster than it makes the logs of the topics. If each caller
asked at once, many small requests would pile up, and they take the broker a multiple of the time of
a few large ones.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

_FREE: Final = 4
"""So many callers at a time need no group, so that callers who come one by one never wait."""


class OpeningGroups:
    """Groups of at most `group_max` callers. A group begins at the latest when its
    first caller has waited for `wait_seconds`, because the group before it may hang.
    """

    def __init__(self, *, group_max: int, wait_seconds: float) -> None:
        self._group_max = group_max
        self._wait_seconds = wait_seconds
        self._running = 0
        self._group = 0
        self._waiting: deque[asyncio.Event] = deque()

    @asynccontextmanager
    async def join(self) -> AsyncIterator[None]:
        """Waits for the next group, and takes part in it for the length of the block."""
        entry = asyncio.Event()
        self._waiting.append(entry)
        self._let_in()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._wait_seconds):
                    await entry.wait()
        except BaseException:
            self._leave(entry)
            raise
        if not entry.is_set():
            self._admit()
        try:
            yield
        finally:
            self._running -= 1
            self._let_in()

    def _leave(self, entry: asyncio.Event) -> None:
        """Takes a caller out that was canceled while it waited."""
        if entry.is_set():
            self._running -= 1
        else:
            self._waiting.remove(entry)
        self._let_in()

    def _let_in(self) -> None:
        if self._running <= max(_FREE - 1, self._group // 2):
            self._admit()

    def _admit(self) -> None:
        for _ in range(min(len(self._waiting), self._group_max)):
            self._waiting.popleft().set()
            self._running += 1
        self._group = self._running
