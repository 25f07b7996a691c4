"""`runfold retention`: deletes old runs."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runfold.cli.memory_lines import local_time, print_rows
from runfold.cli.terminal import new_console
from runfold.client.runfold import Runfold
from runfold.query.stored_runs import StoredRuns
from runfold.settings import Settings
from runfold.store.run_filter import RunFilter, RunOrder
from runfold.store.run_state import RunState
from runfold_schemas.errors import RunNotFoundError

_ENDED: Final = ("completed", "failed", "canceled")

_OLDEST_FIRST: Final = RunOrder("updated", ascending=True)

_PAGE: Final = 500

_AT_ONCE: Final = 16

_EXAMPLES: Final = 5

_AGENTS: Final = 10
"""How many agents are listed with their runs."""


async def retention(
    settings: Settings,
    *,
    age: timedelta,
    agent_id: str | None,
    labels: Mapping[str, str],
    include_open: bool,
    is_dry: bool,
    confirm: Callable[[str], None] | None,
) -> None:
    """Says which runs match, asks by `confirm`, and deletes them."""
    before = datetime.now(UTC) - age
    matching = RunFilter(
        agent_id=agent_id,
        labels=labels or None,
        status=None if include_open else _ENDED,
        is_session=False,
        updated_until=before,
    )
    errors = new_console(stderr=True, soft_wrap=True)
    async with StoredRuns(settings) as stored:
        count = await _show(stored, matching)
        if is_dry or not count:
            return
        if confirm is not None:
            confirm(f"Delete these {count:,} runs of the tenant {settings.prefix}? Nothing restores them.")
        deleted = await _delete(settings, stored, matching, count)
    errors.print(f"{deleted:,} runs are deleted", highlight=False)


async def _show(stored: StoredRuns, matching: RunFilter) -> int:
    """Prints how many runs match, and some of them. Returns their number."""
    agents, oldest, console = Counter[str](), list[RunState](), new_console()
    async for states in _pages(stored, matching):
        agents.update(state.record.agent_id or "" for state in states)
        oldest += states[: _EXAMPLES - len(oldest)]
    assert matching.updated_until is not None
    console.print(
        f"{agents.total():,} runs without an event since {local_time(matching.updated_until)}",
        highlight=False,
    )
    if agents:
        print_rows(
            console, ("agent", "runs"), ((name, f"{count:,}") for name, count in agents.most_common(_AGENTS))
        )
        console.print()
        print_rows(console, ("oldest", "agent", "status", "last event"), map(_row, oldest))
    return agents.total()


def _row(state: RunState) -> Sequence[str]:
    record = state.record
    updated = local_time(record.updated_at) if record.updated_at else ""
    return (state.run_id, record.agent_id or "", record.status, updated)


async def _delete(settings: Settings, stored: StoredRuns, matching: RunFilter, count: int) -> int:
    deleted, turns = 0, asyncio.Semaphore(_AT_ONCE)
    console = new_console(stderr=True, soft_wrap=True)
    columns = (TextColumn("deleting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with Runfold.of(settings.log("runfold/retention").of_visitor()) as runfold:
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=count)

            async def delete(run_id: str) -> None:
                nonlocal deleted
                async with turns:
                    try:
                        await runfold.delete_run(run_id)
                    except RunNotFoundError:
                        return  # somebody else has deleted it
                deleted += 1
                bar.update(task, completed=deleted)

            async for states in _pages(stored, matching):
                async with asyncio.TaskGroup() as tasks:
                    for state in states:
                        tasks.create_task(delete(state.run_id))
    return deleted


async def _pages(stored: StoredRuns, matching: RunFilter) -> AsyncIterator[list[RunState]]:
    cursor: str | None = None
    while True:
        states, cursor = await stored.runs(matching, limit=_PAGE, cursor=cursor, order=_OLDEST_FIRST)
        yield states
        if cursor is None:
            return
