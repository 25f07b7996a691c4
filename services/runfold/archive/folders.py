"""Folders of this machine that have contents of runs for a while: copies of files, and what DuckDB
cannot hold in memory.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

_PREFIX: Final = "runfold-archive-"


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder that is removed at the end. Folders of processes that died are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            descriptor = _locked(left)
            try:
                shutil.rmtree(left)
            finally:
                os.close(descriptor)
    # The folder has another name until it is locked.
    new = Path(tempfile.mkdtemp(prefix=".runfold-"))
    descriptor = _locked(new)
    folder = new.rename(new.with_name(f"{_PREFIX}{new.name.removeprefix('.runfold-')}"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """Locks a folder until the process ends or closes this descriptor. Raises `OSError` if another
    process has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
