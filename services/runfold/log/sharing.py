"""Requests that concurrent calls share, so that their number does not grow with the calls."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class SharedRequests(Generic[ItemT, AnswerT]):
    """`send` sends a request for some items. One request is on its way at a time, and what is asked
    for meanwhile goes into the next one.
    """

    def __init__(self, send: Callable[[set[ItemT]], Awaitable[AnswerT]]) -> None:
        self._send = send
        self._sending = asyncio.Lock()
        self._items: set[ItemT] = set()
        self._next: asyncio.Task[AnswerT] | None = None
        self._tasks: set[asyncio.Task[AnswerT]] = set()
        self._closed: Exception | None = None

    async def ask(self, items: Iterable[ItemT]) -> AnswerT:
        """The answer to the next request, which includes these items. Raises what `send` raises."""
        if self._closed is not None:
            raise self._closed
        self._items.update(items)
        if self._next is None:
            self._next = asyncio.create_task(self._send_next())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        request = self._next
        try:
            # Shielded, because other calls with other deadlines wait for the same answer.
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            if request.cancelled() and self._closed is not None:
                raise self._closed from None
            raise

    def close(self, error: Exception) -> None:
        """Ends the requests. Calls that wait for answers raise `error`, and so do later calls."""
        self._closed = error
        for task in self._tasks:
            task.cancel()

    async def _send_next(self) -> AnswerT:
        async with self._sending:
            items, self._items, self._next = self._items, set(), None
            return await self._send(items)
