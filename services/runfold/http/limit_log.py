"""Log lines about a limit: that it is reached, and that there is room again."""

import logging
import time
from typing import Final

_PAUSE_SECONDS: Final = 60.0
"""The shortest pause between two warnings, so that a client cannot fill the log."""

_ROOM_SHARE: Final = 0.9
"""There is room again below this share of the limit."""

_log = logging.getLogger(__name__)


class LimitLog:
    """The lines about one limit. `what` names the things that are counted, and `setting` the
    variable that sets the limit.
    """

    def __init__(self, what: str, limit: int, *, setting: str) -> None:
        self._what: Final = what
        self._limit: Final = limit
        self._setting: Final = setting
        self._refused = 0
        self._is_reached = False
        self._warned_at = float("-inf")

    def refused(self) -> None:
        """Call it whenever something is refused because of the limit."""
        self._refused += 1
        now = time.monotonic()
        if self._is_reached or now - self._warned_at < _PAUSE_SECONDS:
            return
        self._is_reached, self._warned_at = True, now
        _log.warning(
            "the limit of %d %s is reached (%s): further ones are refused",
            self._limit,
            self._what,
            self._setting,
        )

    def look(self, count: int) -> None:
        """Call it with the current number, now and then or when the number falls."""
        if self._is_reached and count < _ROOM_SHARE * self._limit:
            _log.warning("there is room for %s again; %d were refused", self._what, self._refused)
            self._is_reached, self._refused = False, 0
