"""The writes of a worker that are on their way: several at once, and at most one of each run.

So the events of one run are stored in the order of its log, and the events of other runs do not
wait for them.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from runfold.projector.active import Folded
from runfold.projector.stuck import Marks

_WRITES_MAX: Final = 4
"""The number of writes at once. Under load more of them would only make smaller writes."""

_BYTES_MAX: Final = 8 * 1024 * 1024
"""The size of the records that are on their way, about that of a fetch. A single write may be
larger.
"""

Write = Callable[[Sequence[Folded]], Awaitable[None]]


class Writes:
    """`write` writes folded events of several runs."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._last: dict[str, asyncio.Task[None]] = {}
        """The last write of each run, by log."""
        self._sizes: dict[asyncio.Task[None], int] = {}
        self._writing: dict[str, int] = {}
        self._begun = 0

    def waiting(self) -> Marks:
        """The writes that MongoDB has not answered yet, each under the name of one of its runs."""
        return dict(self._writing)

    async def begin(
        self, tasks: asyncio.TaskGroup, batch: Sequence[Folded], *, done: Callable[[], None]
    ) -> None:
        """Begins to write a batch, as soon as there is room for it. `done` is called when all of it
        is written.
        """
        await self._room()
        parts: defaultdict[asyncio.Task[None] | None, list[Folded]] = defaultdict(list)
        for folded in batch:
            parts[self._last.get(folded.run.log_id)].append(folded)
        left = len(parts)

        def part_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for before, part in parts.items():
            self._begin(tasks.create_task(self._run(part, before, part_done)), part)
        if not parts:
            done()

    async def settle(self) -> None:
        """Returns when the writes that are on their way now have ended, also if they fail."""
        if self._sizes:
            await asyncio.wait(list(self._sizes))

    def _begin(self, task: asyncio.Task[None], part: Sequence[Folded]) -> None:
        self._sizes[task] = sum(page.size for folded in part for page in folded.pages)
        for folded in part:
            self._last[folded.run.log_id] = task
        task.add_done_callback(lambda task: self._end(task, part))

    def _end(self, task: asyncio.Task[None], part: Sequence[Folded]) -> None:
        del self._sizes[task]
        for folded in part:
            if self._last.get(folded.run.log_id) is task:
                del self._last[folded.run.log_id]

    async def _room(self) -> None:
        while len(self._sizes) >= _WRITES_MAX or sum(self._sizes.values()) > _BYTES_MAX:
            await asyncio.wait(list(self._sizes), return_when=asyncio.FIRST_COMPLETED)

    async def _run(
        self, part: Sequence[Folded], before: asyncio.Task[None] | None, done: Callable[[], None]
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
            before.result()  # behind a failed write there would be a gap
        self._begun += 1
        name = part[0].run.run_id
        self._writing[name] = self._begun
        try:
            await self._write(part)
        finally:
            del self._writing[name]
        done()
