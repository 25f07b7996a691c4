"""`runfold agents`: what agents did within a time, as it is stored in MongoDB."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from runfold.cli.memory_lines import print_fields, print_json, print_rows
from runfold.cli.runs import span
from runfold.cli.terminal import new_console
from runfold.cli.times import time_of
from runfold.documents.agents import AgentDocument, AgentStatistics, SharedToolDocument, ToolDocument
from runfold.documents.runs import CostDocument, ModelUsageDocument
from runfold.query.agents import AgentReader
from runfold.query.stored_runs import StoredRuns
from runfold.settings import Settings

_COLUMNS: Final = ("agent", "runs", "open", "failed", "p95", "tokens", "cost", "tool calls")
_TOOL_TITLES: Final = ("tool", "calls", "results", "errors", "p50", "p95")


async def agents(settings: Settings, *, agent_id: str | None, since: str, as_json: bool) -> None:
    """Lists agents, or shows one with its models and its tools."""
    begin = min(time_of(since, option="--since"), datetime.now(UTC))
    async with StoredRuns(settings) as stored:
        reader = AgentReader(stored, settings.price_table())
        if agent_id is not None:
            agent = await reader.get(agent_id, since=begin)
            if as_json:
                print_json(agent)
            else:
                _show(agent)
            return
        statistics = (await reader.list(since=begin)).agents
    if as_json:
        for each in statistics:
            print_json(each)
    else:
        _list(statistics, since=since)


def _list(statistics: Sequence[AgentStatistics], *, since: str) -> None:
    if statistics:
        print_rows(new_console(), (*_COLUMNS, "errors"), map(_row, statistics))
    else:
        new_console(stderr=True).print(f"no run has started since {since}", style="dim")


async def tools(settings: Settings, *, since: str, as_json: bool) -> None:
    """Lists the tools of all agents."""
    begin = min(time_of(since, option="--since"), datetime.now(UTC))
    async with StoredRuns(settings) as stored:
        shown = (await AgentReader(stored, None).tools(since=begin)).tools
    if as_json:
        for each in shown:
            print_json(each)
    elif not shown:
        new_console(stderr=True).print(f"no run since {since} has called a tool", style="dim")
    else:
        print_rows(new_console(), (*_TOOL_TITLES, "agents"), map(_shared_tool_row, shown))


def _show(agent: AgentDocument) -> None:
    console = new_console()
    names = (*_COLUMNS, "tool errors")
    print_fields(console, {name: Text(value) for name, value in zip(names, _row(agent), strict=True)})
    if agent.by_model:
        console.print()
        print_rows(console, ("model", "calls", "input", "output", "cost"), map(_model_row, agent.by_model))
    if agent.tools:
        console.print()
        print_rows(console, _TOOL_TITLES, map(_tool_row, agent.tools))


def _model_row(row: ModelUsageDocument) -> Sequence[str]:
    return (
        "others" if row.is_others else row.model or "unknown",
        f"{row.calls:,}",
        f"{row.input_tokens:,}",
        f"{row.output_tokens:,}",
        "" if row.cost is None else f"{row.cost:.4f}",
    )


def _tool_row(tool: ToolDocument) -> tuple[str, ...]:
    return (
        tool.tool_name or "others",
        f"{tool.calls:,}",
        f"{tool.results:,}",
        f"{tool.errors:,}",
        _span(tool.p50_seconds),
        _span(tool.p95_seconds),
    )


def _shared_tool_row(tool: SharedToolDocument) -> tuple[str, ...]:
    more = tool.agents - len(tool.agent_ids)
    return (*_tool_row(tool), ", ".join([*tool.agent_ids, *([f"{more:,} more"] if more else ())]))


def _row(agent: AgentStatistics) -> tuple[str, ...]:
    tokens = agent.usage.input_tokens + agent.usage.output_tokens
    rate = "" if agent.failure_rate is None else f" ({agent.failure_rate:.0%})"
    return (
        agent.agent_id,
        f"{agent.runs:,}",
        f"{agent.open:,}",
        f"{agent.failed:,}{rate}",
        _span(agent.duration_seconds.p95),
        f"{tokens:,}",
        _cost(agent.cost),
        f"{agent.tool_calls:,}",
        f"{agent.tool_errors:,}",
    )


def _cost(cost: CostDocument) -> str:
    return "" if cost.amount is None else f"{cost.amount:.4f} {cost.currency}"


def _span(seconds: float | None) -> str:
    return "" if seconds is None else span(seconds)
