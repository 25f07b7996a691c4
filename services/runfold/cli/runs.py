"""`runfold runs`: lists runs, as they are stored in MongoDB."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError
from rich.live import Live
from rich.text import Text

from runfold.cli.memory_lines import local_time, print_json, rows_of
from runfold.cli.terminal import new_console
from runfold.documents.runs import RunSummary
from runfold.prices import PriceTable
from runfold.query.run_document import run_summary
from runfold.query.run_selection import RunSelection
from runfold.query.stored_runs import StoredRuns
from runfold.settings import Settings
from runfold_schemas.codec import first_fault
from runfold_schemas.errors import InvalidEventError

_COLUMNS: Final = (
    "run",
    "status",
    "agent",
    "session",
    "user",
    "started",
    "updated",
    "duration",
    "tokens",
    "cost",
    "error",
)

_LOOK_SECONDS: Final = 1.0
_SEARCH_SECONDS: Final = 30.0


async def runs(
    settings: Settings, *, options: Mapping[str, Any], limit: int, follow: bool, as_json: bool
) -> None:
    """Lists runs once, or until Ctrl-C."""
    selection, prices = _selection(options), settings.price_table()
    console = new_console()
    async with StoredRuns(settings) as stored:
        if follow:
            with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
                while True:
                    summaries, _ = await _list(stored, selection, prices, limit=limit)
                    live.update(_table(summaries, console.width), refresh=True)
                    await asyncio.sleep(_LOOK_SECONDS if selection.text is None else _SEARCH_SECONDS)
        summaries, has_more = await _list(stored, selection, prices, limit=limit)
    if as_json:
        for summary in summaries:
            print_json(summary)
    elif not summaries:
        new_console(stderr=True).print("no run matches", style="dim")
    else:
        console.print(
            _table(summaries, console.width if console.is_terminal else None),
            highlight=False,
            soft_wrap=True,
        )
    if has_more:
        new_console(stderr=True).print(
            f"there are more than these {limit} runs: use --limit to list more", style="dim"
        )


def _selection(options: Mapping[str, Any]) -> RunSelection:
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return RunSelection(**given)
    except ValidationError as error:
        field, sentence = first_fault(error)
        name = field.partition(".")[0]
        raise InvalidEventError(f"--{name.replace('_', '-')}: {sentence}", field=name) from None


async def _list(
    stored: StoredRuns, selection: RunSelection, prices: PriceTable | None, *, limit: int
) -> tuple[list[RunSummary], bool]:
    states, cursor = await stored.runs(selection.filter(), limit=limit, order=selection.order)
    if stored.sealing is not None:
        states = [replace(state, record=await stored.sealing.reveal_run(state.record)) for state in states]
    return [run_summary(state, prices) for state in states], cursor is not None


def _table(summaries: Sequence[RunSummary], width: int | None) -> Text:
    now = datetime.now(UTC)
    return Text("\n").join(rows_of(_COLUMNS, [_row(summary, now) for summary in summaries], width=width))


def _row(run: RunSummary, now: datetime) -> Sequence[str]:
    tokens = run.usage.input_tokens + run.usage.output_tokens
    return (
        run.run_id,
        "open" if run.is_session and run.status == "running" else run.status,
        run.agent_id,
        "" if run.is_session else run.session_id or "",
        run.user_id or "",
        local_time(run.started_at) if run.started_at else "",
        local_time(run.updated_at) if run.updated_at else "",
        _duration(run, now),
        f"{tokens:,}" if tokens else "",
        f"{run.cost.amount:.4f}" if tokens and run.cost.amount is not None else "",
        run.error or "",
    )


def _duration(run: RunSummary, now: datetime) -> str:
    if run.duration_seconds is not None:
        return span(run.duration_seconds)
    if run.started_at is None or run.is_session:
        return ""
    return f"{span(max(0.0, (now - run.started_at).total_seconds()))} so far"


def span(seconds: float) -> str:
    """A span of time, as `850 ms`, `12.5 s`, `3 min 5 s`, `2 h 10 min` or `3 d 4 h`."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 60:  # a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:  # an hour
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:  # two days
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
