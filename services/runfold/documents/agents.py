"""Statistics of agents as JSON."""

from datetime import date, datetime

from pydantic import BaseModel, Field

from runfold.documents.runs import CostDocument, ModelUsageDocument
from runfold_projections.usage import TokenTotals


class RunDay(BaseModel):
    """The runs that started on a day, in UTC."""

    day: date
    runs: int
    failed: int


class Durations(BaseModel):
    """Of runs or calls that have ended, in seconds. Null without any."""

    p50: float | None
    p95: float | None


class AgentStatistics(BaseModel):
    """What an agent's runs did that started within the time."""

    agent_id: str
    runs: int
    open: int = Field(description="The runs that have not ended.")
    ended: int
    failed: int
    failure_rate: float | None = Field(description="The share of failed runs in those that have ended.")
    tool_calls: int
    tool_errors: int
    usage: TokenTotals
    cost: CostDocument
    duration_seconds: Durations
    runs_by_day: list[RunDay] = Field(description="Each day of the time, also those without a run.")
    last_started_at: datetime | None = Field(description="Null without a run.")


class Bucket(BaseModel):
    """A part of a histogram."""

    le_seconds: float | None = Field(description="The longest duration in it; null in the last bucket.")
    count: int


class ToolDocument(BaseModel):
    """The calls of a tool. Durations are near the true ones, by a factor of 1.4 at most."""

    tool_name: str | None = Field(
        description="Null for the further tools, beyond 50 of a run and beyond the 200 with the most calls."
    )
    calls: int
    results: int
    errors: int = Field(description="The results that are errors.")
    timed: int = Field(description="The results with a duration, or whose call is known.")
    p50_seconds: float | None
    p95_seconds: float | None
    histogram: list[Bucket]


class SharedToolDocument(ToolDocument):
    """The calls of a tool by all agents."""

    agents: int = Field(description="The number of agents that called it.")
    agent_ids: list[str] = Field(description="The 20 of them with the most calls, most calls first.")


class ToolList(BaseModel):
    tools: list[SharedToolDocument] = Field(description="The tools, by the number of their calls.")
    since: datetime
    until: datetime


class AgentDocument(AgentStatistics):
    """The statistics of one agent, with its models and its tools."""

    by_model: list[ModelUsageDocument]
    tools: list[ToolDocument]
    since: datetime
    until: datetime


class AgentList(BaseModel):
    agents: list[AgentStatistics] = Field(description="The agents with a run, by the number of their runs.")
    since: datetime
    until: datetime
