"""`runfold serve projector --workers N`: several projectors on one machine, each a process of its
own. They are members of one consumer group, so they share the runs.

A worker that is killed, for example for its memory, is started again. If a worker ends by itself,
all of them end, as a single projector would: its settings are wrong, or its port is taken.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import typer

from runfold.local.leash import leashed
from runfold.settings import Settings, variable
from runfold.telemetry.log_lines import configure_logging

_PAUSE_SECONDS: Final = 1.0

_GRACE_SECONDS: Final = 15.0
"""How long a worker may take to end. Answering its last requests takes 5 s at the most."""

_log = logging.getLogger(__name__)


async def serve_workers(settings: Settings) -> None:
    """Runs the workers until the process is told to stop. If one of them ends by itself, the
    command ends with its exit code.
    """
    configure_logging(settings.log_level, levels=settings.log_levels, log_format=settings.log_format)
    running: set[asyncio.subprocess.Process] = set()
    tasks = [asyncio.create_task(_keep_up(settings, number, running)) for number in range(settings.workers)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        code = done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*map(_stop, running))
    raise typer.Exit(code)


async def _keep_up(settings: Settings, number: int, running: set[asyncio.subprocess.Process]) -> int:
    """Runs a worker, again whenever it is killed. Returns its exit code if it ends by itself."""
    while True:
        process = await asyncio.create_subprocess_exec(
            *leashed(_command(settings, number)),
            env=os.environ | _variables(settings, number),
            stdin=asyncio.subprocess.DEVNULL,
            # In a group of its own, Ctrl-C in the terminal reaches this process only, which stops
            # the workers in order.
            start_new_session=True,
        )
        running.add(process)
        code = await process.wait()
        running.discard(process)
        if code >= 0:
            return code
        name = signal.Signals(-code).name
        _log.error("worker %s was killed by %s; starting it again", number + 1, name)
        await asyncio.sleep(_PAUSE_SECONDS)


def _command(settings: Settings, number: int) -> Sequence[str]:
    port = str(settings.port + number)
    options = ["--host", settings.host, "--port", port, "--workers", "1"]
    return [sys.executable, "-m", "runfold.cli", "serve", "projector", *options]


def _variables(settings: Settings, number: int) -> dict[str, str]:
    """The first worker has the name itself, as a single projector has."""
    if settings.worker_id is None or number == 0:
        return {}
    return {variable("worker_id"): f"{settings.worker_id}-{number + 1}"}


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _GRACE_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
