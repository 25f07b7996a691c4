"""Locks by name, for tasks of any event loop and any thread.

A lock of asyncio belongs to the loop that waited for it first.
"""

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from typing import Self
from weakref import WeakValueDictionary


class NamedLocks:
    """One lock for each name. A lock exists as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, AnyLoopLock] = WeakValueDictionary()
        self._guard = threading.Lock()

    def of(self, name: str) -> "AnyLoopLock":
        with self._guard:
            return self._locks.setdefault(name, AnyLoopLock())


class AnyLoopLock:
    """A fair lock, used as an async context manager."""

    def __init__(self) -> None:
        # Reentrant: a task that is collected as garbage releases its lock wherever that happens.
        self._guard = threading.RLock()
        self._is_held = False
        self._queue: deque[Future[None]] = deque()

    async def __aenter__(self) -> Self:
        turn: Future[None] = Future()
        with self._guard:
            if not self._is_held:
                self._is_held = True
                return self
            self._queue.append(turn)
        try:
            await asyncio.wrap_future(turn)
        except BaseException:
            if not turn.cancel():  # the turn came first
                self._release()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._release()

    def _release(self) -> None:
        turn = self._next_turn()
        if turn is not None:
            turn.set_result(None)

    def _next_turn(self) -> Future[None] | None:
        with self._guard:
            while self._queue:
                turn = self._queue.popleft()
                if turn.set_running_or_notify_cancel():
                    return turn
            self._is_held = False
            return None
