"""The erasures that a process is working on. They go on after the call that began them has its
answer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, NamedTuple, Self

from runfold.client.connection import LogConnection
from runfold.erasure.erasure import Erased, erase_user
from runfold.erasure.log import last_receipt, read_receipts
from runfold.erasure.receipt import SignedReceipt
from runfold.settings import Settings
from runfold_schemas.erasures import subject_of
from runfold_schemas.errors import UnavailableError

_RETRY_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Running(NamedTuple):
    """An erasure that is not finished."""

    subject: str
    doing: str
    """What it is doing, in a few words."""


class Erasures:
    """Use it as an async context manager. What it leaves unfinished, a repeated call finishes.

    `connection` returns the connection to Kafka, or raises while there is none.
    """

    def __init__(self, settings: Settings, connection: Callable[[], LogConnection]) -> None:
        self._settings = settings
        self._connection = connection
        self._tasks: dict[str, asyncio.Task[Erased]] = {}
        self._doing: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    def running(self, subject: str) -> Running | None:
        """The erasure of this user that is under way in this process."""
        return Running(subject, self._doing[subject]) if subject in self._tasks else None

    async def erase(self, user: str, *, wait_seconds: float) -> Erased | Running:
        """Erases a user. Returns after `wait_seconds` if that takes longer; a further call then
        waits for the same erasure. Raises what `erase_user` raises.
        """
        subject = subject_of(self._settings.prefix, user)
        self._connection()
        task = self._tasks.get(subject)
        if task is None:
            self._doing[subject] = "it begins"
            task = self._tasks[subject] = asyncio.create_task(self._erase(user, subject))
            task.add_done_callback(lambda done: self._end(subject, done))
        await asyncio.wait([task], timeout=wait_seconds)
        return task.result() if task.done() else Running(subject, self._doing[subject])

    def _end(self, subject: str, task: asyncio.Task[Erased]) -> None:
        del self._tasks[subject], self._doing[subject]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the erasure of %s failed", subject, exc_info=error)

    async def last(self, subject: str) -> SignedReceipt | None:
        """The receipt of the last erasure of a user."""
        return await last_receipt(self._settings.log(), subject)

    async def newest(self, limit: int) -> list[SignedReceipt]:
        """The last receipts of all users, the newest first."""
        newest: deque[SignedReceipt] = deque(maxlen=limit)
        async with aclosing(read_receipts(self._settings.log())) as receipts:
            async for signed in receipts:
                newest.append(signed)
        return [*reversed(newest)]

    async def _erase(self, user: str, subject: str) -> Erased:
        def report(doing: str) -> None:
            self._doing[subject] = doing

        while True:
            try:
                return await erase_user(self._settings, self._connection(), user, report=report)
            except* UnavailableError as group:
                report(f"it is tried again: {group.exceptions[0]}")
                _log.warning("the erasure of %s goes on soon: %s", subject, group.exceptions[0])
            await asyncio.sleep(_RETRY_SECONDS)
