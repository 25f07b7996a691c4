"""An archiver that kills itself at a step that a test names: a process for tests.

    python dying_archiver.py STEP

Without a step, it works until it is killed.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, Final

import runfold.archive.compaction
import runfold.archiver.archiving
import runfold.archiver.steps
from runfold.archive.archive import Archive
from runfold.archive.table import ArchiveTable
from runfold.archiver.service import Archiver
from runfold.archiver.steps import Steps
from runfold.settings import Settings

STEPS: Final[dict[str, tuple[Any, str, bool]]] = {
    "before the seal": (runfold.archiver.steps, "seal", False),
    "after the seal": (runfold.archiver.steps, "seal", True),
    "after the entry": (Steps, "seal", True),
    "before the commit": (Archive, "append", False),
    "after the commit": (Archive, "append", True),
    "after the comparison": (runfold.archiver.archiving, "check_commit", True),
    "after the announcement": (Steps, "archive", True),
    "before the deletion": (runfold.archiver.steps, "delete_topics", False),
    "after the deletion": (runfold.archiver.steps, "delete_topics", True),
}
"""Where each step is, and whether the process dies after it or before it."""

COMPACTION: Final[dict[str, tuple[Any, str, bool]]] = {
    "before the compaction": (runfold.archive.compaction, "_replace", False),
    "after the compaction": (runfold.archive.compaction, "_replace", True),
}
"""The same for the compaction."""

CLEARING_STEPS: Final[dict[str, tuple[Any, str, bool]]] = {
    "after rows were deleted": (ArchiveTable, "delete", True),
    "after the archive's deletion": (Archive, "delete", True),
}
"""The same for the removal of deleted runs."""


def die_at(step: str) -> None:
    owner, name, is_after = (STEPS | COMPACTION | CLEARING_STEPS)[step]
    work: Callable[..., Any] = getattr(owner, name)

    def work_in_thread_and_die(*args: Any, **options: Any) -> None:
        if is_after:
            work(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    def die_after(working: asyncio.Future[Any]) -> None:
        if not working.cancelled() and working.exception() is None:
            os.kill(os.getpid(), signal.SIGKILL)

    async def work_and_die(*args: Any, **options: Any) -> Any:
        if not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        working = asyncio.ensure_future(work(*args, **options))
        working.add_done_callback(die_after)
        # A server's error cancels what waits for the step, and no round repeats what is done.
        await asyncio.shield(working)

    setattr(owner, name, work_and_die if iscoroutinefunction(work) else work_in_thread_and_die)


async def main(step: str | None) -> None:
    if step is not None:
        die_at(step)
    async with Archiver(Settings()):
        print("started", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
