"""Log lines that a client can cause, a few in a while: further ones are counted and summed up."""

import asyncio
import logging
from typing import Final


class LimitedLog:
    """Logs up to `lines_max` lines in `seconds`, and one line that sums up the others. Lines with
    the same `key` are one line. `what` names the subjects, as in "further records".
    """

    def __init__(
        self, logger: logging.Logger, what: str, *, level: int, lines_max: int, seconds: float
    ) -> None:
        self._logger: Final = logger
        self._what: Final = what
        self._level: Final = level
        self._lines_max: Final = lines_max
        self._seconds: Final = seconds
        self._keys: set[str] = set()
        self._further = 0
        self._last = ""
        self._is_open = False

    def log(self, key: str, line: str) -> None:
        """Logs the line, or counts it. Needs a running event loop."""
        if not self._is_open:
            self._is_open = True
            asyncio.get_running_loop().call_later(self._seconds, self._close)
        if key in self._keys or len(self._keys) >= self._lines_max:
            self._further, self._last = self._further + 1, line
            return
        self._keys.add(key)
        self._logger.log(self._level, "%s", line)

    def _close(self) -> None:
        if self._further:
            self._logger.log(
                self._level,
                "%d further %s within %g s, the last: %s",
                self._further,
                self._what,
                self._seconds,
                self._last,
            )
        self._keys.clear()
        self._further, self._is_open = 0, False
