"""One child process that is started, becomes ready, and is stopped or killed: Kafka, mongod or a
service of Runfold.

Services are started from the main thread's event loop, for the reason in `leash`.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .errors import StartError
from .leash import leashed
from .patience import Patience
from .reason import reason_in

POLL_SECONDS = 0.1
"""How often a program that is waited for is looked at."""

SAY_SECONDS = 5.0
"""How often a line says that a program is still waited for."""

Ready = Callable[["Service"], Awaitable[None]]
"""Returns when the service can be used. It is cancelled when the service is given up, or when the
process ends.
"""

Argv = Sequence[str] | Callable[[], Sequence[str]]
"""The command of a program, or what decides it at each start."""


class Service:
    """A program that runs beside this process, in its own process group, and writes to the file
    `log`.

    `ready` decides when a start is complete (see `readiness`). A start is given up if the program
    makes no progress for `start_seconds`. `stop` sends SIGTERM, and SIGKILL after `grace_seconds`;
    a program that `stops_slowly` has the same time again after each progress.

    `say` is called with a line every few seconds of a long start or stop. `doing` says in words
    what the program does while it starts. `inherit` are file descriptors that the program keeps
    open.
    """

    def __init__(
        self,
        name: str,
        argv: Argv,
        *,
        ready: Ready,
        log: Path,
        env: Mapping[str, str] | None = None,
        inherit: Sequence[int] = (),
        start_seconds: float = 60,
        grace_seconds: float = 10,
        stops_slowly: bool = False,
        say: Callable[[str], None] = lambda _: None,
        doing: Callable[["Service"], str] = lambda _: "starting",
    ) -> None:
        self.name = name
        self.argv = argv
        self.ready = ready
        self.log = log
        self.env = dict(env or {})
        self.inherit = tuple(inherit)
        self.start_seconds = start_seconds
        self.grace_seconds = grace_seconds
        self.stops_slowly = stops_slowly
        self.say = say
        self.doing = doing
        self.should_run = False
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0
        self._starting = asyncio.Lock()  # a test and a supervisor may start the service at once

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """The id of the process and of its group. None before the first start."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Starts the program and returns when it is ready. Otherwise raises `StartError`, with the
        reason from its log.
        """
        async with self._starting:
            if self.running:
                return
            self.should_run = True
            try:
                self._process = await self._spawn()
                await self._wait_until_ready(self._process)
            except BaseException:
                await self.kill()
                raise

    async def stop(self) -> None:
        """Ends the program in order. A supervisor does not start it again."""
        self.should_run = False
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        end = asyncio.ensure_future(self._process.wait())
        try:
            await self._wait_for({end}, seconds=self.grace_seconds, patiently=self.stops_slowly)
        finally:
            await _cancel(end)
        await self.kill()

    async def kill(self) -> None:
        """Ends the program by SIGKILL, like a crash. A supervisor starts it again."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    async def ended(self) -> str:
        """Waits for the end of the process, and returns in words how it ended."""
        assert self._process is not None, "ended() is for a service that was started"
        return _ending(await self._process.wait())

    def logged(self) -> str:
        """The output of the program since its last start."""
        return self.logged_from(0).decode(errors="replace")

    def logged_from(self, position: int) -> bytes:
        """The output of the program since its last start, without its first `position` bytes."""
        with self.log.open("rb") as file:
            file.seek(self._log_start + position)
            return file.read()

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            return await self._execute(self.argv() if callable(self.argv) else self.argv, output)

    async def _execute(self, argv: Sequence[str], output: IO[bytes]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *leashed(argv),
            env=os.environ | self.env,
            pass_fds=self.inherit,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # In a group of its own, Ctrl-C in the terminal reaches only this process, which stops
            # the programs in order.
            start_new_session=True,
        )

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        ready = asyncio.ensure_future(self.ready(self))
        end = asyncio.ensure_future(process.wait())
        try:
            await self._wait_for({ready, end}, seconds=self.start_seconds, patiently=True, doing=self.doing)
            error = ready.exception() if ready.done() else None
            if end.done():
                reason = f"did not start, {_ending(end.result())}"
            elif not ready.done():
                reason = f"was not ready in {self.start_seconds:g} s without progress"
            elif error:
                reason = f"did not get ready ({error})"
            else:
                return
            line = reason_in(self.logged().splitlines())
            raise StartError(self.name, reason=reason, output_line=line, log=self.log) from error
        finally:
            await _cancel(ready, end)

    async def _wait_for(
        self,
        futures: set[asyncio.Future[Any]],
        *,
        seconds: float,
        patiently: bool,
        doing: Callable[["Service"], str] = lambda _: "stopping",
    ) -> None:
        """Returns when one of `futures` is done, or after `seconds`. If it waits `patiently`, these
        count from the last progress.
        """
        assert self._process is not None, "only a started process is waited for"
        began = said_at = time.monotonic()
        patience = Patience(self._process.pid, self.log, seconds=seconds)
        while not any(future.done() for future in futures):
            now = time.monotonic()
            if patience.is_over() or (not patiently and now - began >= seconds):
                return
            if now - said_at >= SAY_SECONDS:
                said_at = now
                self.say(f"{self.name} is still {doing(self)} ({now - began:.0f} s)")
            poll_seconds = min(POLL_SECONDS, seconds / 4)
            await asyncio.wait(futures, timeout=poll_seconds, return_when=asyncio.FIRST_COMPLETED)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "only a started process is signalled"
        if self.running:
            # The process may end between the two lines, and the group with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


async def run_to_end(name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
    """Runs a program that ends by itself. Raises `StartError`, with the reason from its output, if
    it fails.
    """
    process = await asyncio.create_subprocess_exec(
        *leashed(argv),
        env=os.environ | dict(env or {}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        line = reason_in(output.decode(errors="replace").splitlines())
        raise StartError(name, reason=f"failed, {_ending(process.returncode)}", output_line=line)


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
