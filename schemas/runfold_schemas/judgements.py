"""The kinds of events that say what steered an agent, and how its work was judged.

Goa-AI names the first two, and KurrentDB's agent schema the scores.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from runfold_schemas.data import Count, Data, Id, Items, Labels, SessionId, TurnId

Version = Annotated[str, StringConstraints(min_length=1, max_length=100)]
ScoreLabel = Annotated[str, StringConstraints(max_length=100)]


class PromptScope(BaseModel):
    """For whom a version of a prompt was chosen. Without both: for everybody."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session_id: SessionId | None = None
    labels: Labels = Field(default_factory=dict)


class PromptRendered(Data):
    """A prompt was rendered from a template that is kept elsewhere."""

    prompt_id: Id
    version: Version | None = None
    scope: PromptScope | None = None


class PolicyDecided(Data):
    """A policy said what the agent may do next."""

    allowed_tools: Items[str] | None = None
    """The names of the tools that may be called. None: the policy does not limit them."""
    caps: dict[str, Count] = Field(default_factory=dict)
    """The agent's limits, for example `max_tool_calls` and `remaining_tool_calls`."""
    labels: Labels = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class RunScored(Data):
    """Somebody judged the run: a program or a person, whose thumb is a score too. A score of one
    turn names it, and so does a score of one event by its offset.
    """

    scorer: Id
    score: Annotated[float, Field(allow_inf_nan=False)] | None = None
    label: ScoreLabel | None = None
    """The judgement in a word, for example `correct`."""
    reason: str | None = None
    scored_turn_id: TurnId | None = None
    scored_offset: Count | None = None
