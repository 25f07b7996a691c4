"""`runfold follow`: prints a run's events as they come, read from the log."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Final

from rich.console import Console

from runfold import Run, Runfold
from runfold.cli.event_lines import lines
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold.settings import Settings
from runfold_projections.admission import Admission, Admitted
from runfold_schemas.errors import RunNotFoundError, SessionNotFoundError
from runfold_schemas.topics import Partition

_RETRY_SECONDS: Final = 1.0
"""How often `--wait` looks whether the session exists."""


async def follow(
    settings: Settings, *, run_id: str | None, session_id: str | None, wait: bool, as_json: bool
) -> None:
    """Prints the events of a run, or of a session's run, until the run has ended."""
    console = Console(soft_wrap=True)
    async with Runfold.of(settings.log()) as runfold:
        if session_id is not None:
            run = await _open_run_of(session_id, runfold, wait=wait)
        else:
            assert run_id is not None
            run = await runfold.get_run(run_id)
        async for admitted in _read_log(settings.log(), runfold, run):
            _print_event(console, admitted, as_json=as_json)


async def _open_run_of(session_id: str, runfold: Runfold, *, wait: bool) -> Run:
    sessions = runfold.sessions
    is_announced = False
    while True:
        try:
            session = await sessions.view(session_id)
            return await runfold.get_run(session.record.run_id)
        except (SessionNotFoundError, RunNotFoundError):
            if not wait:
                raise
        if not is_announced:
            Console(stderr=True, soft_wrap=True).print(
                f"waiting for session {session_id}", style="dim", markup=False, highlight=False
            )
            is_announced = True
        await asyncio.sleep(_RETRY_SECONDS)


async def _read_log(settings: LogSettings, runfold: Runfold, run: Run) -> AsyncIterator[Admitted]:
    """The run's log from its beginning, then new records as they are appended. Ends when the run
    has ended and all records that existed at the start, late ones too, are read.
    """
    partition = Partition(runfold.connection.topics.run(run.run_id, run.life.log_id), 0)
    admission = Admission(run.run_id)
    async with Tail.connect(settings) as tail:
        tail.follow(partition, 0)
        end_at_start = (await tail.end_offsets([partition]))[partition]
        async for fetched in tail.fetches():
            for appended in fetched:
                for record in appended.records:
                    yield admission.admit(record)
                if admission.ended and appended.next_offset >= end_at_start:
                    return


def _print_event(console: Console, admitted: Admitted, *, as_json: bool) -> None:
    if not admitted.counts or admitted.event is None:
        return
    if as_json:
        # In JSON no string contains a line break as it is: each one stands between two tokens.
        value = (admitted.record.value or b"").replace(b"\r", b" ").replace(b"\n", b" ")
        sys.stdout.write(f"{value.decode()}\n")
        sys.stdout.flush()
        return
    for line in lines(
        admitted.record.offset, admitted.event, width=console.width if console.is_terminal else None
    ):
        console.print(line, highlight=False)
