"""`runfold follow`: prints a run's events as they come, read from the log."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from rich.console import Console

from runfold import Run, Runfold
from runfold.cli.event_lines import lines
from runfold.cli.terminal import new_console, print_json_line
from runfold.client.run_log import missing_log
from runfold.log.reader import LogGoneError, end_offset
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold.settings import Settings
from runfold_projections.admission import Admission, Admitted
from runfold_schemas.errors import RunNotFoundError, SessionNotFoundError
from runfold_schemas.topics import Partition

_RETRY_SECONDS: Final = 1.0
"""How often `--wait` looks whether the run or the session exists."""


async def follow(
    settings: Settings, *, run_id: str | None, session_id: str | None, wait: bool, as_json: bool
) -> None:
    """Prints the events of a run, or of a session's run, until the run has ended."""
    console = new_console(soft_wrap=True)
    async with Runfold.of(settings.log().of_visitor()) as runfold:
        if session_id is not None:
            run = await _open_run_of(session_id, runfold, wait=wait)
        else:
            assert run_id is not None
            run = await _open_run(run_id, runfold, wait=wait)
        async for admitted in _read_log(settings.log(), runfold, run):
            _print_event(console, admitted, as_json=as_json)


async def _open_run(run_id: str, runfold: Runfold, *, wait: bool) -> Run:
    return await _found(f"run {run_id}", lambda: runfold.get_run(run_id), wait=wait)


async def _open_run_of(session_id: str, runfold: Runfold, *, wait: bool) -> Run:
    async def open_run() -> Run:
        session = await runfold.sessions.view(session_id)
        return await runfold.get_run(session.record.run_id)

    return await _found(f"session {session_id}", open_run, wait=wait)


async def _found(name: str, open_run: Callable[[], Awaitable[Run]], *, wait: bool) -> Run:
    """The run as soon as it exists."""
    is_announced = False
    while True:
        try:
            return await open_run()
        except (SessionNotFoundError, RunNotFoundError):
            if not wait:
                raise
        if not is_announced:
            new_console(stderr=True, soft_wrap=True).print(
                f"waiting for {name}", style="dim", markup=False, highlight=False
            )
            is_announced = True
        await asyncio.sleep(_RETRY_SECONDS)


async def _read_log(settings: LogSettings, runfold: Runfold, run: Run) -> AsyncIterator[Admitted]:
    """The run's log from its beginning, then new records as they are appended. Ends when the run
    has ended and all records that existed at the start, late ones too, are read.
    """
    partition = Partition(runfold.connection.topics.run(run.run_id, run.life.log_id), 0)
    segments = runfold.connection.catalog.segments
    try:
        end_at_start = await end_offset(settings, partition.topic, segments=segments)
    except LogGoneError:
        raise missing_log(run.run_id) from None
    skipped = await runfold.connection.catalog.skips_of(run.run_id, partition.topic)
    admission, log = Admission(run.run_id, skipped=skipped), runfold.connection.log_of(run.life)
    async with Tail.connect(settings, segments=segments) as tail:
        tail.follow(partition, 0)
        async for fetched in tail.fetches():
            for appended in fetched:
                decided = [admission.admit(record) for record in appended.records]
                for admitted in await log.revealed(decided):
                    yield admitted
                if admission.ended and appended.next_offset >= end_at_start:
                    return


def _print_event(console: Console, admitted: Admitted, *, as_json: bool) -> None:
    if not admitted.counts or admitted.event is None:
        return
    if as_json:
        # In JSON no string contains a line break as it is: each one stands between two tokens.
        print_json_line((admitted.record.value or b"").replace(b"\n", b" ").decode())
        return
    for line in lines(
        admitted.record.offset, admitted.event, width=console.width if console.is_terminal else None
    ):
        console.print(line, highlight=False)
