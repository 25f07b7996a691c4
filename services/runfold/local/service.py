"""One child process that is started, becomes ready, and is stopped or killed: Kafka, mongod or a
service of Runfold.

Services are started from the main thread's event loop, for the reason in `leash`.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import StartError
from .leash import leashed
from .reason import reason_in

Ready = Callable[["Service"], Awaitable[None]]
"""Returns when the service can be used. It is cancelled at the deadline, or when the process ends.
"""

Argv = Sequence[str] | Callable[[], Sequence[str]]
"""The command of a program, or what decides it at each start."""


class Service:
    """A program that runs beside this process, in its own process group, and writes to the file
    `log`.

    `ready` decides when a start is complete (see `readiness`). `inherit` are file descriptors that
    the program keeps open. `stop` sends SIGTERM, and SIGKILL if the program still runs after
    `grace_seconds`.
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
    ) -> None:
        self.name = name
        self.argv = argv
        self.ready = ready
        self.log = log
        self.env = dict(env or {})
        self.inherit = tuple(inherit)
        self.start_seconds = start_seconds
        self.grace_seconds = grace_seconds
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
        try:
            async with asyncio.timeout(self.grace_seconds):
                await self._process.wait()
        except TimeoutError:
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
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            return await asyncio.create_subprocess_exec(
                *leashed(self.argv() if callable(self.argv) else self.argv),
                env=os.environ | self.env,
                pass_fds=self.inherit,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # In a group of its own, Ctrl-C in the terminal reaches only this process, which
                # stops the programs in order.
                start_new_session=True,
            )

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        ready = asyncio.ensure_future(self.ready(self))
        end = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({ready, end}, timeout=self.start_seconds, return_when=asyncio.FIRST_COMPLETED)
            error = ready.exception() if ready.done() else None
            if end.done():
                reason = f"did not start, {_ending(end.result())}"
            elif not ready.done():
                reason = f"was not ready in {self.start_seconds:g} s"
            elif error:
                reason = f"did not get ready ({error})"
            else:
                return
            line = reason_in(self.logged().splitlines())
            raise StartError(self.name, reason=reason, output_line=line, log=self.log) from error
        finally:
            await _cancel(ready, end)

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
