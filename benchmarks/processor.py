"""The processor time and the memory of other processes, read from `/proc`."""

import os
from collections.abc import Iterable
from pathlib import Path

from runfold.settings import Settings

_LISTENING = "0A"


def processor_seconds(pid: int) -> float:
    """The user and system time of a process so far."""
    # The fields after the name, which may contain spaces. User and system time are the 12th and the
    # 13th of them.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


class BrokerSeconds:
    """The processor time that the broker takes in `with` blocks, all together. 0 if the broker does
    not run on this machine.
    """

    def __init__(self, settings: Settings) -> None:
        self._pid = broker(settings)
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.seconds -= self._so_far()

    def __exit__(self, *error: object) -> None:
        self.seconds += self._so_far()

    def _so_far(self) -> float:
        return processor_seconds(self._pid) if self._pid else 0.0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def broker(settings: Settings) -> int | None:
    """The process of the first broker, if it runs on this machine."""
    port = int(settings.kafka.split(",")[0].rpartition(":")[2])
    inodes = {
        f"socket:[{fields[9]}]"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in map(str.split, Path(table).read_text().splitlines()[1:])
        if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port
    }
    return next((int(path.name) for path in _processes() if _holds(path, inodes)), None)


def _processes() -> Iterable[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdigit())


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(str(descriptor.readlink()) in inodes for descriptor in (process / "fd").iterdir())
    except OSError:  # the process ended, or belongs to another user
        return False
