"""The events that were sent and are not acknowledged yet."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

ResultT = TypeVar("ResultT")


class Pending(Generic[ResultT]):
    """The tasks of one run that wait for acknowledgements, in the order of their start."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[ResultT], None] = {}

    def start(self, acknowledged: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        task = asyncio.create_task(acknowledged)
        self._tasks[task] = None
        task.add_done_callback(self._forget_unless_failed)
        return task

    async def flush(self) -> None:
        """Waits for all tasks. Raises the first error of a task that nobody has awaited."""
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            self._tasks.pop(task, None)
        errors = [error for task in tasks if _has_unseen_error(task) and (error := task.exception())]
        if errors:
            raise errors[0]

    def _forget_unless_failed(self, task: asyncio.Task[ResultT]) -> None:
        # A failure stays for `flush` to raise, unless somebody awaits the task before.
        if not _has_unseen_error(task):
            self._tasks.pop(task, None)


def _has_unseen_error(task: asyncio.Task[Any]) -> bool:
    # asyncio's own mark for "exception was never retrieved". Asking for the exception would remove
    # the mark.
    return task.done() and task._log_traceback  # noqa: SLF001
