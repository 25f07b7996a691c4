"""`runfold follow`: a run as it happens, from the log alone."""

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

_LOOK_SECONDS: Final = 1.0


async def follow(
    settings: Settings, *, run_id: str | None, session_id: str | None, wait: bool, as_json: bool
) -> None:
    """Shows a run, or that of a session, until it has ended."""
    console = Console(soft_wrap=True)
    async with Runfold.of(settings.log()) as runfold:
        if session_id is not None:
            run = await _run_of(session_id, runfold, wait=wait)
        else:
            assert run_id is not None
            run = await runfold.get_run(run_id)
        async for admitted in _admitted(settings.log(), runfold, run):
            _show(console, admitted, as_json=as_json)


async def _run_of(session_id: str, runfold: Runfold, *, wait: bool) -> Run:
    sessions = runfold.sessions
    told = False
    while True:
        try:
            return await runfold.get_run(await sessions.run_id(session_id))
        except (SessionNotFoundError, RunNotFoundError):
            if not wait:
                raise
        if not told:
            Console(stderr=True, soft_wrap=True).print(
                f"waiting for session {session_id}", style="dim", markup=False, highlight=False
            )
            told = True
        await asyncio.sleep(_LOOK_SECONDS)


async def _admitted(settings: LogSettings, runfold: Runfold, run: Run) -> AsyncIterator[Admitted]:
    """The run's log from its beginning, and what is appended, up to the run's end and what had come
    late by now.
    """
    at = Partition(runfold.connection.topics.run(run.run_id, run.life.log_id), 0)
    admission = Admission(run.run_id)
    async with Tail.connect(settings) as tail:
        tail.follow(at, 0)
        there = (await tail.end_offsets([at]))[at]
        async for slices in tail.fetches():
            for part in slices:
                for record in part.records:
                    yield admission.admit(record)
                if admission.ended and part.next_offset >= there:
                    return


def _show(console: Console, admitted: Admitted, *, as_json: bool) -> None:
    if not admitted.counts or admitted.event is None:
        return
    if as_json:
        # No text of JSON has a line break in it: one that is there stands between two tokens.
        value = (admitted.record.value or b"").replace(b"\r", b" ").replace(b"\n", b" ")
        sys.stdout.write(f"{value.decode()}\n")
        sys.stdout.flush()
        return
    for line in lines(
        admitted.record.offset, admitted.event, width=console.width if console.is_terminal else None
    ):
        console.print(line, highlight=False)
