"""Decides the options of the Java machine that runs Kafka, by the history that Kafka has to load.

A topic of a run takes 45 KB of heap, also when the run has ended. benchmarks/README.md compares
heaps, compilers and collectors.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

HEAP_MB = 1024
"""The limit of the heap without a history. It is reserved, and used only as it fills: 10,000 more
topics fit.
"""

HEAP_KB_PER_LOG = 128
"""What each log adds: more than twice what lives, or the collector would be busy all the time."""

LOGS_FOR_C2 = 4_000
"""From here on, the time that the compiler C2 takes is less than the time that it saves."""

_PARTITION = re.compile(r".*-\d+")


def java_options(logs: int, *, heap_mb: int | None = None) -> list[str]:
    """The options for a broker that loads `logs` logs, with a chosen heap or one that follows
    them.
    """
    compiler = [] if logs >= LOGS_FOR_C2 else ["-XX:TieredStopAtLevel=1"]
    return [
        f"-Xmx{heap_mb or heap_for(logs, machine_mb=memory_mb())}m",
        *compiler,
        # No ExitOnOutOfMemoryError: the broker unpacks compressed batches, and one batch of 600 KB
        # that holds 600 MB would end it. Without the option, only that batch is refused.
        "-XX:+UseSerialGC",
    ]


def heap_for(logs: int, *, machine_mb: int) -> int:
    """The limit of the heap in MB: at most half of the machine's memory."""
    return min(HEAP_MB + logs * HEAP_KB_PER_LOG // 1024, max(machine_mb // 2, HEAP_MB // 2))


def count_logs(log_dir: Path) -> int:
    """The number of logs in Kafka's data directory, each in a folder of its own."""
    with os.scandir(log_dir) as entries:
        return sum(_PARTITION.fullmatch(entry.name) is not None for entry in entries)


def memory_mb() -> int:
    """The memory of this machine in MB, or of the container that this process runs in."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        machine = min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return machine // 2**20
