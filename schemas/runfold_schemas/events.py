"""The kinds of events, and the envelope that all of them share.

An event is one immutable fact: an envelope (`Event`) around the data of its kind (`UserMessage`, `ToolCall`, ...). The
names of kinds and data fields are Goa-AI's memory events where it has them. Unknown fields are kept as they came, so an
older reader passes a newer writer's event on unharmed.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

EventId = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
]
"""A UUID in lower case; publishers choose a UUIDv7."""

Id = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Base64 = Annotated[
    str, StringConstraints(pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")
]
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Bounded, so that sums of them stay within what JSON's readers take."""

Status = Literal["pending", "running", "paused", "completed", "failed", "canceled"]
Phase = Literal["prompted", "planning", "executing_tools", "synthesizing", "completed", "failed", "canceled"]


class Data(BaseModel):
    """What an event of one kind says."""

    model_config = ConfigDict(frozen=True, extra="allow")


class SystemMessage(Data):
    """Instructions to the model."""

    message: str


class UserMessage(Data):
    """What the user said; opens a user message of the ledger."""

    message: str
    structured: Any = None


class AssistantMessage(Data):
    """Text of the model. Deltas of a stream are events of this kind too: adjacent texts join."""

    message: str
    structured: Any = None


class Thinking(Data):
    """Reasoning of the model. A stream's deltas are not final; the final event carries the whole text, signed or redacted."""

    text: str = ""
    signature: str = ""
    redacted: Base64 | None = None
    content_index: int = 0
    final: bool = False


class ToolCall(Data):
    """The model asks for a tool. `parent_tool_call_id` names the call within which an agent-as-tool made this one."""

    tool_call_id: str
    tool_name: str
    payload: Any = None
    parent_tool_call_id: str | None = None
    provider_data: dict[str, Any] | None = None
    """What only its provider understands, handed back to it alone: the exact text of the arguments, a signature."""


class ToolResult(Data):
    """What a tool answered. It is an error if `error` is there and not null (an empty string is one)."""

    tool_call_id: str
    tool_name: str = ""
    result: Any = None
    error: Any = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    parent_tool_call_id: str | None = None


class PlannerNote(Data):
    """A note of the planner; kept in the log and no part of the ledger."""

    note: str


class TokenUsage(Data):
    """What one call of a model cost, in tokens; the run record adds them up."""

    model: str | None = None
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0


class RunOpened(Data):
    """The first event of a life of a run, at offset 0 of its topic."""

    agent_id: Id
    log_id: str
    session_id: Id | None = None
    status: Literal["pending", "running"] = "running"
    labels: dict[str, str] = Field(default_factory=dict)


class RunStarted(Data):
    """A pending run runs."""


class RunPaused(Data):
    reason: str | None = None


class RunResumed(Data):
    pass


class RunCompleted(Data):
    pass


class RunFailed(Data):
    error: str


class RunCanceled(Data):
    reason: str | None = None


class RunLabeled(Data):
    """Labels of the run itself, merged over those it has."""

    labels: dict[str, str]
    metadata: dict[str, Any] = {}
    """What the publisher wants to find again with its run, merged likewise; the log keeps it, the run record does not."""


class PhaseChanged(Data):
    phase: Phase


DataT = TypeVar("DataT", bound=Data)


class Event(BaseModel, Generic[DataT]):
    """The envelope. `timestamp` is the producer's clock; order is the log's and never the timestamps'."""

    model_config = ConfigDict(frozen=True, extra="allow")

    event_id: EventId
    run_id: Id
    timestamp: AwareDatetime
    data: DataT
    schema_version: Literal[1] = 1
    turn_id: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    message_id: str | None = None
    """The provider's id of the assistant message that this event is a part of."""
    expected_offset: Annotated[int, Field(ge=-1)] | None = None
    """Accept this event only if the last accepted event is at this offset (-1: there is none)."""


class SystemMessageEvent(Event[SystemMessage]):
    type: Literal["system_message"]


class UserMessageEvent(Event[UserMessage]):
    type: Literal["user_message"]


class AssistantMessageEvent(Event[AssistantMessage]):
    type: Literal["assistant_message"]


class ThinkingEvent(Event[Thinking]):
    type: Literal["thinking"]


class ToolCallEvent(Event[ToolCall]):
    type: Literal["tool_call"]


class ToolResultEvent(Event[ToolResult]):
    type: Literal["tool_result"]


class PlannerNoteEvent(Event[PlannerNote]):
    type: Literal["planner_note"]


class TokenUsageEvent(Event[TokenUsage]):
    type: Literal["token_usage"]


class RunOpenedEvent(Event[RunOpened]):
    type: Literal["run_opened"]


class RunStartedEvent(Event[RunStarted]):
    type: Literal["run_started"]


class RunPausedEvent(Event[RunPaused]):
    type: Literal["run_paused"]


class RunResumedEvent(Event[RunResumed]):
    type: Literal["run_resumed"]


class RunCompletedEvent(Event[RunCompleted]):
    type: Literal["run_completed"]


class RunFailedEvent(Event[RunFailed]):
    type: Literal["run_failed"]


class RunCanceledEvent(Event[RunCanceled]):
    type: Literal["run_canceled"]


class RunLabeledEvent(Event[RunLabeled]):
    type: Literal["run_labeled"]


class PhaseChangedEvent(Event[PhaseChanged]):
    type: Literal["phase_changed"]


AnyEvent = (
    SystemMessageEvent
    | UserMessageEvent
    | AssistantMessageEvent
    | ThinkingEvent
    | ToolCallEvent
    | ToolResultEvent
    | PlannerNoteEvent
    | TokenUsageEvent
    | RunOpenedEvent
    | RunStartedEvent
    | RunPausedEvent
    | RunResumedEvent
    | RunCompletedEvent
    | RunFailedEvent
    | RunCanceledEvent
    | RunLabeledEvent
    | PhaseChangedEvent
)
"""Every kind. A fold that matches on them ends with `assert_never`, so a new kind is a type error until it is folded."""
