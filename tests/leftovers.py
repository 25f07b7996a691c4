"""A folder that goes with the process that asked for it, whatever ends that process.

A process beside it waits for its end, at a pipe that the kernel closes, and removes the folder when
the servers that keep their data there have ended too.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_REMOVE = """
import fcntl, pathlib, shutil, sys, time

folder = pathlib.Path(sys.argv[1])
if not sys.stdin.read():
    for lock in folder.glob("**/lock"):  # of a local stack, whose servers hold it until they end
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    for _ in range(100):  # what is killed at the same time may still write
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.1)
"""


class OwnFolder:
    """A new folder, made when the object is. `close` removes it, and so does the end of the
    process.
    """

    def __init__(self, *, prefix: str, parent: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._remover = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REMOVE, self.path],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def keep(self) -> None:
        """Leaves the folder."""
        self._remover.communicate(b"keep")

    def close(self) -> None:
        self._remover.communicate()


@contextmanager
def own_folder(*, prefix: str, parent: Path | None = None) -> Iterator[Path]:
    folder = OwnFolder(prefix=prefix, parent=parent)
    try:
        yield folder.path
    finally:
        folder.close()
