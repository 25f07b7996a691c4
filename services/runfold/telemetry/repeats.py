"""Faults that repeat: one log line, and then how many there were."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SECONDS: Final = 60.0
"""An entry passes again after this time, with the number of those that did not pass."""

_ENTRIES_MAX: Final = 256


@dataclass
class _Entry:
    passed_at: float
    further: int = 0


class RepeatFilter(logging.Filter):
    """For a handler. Passes one of equal warnings and errors a minute, and all other entries."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock: Final = clock
        self._entries: dict[tuple[str, str], _Entry] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now, key = self._clock(), (record.name, record.getMessage())
        entry = self._entries.get(key)
        if entry is not None and now - entry.passed_at < _SECONDS:
            entry.further += 1
            return False
        if entry is not None and entry.further:
            record.msg = f"{key[1]} (and {entry.further} times since the last such line)"
            record.args = ()
        # The oldest one goes first.
        self._entries.pop(key, None)
        self._entries[key] = _Entry(now)
        if len(self._entries) > _ENTRIES_MAX:
            self._entries.pop(next(iter(self._entries)))
        return True
