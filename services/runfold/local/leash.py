"""Runs a program that dies when the process that started it dies, whatever killed that process.

Started as a script: `python leash.py OWNER_PID PROGRAM ARGUMENT...`; it then becomes the program. A
handler in the owner could not do this, since SIGKILL leaves the owner no time; so the kernel is
asked (PR_SET_PDEATHSIG). It has to be asked by the child itself, and code between fork and exec
(`preexec_fn`) can deadlock in a process with threads: hence a script, with no import beyond the
standard library, which costs some 20 ms at a start.

The signal is SIGKILL because only that one is sure. Kafka and MongoDB lose nothing by it that they
have acknowledged. The kernel sends it when the *thread* that started the child ends, so services
are started from the main thread's loop. Elsewhere than on Linux there is no such call, and a killed
owner leaves its children behind.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def leashed(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` on a leash held by this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def main(owner: int, program: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:  # it died before the kernel was asked
        sys.exit(1)
    raise_open_files_limit()
    os.execvp(program[0], program)  # noqa: S606 - no shell on purpose, and our own code chose it


def raise_open_files_limit() -> None:
    """A broker holds two files for each topic and MongoDB two for each collection; a common soft
    limit is 1024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return  # macOS reports an unlimited hard limit and refuses it; the old soft limit stays


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
