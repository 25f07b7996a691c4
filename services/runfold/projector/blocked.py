"""Interrupts whatever blocks the event loop, for example a fold that never ends.

A blocked loop answers nothing and names nothing, so a thread of its own looks at it. An error is
raised in the blocking code, and concerns what that code works on, as any other error does.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from types import FrameType

_LOOK_SECONDS = 1.0

_NAMED_LOOKS, _INTERRUPTED_LOOKS, _ENDED_LOOKS = 7, 9, 30
"""After so many looks, about one a second, a blocked loop is named, is interrupted, and is ended
with its process. Looks are counted instead of seconds, because a process that was stopped was not
blocked.
"""

_AGAIN_LOOKS, _AGAIN_TURNS = 2, 60
"""The examination of the failed work blocks the loop again, so that is interrupted sooner, within
so many turns.
"""

_log = logging.getLogger(__name__)


class BlockedError(Exception):
    """Raised in code that blocks the event loop."""

    def __init__(self) -> None:
        super().__init__("it blocked the event loop")


class LoopGuard:
    """Guards the event loop that runs `work`, the one of the main thread."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._turns = 0
        self._stopped = threading.Event()

    async def work(self) -> None:
        """Endless."""
        signal.signal(signal.SIGUSR1, _interrupt)
        threading.Thread(target=self._watch, name="loop guard", daemon=True).start()
        try:
            while True:
                self._turns += 1
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._stopped.set()

    def _watch(self) -> None:
        turns, looks, limit = self._turns, 0, _INTERRUPTED_LOOKS
        interrupted_at = -_AGAIN_TURNS
        while not self._stopped.wait(_LOOK_SECONDS):
            if self._turns != turns:
                turns, looks = self._turns, 0
                is_again = turns - interrupted_at < _AGAIN_TURNS
                limit = _AGAIN_LOOKS if is_again else _INTERRUPTED_LOOKS
                continue
            looks += 1
            if looks == min(_NAMED_LOOKS, limit):
                _log.error("stuck: the event loop is blocked\n%s", self._stack())
            if looks == limit:
                interrupted_at = turns
                signal.pthread_kill(self._thread_id, signal.SIGUSR1)
            elif looks == _ENDED_LOOKS:
                _log.critical("the event loop is still blocked; the process ends")
                logging.shutdown()
                os._exit(1)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the documented way
        return "".join(traceback.format_stack(frame)) if frame is not None else ""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise BlockedError
