"""The processor time of the broker, read from `/proc`."""

import os
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""


def processor_seconds(pid: int) -> float:
    """The processor time that a process has taken so far."""
    # The fields after the name, which may contain spaces. User and system time are the 12th and the
    # 13th of them.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """The memory that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def broker_pid(kafka: str) -> int | None:
    """The process that listens at the first address of `kafka`, None if it runs elsewhere."""
    port = int(kafka.split(",", maxsplit=1)[0].rpartition(":")[2])
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(fd.readlink()) in sockets for fd in (process / "fd").iterdir()):
                return int(process.name)
    return None


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen at a port."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes
