"""What agents did within a time: runs a day, failures, tokens, cost and tools."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from runfold.documents.agents import (
    AgentDocument,
    AgentList,
    AgentStatistics,
    Bucket,
    Durations,
    RunDay,
    SharedToolDocument,
    ToolDocument,
    ToolList,
)
from runfold.prices import PriceTable
from runfold.query.run_document import cost_of, models_of
from runfold.query.stored_runs import StoredRuns
from runfold.store.agents import (
    AgentSums,
    ToolSums,
    sums_of_agents,
    sums_of_tools,
    usage_rows,
)
from runfold.store.listing import moment
from runfold_projections.activity import BOUNDS_US, quantile
from runfold_projections.usage import ModelUsage, TokenTotals, add
from runfold_schemas.errors import InvalidEventError

DAYS_MAX: Final = 92
"""The longest time over which statistics are computed."""

CALLERS_MAX: Final = 20
"""The number of agents that a tool names."""

_EPOCH: Final = date(1970, 1, 1)


class AgentReader:
    """Every method may raise `UnavailableError`."""

    def __init__(self, stored_runs: StoredRuns, prices: PriceTable | None) -> None:
        self._stored_runs = stored_runs
        self._prices = prices

    async def list(self, *, since: datetime, agent_ids: Sequence[str] | None = None) -> AgentList:
        """The agents with runs since then. Raises `InvalidEventError` for too long a time."""
        until = datetime.now(UTC)
        since = min(since, until)
        sums = await self._sums(since, until, agent_ids)
        # The number of agents and models has no bound, and other requests must not wait for them.
        agents = await asyncio.to_thread(self._agents, sums, since, until)
        return AgentList(agents=[*agents], since=since, until=until)

    async def get(self, agent_id: str, *, since: datetime) -> AgentDocument:
        """One agent, which need not have a run. Raises as `list`."""
        until = datetime.now(UTC)
        since = min(since, until)
        sums = await self._sums(since, until, [agent_id])
        tools = await self._tool_sums(since, until, [agent_id])
        return await asyncio.to_thread(self._document, agent_id, sums, tools, since, until)

    async def tools(self, *, since: datetime, agent_ids: Sequence[str] | None = None) -> ToolList:
        """The tools that runs called since then. Raises as `list`."""
        until = datetime.now(UTC)
        since = min(since, until)
        _check(since, until)
        sums = await self._tool_sums(since, until, agent_ids)
        # The number of agents has no bound, and other requests must not wait for them.
        tools = await asyncio.to_thread(_shared_tools, sums)
        return ToolList(tools=tools, since=since, until=until)

    async def _sums(self, since: datetime, until: datetime, agent_ids: Sequence[str] | None) -> AgentSums:
        _check(since, until)
        edition = await self._stored_runs.current()
        if edition is None:
            return AgentSums([], [], [], [], [])
        return await sums_of_agents(edition.runs, since=since, until=until, agent_ids=agent_ids)

    async def _tool_sums(self, since: datetime, until: datetime, agent_ids: Sequence[str] | None) -> ToolSums:
        edition = await self._stored_runs.current()
        if edition is None:
            return ToolSums([], [])
        return await sums_of_tools(edition.runs, agent_ids, since=since, until=until)

    def _agents(self, sums: AgentSums, since: datetime, until: datetime) -> Sequence[AgentStatistics]:
        agents = [self._statistics(name, each, since, until) for name, each in _by_agent(sums).items()]
        return sorted(agents, key=lambda agent: (-agent.runs, agent.agent_id))

    def _document(
        self, agent_id: str, sums: AgentSums, tools: ToolSums, since: datetime, until: datetime
    ) -> AgentDocument:
        return AgentDocument(
            **dict(self._statistics(agent_id, sums, since, until)),
            by_model=models_of(usage_rows(sums.models, sums.server_tools), self._prices),
            tools=_tools(tools),
            since=since,
            until=until,
        )

    def _statistics(
        self, agent_id: str, sums: AgentSums, since: datetime, until: datetime
    ) -> AgentStatistics:
        rows: list[ModelUsage] = usage_rows(sums.models, sums.server_tools)
        runs, ended, failed = (sum(each[name] for each in sums.days) for name in ("runs", "ended", "failed"))
        buckets = [(int(each["bucket"]), each["count"]) for each in sums.durations]
        return AgentStatistics(
            agent_id=agent_id,
            runs=runs,
            open=runs - ended,
            ended=ended,
            failed=failed,
            failure_rate=failed / ended if ended else None,
            tool_calls=sum(each["calls"] for each in sums.calls),
            tool_errors=sum(each["errors"] for each in sums.calls),
            usage=add(TokenTotals(), *rows),
            cost=cost_of(rows, self._prices),
            duration_seconds=_durations(buckets),
            runs_by_day=_days(sums.days, since, until),
            last_started_at=max((moment(each["last_us"]) for each in sums.days), default=None),
        )


def _check(since: datetime, until: datetime) -> None:
    if until - since > timedelta(days=DAYS_MAX):
        raise InvalidEventError(f"since is more than {DAYS_MAX} days ago", field="since")


def _by_agent(sums: AgentSums) -> dict[str, AgentSums]:
    by_agent: dict[str, AgentSums] = {}
    for name in AgentSums._fields:
        for each in getattr(sums, name):
            of_agent = by_agent.setdefault(each["agent"], AgentSums([], [], [], [], []))
            getattr(of_agent, name).append(each)
    return by_agent


def _days(sums: Iterable[Mapping[str, Any]], since: datetime, until: datetime) -> list[RunDay]:
    by_day = {_EPOCH + timedelta(days=int(each["day"])): each for each in sums}
    first, last = since.astimezone(UTC).date(), until.astimezone(UTC).date()
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    nothing = {"runs": 0, "failed": 0}
    return [
        RunDay(day=day, runs=each["runs"], failed=each["failed"])
        for day, each in ((day, by_day.get(day, nothing)) for day in days)
    ]


def _durations(buckets: Sequence[tuple[int, int]]) -> Durations:
    ordered = sorted(buckets)
    return Durations(p50=quantile(ordered, 0.5), p95=quantile(ordered, 0.95))


def _tools(sums: ToolSums) -> list[ToolDocument]:
    buckets: dict[str | None, list[tuple[int, int]]] = {}
    for each in sums.buckets:
        buckets.setdefault(each["name"], []).append((int(each["bucket"]), int(each["count"])))
    by_name = _by_name(sums)
    tools = [_tool(name, rows, sorted(buckets.get(name, ()))) for name, rows in by_name.items()]
    return sorted(tools, key=lambda tool: (-tool.calls, tool.tool_name or ""))


def _shared_tools(sums: ToolSums) -> list[SharedToolDocument]:
    by_name = _by_name(sums)
    return [
        SharedToolDocument(**dict(tool), agents=len(rows), agent_ids=_callers(rows))
        for tool, rows in ((tool, by_name[tool.tool_name]) for tool in _tools(sums))
    ]


def _by_name(sums: ToolSums) -> dict[str | None, list[dict[str, Any]]]:
    by_name: dict[str | None, list[dict[str, Any]]] = {}
    for each in sums.tools:
        by_name.setdefault(each["name"], []).append(each)
    return by_name


def _callers(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    by_calls = sorted(rows, key=lambda row: (-row["calls"], row["agent"]))
    return [row["agent"] for row in by_calls[:CALLERS_MAX]]


def _tool(
    name: str | None, rows: Sequence[Mapping[str, Any]], buckets: Sequence[tuple[int, int]]
) -> ToolDocument:
    calls, results, errors = (sum(row[count] for row in rows) for count in ("calls", "results", "errors"))
    return ToolDocument(
        tool_name=name,
        calls=calls,
        results=results,
        errors=errors,
        timed=sum(count for _, count in buckets),
        p50_seconds=quantile(buckets, 0.5),
        p95_seconds=quantile(buckets, 0.95),
        histogram=[Bucket(le_seconds=_bound(index), count=count) for index, count in buckets],
    )


def _bound(index: int) -> float | None:
    return BOUNDS_US[index] / 1_000_000 if index < len(BOUNDS_US) else None
