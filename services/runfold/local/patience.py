"""How long a program is waited for: as long as it makes progress.

A broker with a long history needs minutes to load it. If it were killed meanwhile, it would begin
again at the next start, and never be ready.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

WORKING_SHARE = 0.05
"""The least share of a core that a program wants while it works. A program that waits for something
else wants less.
"""

SILENT_FACTOR = 10
"""A program that works and logs nothing is given up after this many times the usual limit. A Java
machine without enough memory is busy with its garbage collector for ever.
"""


class Patience:
    """Decides when a program has made no progress for `seconds`.

    Progress is a longer log, or processor time that the program used or waited for: other programs
    may leave it little. Only Linux shows these times of another process; on other systems only the
    log counts. Time in which nobody looked hardly counts: this process stood still, and perhaps the
    whole machine with it.
    """

    def __init__(
        self, pid: int, log: Path, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pid = pid
        self._log = log
        self._seconds = seconds
        self._clock = clock
        self._log_size, self._cpu_seconds = _size(log), wanted_cpu_seconds(pid)
        self._logged_at = self._worked_at = self._looked_at = clock()

    def is_over(self) -> bool:
        """Whether the last progress is too long ago. Call it several times within `seconds`."""
        now = self._clock()
        unseen_seconds = max(0.0, now - self._looked_at - self._seconds / 2)
        self._logged_at += unseen_seconds
        self._worked_at += unseen_seconds
        self._looked_at = now
        if (size := _size(self._log)) != self._log_size:
            self._log_size = size
            self._logged_at = self._worked_at = now
        wanted = wanted_cpu_seconds(self._pid)
        # It is less when a thread that waited has ended.
        self._cpu_seconds = min(self._cpu_seconds, wanted)
        if wanted - self._cpu_seconds >= WORKING_SHARE * self._seconds:
            self._cpu_seconds = wanted
            self._worked_at = now
        silent_seconds = now - self._logged_at
        return now - self._worked_at >= self._seconds or silent_seconds >= SILENT_FACTOR * self._seconds


def wanted_cpu_seconds(pid: int) -> float:
    """The processor time that a process has used, and that its living threads have waited for. 0.0
    if it has ended, and on systems that do not show it.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    used_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used_seconds + _waited_cpu_seconds(pid)


def _waited_cpu_seconds(pid: int) -> float:
    nanoseconds = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it has ended meanwhile, or the kernel does not count
                nanoseconds += int((thread / "schedstat").read_text().split()[1])
    return nanoseconds / 1e9


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0
