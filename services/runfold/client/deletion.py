"""Noticing that a run was deleted, or has no log, while somebody publishes to it.

Kafka answers nothing for a topic that is gone, so a publish would wait for its whole timeout.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Final

from runfold_schemas.errors import RunfoldError, UnavailableError

_DOUBT_SECONDS: Final = 2.0
"""How long a publish may take before its log is looked at. It nearly always takes milliseconds."""


def noticing_deletion(
    fault: Callable[[], Awaitable[RunfoldError | None]],
) -> AbstractAsyncContextManager[None]:
    """Raises the fault of the log, if it has one and what happens inside takes long."""
    return _Look(fault)


class _Look:
    """Looks again and again, and cancels the publishing task when the log has a fault.

    A class, because the event loop registers each generator of a context manager made of one: for
    an append this takes longer than its timers.
    """

    def __init__(self, fault: Callable[[], Awaitable[RunfoldError | None]]) -> None:
        self._fault = fault
        self._found: RunfoldError | None = None
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._publishing = task
        self._cancellations_before = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(_DOUBT_SECONDS, self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        if self._found is None or kind is None or not issubclass(kind, asyncio.CancelledError):
            return
        # The caller may have cancelled at the same time.
        if self._publishing.uncancel() <= self._cancellations_before:
            raise self._found from None

    def _begin(self) -> None:
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while self._found is None:
            with suppress(UnavailableError):
                self._found = await self._fault()
            if self._found is not None:
                self._publishing.cancel()
            else:
                await asyncio.sleep(_DOUBT_SECONDS)
