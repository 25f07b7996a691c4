"""The tools of all agents, from the sums of each agent's calls."""

from datetime import UTC, datetime

import pytest

from runfold.query.agents import CALLERS_MAX, AgentReader
from runfold.query.stored_runs import StoredRuns
from runfold.store.agents import ToolSums

AGENTS = CALLERS_MAX + 5


class Summed(AgentReader):
    """Reads sums that are given to it."""

    def __init__(self, sums: ToolSums) -> None:
        super().__init__(StoredRuns.__new__(StoredRuns), None)
        self._given = sums

    async def _tool_sums(self, *_: object) -> ToolSums:
        return self._given


async def test_a_tool_names_the_agents_that_call_it_most():
    rows = [
        {"name": name, "agent": f"agent-{number:02}", "calls": number, "results": 1, "errors": 1}
        for number in range(1, AGENTS + 1)
        for name in ("search", None)[: 1 if number > 1 else 2]
    ]
    buckets = [{"name": "search", "bucket": bucket, "count": count} for bucket, count in ((20, 19), (40, 1))]

    tools = (await Summed(ToolSums(rows, buckets)).tools(since=datetime.now(UTC))).tools

    search, further = tools
    assert (search.tool_name, search.agents, search.errors) == ("search", AGENTS, AGENTS)
    assert search.calls == sum(range(1, AGENTS + 1))
    assert search.agent_ids == [f"agent-{number:02}" for number in range(AGENTS, AGENTS - CALLERS_MAX, -1)]
    assert search.p95_seconds == pytest.approx(1, rel=0.2)
    assert (further.tool_name, further.calls, further.timed, further.agent_ids) == (None, 1, 0, ["agent-01"])
