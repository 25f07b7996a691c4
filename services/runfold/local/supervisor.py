"""Keeps services running: starts them, restarts them when they die, and stops them at the end."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from .errors import StartError
from .service import Service
from .together import together

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
STEADY_SECONDS = 10.0
"""After a service ran for this time, the pause before its next restart is the shortest again."""


class Supervisor:
    """Keeps the services running inside the `async with` block. `say` is called with a line for
    every death and restart.

    Services that run already are supervised too. They keep running at the end, because another
    owner started them.
    """

    def __init__(self, services: Sequence[Service], *, say: Callable[[str], None]) -> None:
        self._services = services
        self._say = say
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        ours = [service for service in self._services if not service.running]
        async with AsyncExitStack() as exit_stack:
            exit_stack.push_async_callback(_stop, ours)
            await together(*(service.start() for service in ours))
            watches = [asyncio.create_task(keep_up(service, say=self._say)) for service in self._services]
            exit_stack.push_async_callback(_cancel, watches)
            self._exit = exit_stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()


async def keep_up(service: Service, *, say: Callable[[str], None]) -> None:
    """Restarts a service whenever it dies. Returns when it was stopped on purpose."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        up_since = time.monotonic()
        ending = await service.ended()
        if not service.should_run:
            return
        if time.monotonic() - up_since > STEADY_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        say(f"{service.name} died ({ending}), starting it again in {pause:g} s")
        await asyncio.sleep(pause)
        if not service.should_run:  # stopped during the pause
            return
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        await _start_again(service, say=say)


async def _start_again(service: Service, *, say: Callable[[str], None]) -> None:
    try:
        await service.start()
    except StartError as error:
        say(str(error))
    else:
        say(f"{service.name} is up again")


async def _cancel(watches: Sequence[asyncio.Task[None]]) -> None:
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)


async def _stop(services: Sequence[Service]) -> None:
    await together(*(service.stop() for service in services))
