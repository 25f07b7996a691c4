"""The kinds of events that open, change and end a run."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from runfold_schemas.data import Count, Data, Id, Labels, LogId, SessionId, UserId, tolerant

Status = Literal["pending", "running", "paused", "completed", "failed", "canceled"]
Phase = Literal["prompted", "planning", "executing_tools", "synthesizing", "completed", "failed", "canceled"]

ENDINGS: Final[Mapping[str, Status]] = {
    "run_completed": "completed",
    "run_failed": "failed",
    "run_canceled": "canceled",
}
"""The kinds of events that end a run when they are accepted, each with the run's status afterwards.
"""

LIFECYCLE: Final = frozenset(
    {*ENDINGS, "run_opened", "run_started", "run_paused", "run_resumed", "phase_changed"}
)
"""The kinds that change the state of a run. After the end of a run they are rejected."""

ABOUT_THE_RUN: Final = LIFECYCLE | {"run_labeled"}
"""The kinds that describe the run itself and not what happened in it."""


class ForkedFrom(BaseModel):
    """Where a fork comes from: a run that begins with copies of the events of another run."""

    model_config = ConfigDict(frozen=True)

    run_id: Id
    """The source."""
    log_id: LogId
    """The log of the source."""
    offset: Count
    """The last offset of the source that the fork includes."""
    events: Count
    """The number of copies. They are at the offsets from 1 to this one in the fork's log."""


class RunOpened(Data):
    """The first event of a life of a run, at offset 0 of its topic."""

    agent_id: Id
    log_id: str
    session_id: SessionId | None = None
    user_id: UserId | None = None
    """The user whose `user:` state the run's events change. A run without a user changes none."""
    status: Literal["pending", "running"] = "running"
    labels: Labels = Field(default_factory=dict)
    forked_from: Annotated[
        ForkedFrom | None, tolerant(lambda: None), Field(exclude_if=lambda value: value is None)
    ] = None


class RunStarted(Data):
    """The pending run is running."""


class RunPaused(Data):
    """The run is paused."""

    reason: str | None = None


class RunResumed(Data):
    """The paused run is running again."""


class RunCompleted(Data):
    """The run ended with success."""


class RunFailed(Data):
    """The run ended with an error."""

    error: str


class RunCanceled(Data):
    """The run was canceled before it was done."""

    reason: str | None = None


class RunLabeled(Data):
    """Labels of the run, merged over its earlier labels. A run has 64 labels at most; further
    labels are ignored.
    """

    labels: Labels
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Further data of the publisher about the run, merged in the same way. Only the log keeps the
    metadata, not the run record.
    """


class PhaseChanged(Data):
    """The planner entered another phase."""

    phase: Phase
