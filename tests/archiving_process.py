"""Archives runs without end, and notes each acknowledged one: a process for tests to kill."""

import asyncio
import sys
import time
from itertools import count
from pathlib import Path

from tests.archived import archive_in, segment_of

from runfold.archive.table import Fence


async def main(folder: Path) -> None:
    """Archives one run after another, half of them again."""
    archive, fence = archive_in(folder), Fence("archiver-0", time.time_ns())
    for number in count():
        run_ids = [f"{fence.token}-{number}", f"shared-{number}"]
        await archive.append([segment_of(run_id, "a", "b") for run_id in run_ids], fences=[fence])
        with (folder / "acknowledged").open("a") as notes:
            notes.write("".join(f"{run_id}\n" for run_id in run_ids))
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
