"""The routes of agents' statistics.

GET  /v1/agents       the agents with runs within a time
GET  /v1/agents/{id}  one agent, with its models and its tools
GET  /v1/tools        the tools of all agents
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from runfold.documents.agents import AgentDocument, AgentList, ToolList
from runfold.http.answers import JSON
from runfold.http.authorisation import current_principal
from runfold.http.problems import problem_responses
from runfold.permissions.limits import require_agent, require_user
from runfold.query.agents import DAYS_MAX, AgentReader
from runfold.query.reading import Reading
from runfold.query.times import Time

AgentId = Annotated[str, Path(description="The agent's id, percent-encoded: `/` is `%2F`.")]
Since = Annotated[
    Time | None,
    Query(
        description="Runs that started at this time or later. An age is a time too: `24h`, `30d`. Without"
        f" it, of the last 7 days. At most {DAYS_MAX} days ago."
    ),
]

_problems = partial(
    problem_responses,
    {422: "A parameter is wrong. `field` names it.", 503: "MongoDB does not answer. Retry."},
)


def add_agents(routes: APIRouter, reading: Callable[[], Reading]) -> None:
    def reader() -> AgentReader:
        return AgentReader(reading().stored_runs, reading().prices)

    @routes.get(
        "/agents", tags=["agents"], summary="List agents", response_model=AgentList, responses=_problems(422)
    )
    async def list_agents(*, since: Since = None) -> Response:
        """List the agents that had runs: how many, how they ended, and what they used."""
        principal = current_principal()
        require_user(principal, None, action="statistics of agents")
        agents = await reader().list(since=since or _a_week_ago(), agent_ids=principal.agents)
        return Response(agents.model_dump_json(), media_type=JSON)

    @routes.get(
        "/agents/{agent_id}",
        tags=["agents"],
        summary="Read an agent's statistics",
        response_model=AgentDocument,
        responses=_problems(422),
    )
    async def read_agent(*, agent_id: AgentId, since: Since = None) -> Response:
        """Read what one agent did: runs by day, tokens and cost by model, and each tool with its
        errors and durations.
        """
        principal = current_principal()
        require_user(principal, None, action="statistics of agents")
        require_agent(principal, agent_id, action="statistics of agents")
        agent = await reader().get(agent_id, since=since or _a_week_ago())
        return Response(agent.model_dump_json(), media_type=JSON)

    @routes.get(
        "/tools", tags=["agents"], summary="List tools", response_model=ToolList, responses=_problems(422)
    )
    async def list_tools(*, since: Since = None) -> Response:
        """List the tools that agents called: how often, with how many errors, how long they took,
        and by which agents.
        """
        principal = current_principal()
        require_user(principal, None, action="statistics of agents")
        tools = await reader().tools(since=since or _a_week_ago(), agent_ids=principal.agents)
        return Response(tools.model_dump_json(), media_type=JSON)


def _a_week_ago() -> datetime:
    return datetime.now(UTC) - timedelta(days=7)
