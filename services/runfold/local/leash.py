"""Runs a program that dies when the process that started it dies, whatever killed that process.

It is started as a script, `python leash.py OWNER_PID PROGRAM ARGUMENT...`, and then becomes the
program. A signal handler in the owner is not enough, because SIGKILL leaves the owner no time. So
the child asks the kernel to be killed (PR_SET_PDEATHSIG). Code between fork and exec (`preexec_fn`)
can deadlock in a process with threads, so the call is in a script. The script imports only the
standard library, which takes about 20 ms.

The signal is SIGKILL, because a process can ignore any other. Kafka and MongoDB lose no
acknowledged data by it. The kernel sends the signal when the *thread* that started the child ends,
so services are started from the main thread's event loop. Only Linux has this call; elsewhere a
killed owner leaves its children behind.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def leashed(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` and ends with this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def main(owner: int, program: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:  # the owner died before the call
        sys.exit(1)
    raise_open_files_limit()
    os.execvp(program[0], program)  # noqa: S606 - no shell on purpose, and our own code chose it


def raise_open_files_limit() -> None:
    """Raises the soft limit of open files to the hard limit. A broker keeps two files open for each
    topic, and MongoDB two for each collection; a common soft limit is 1024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return  # macOS reports an unlimited hard limit and refuses it; the old soft limit stays


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
