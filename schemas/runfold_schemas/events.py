"""The kinds of events, and the envelope that all of them share.

An event is one immutable fact: an envelope (`Event`) around the data of its kind (`UserMessage`,
`ToolCall`, ...). The names of kinds and data fields are Goa-AI's memory events where it has them.
Unknown fields are kept as they came, so an older reader passes a newer writer's event on unharmed.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runfold_schemas.data import (
    Count,
    Data,
    EventId,
    Id,
    Labels,
    MessageId,
    SessionId,
    StateDelta,
    Time,
    TurnId,
    UserId,
)
from runfold_schemas.memories import (
    BankCreated,
    BankDeleted,
    BankUpdated,
    GenerationRequested,
    MemoriesGenerated,
    MemoryCreated,
    MemoryDeleted,
    MemoryRolledBack,
    MemoryUpdated,
)
from runfold_schemas.messages import Base64, DocumentPart, ImagePart, Provider, ProviderData, UserPart
from runfold_schemas.sessions import (
    FrameworkEvent,
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
)

Status = Literal["pending", "running", "paused", "completed", "failed", "canceled"]
Phase = Literal["prompted", "planning", "executing_tools", "synthesizing", "completed", "failed", "canceled"]

ENDINGS: Final[Mapping[str, Status]] = {
    "run_completed": "completed",
    "run_failed": "failed",
    "run_canceled": "canceled",
}
"""The kinds of events that end a run, where they are accepted, each with the status that it has
then.
"""

LIFECYCLE: Final = frozenset(
    {*ENDINGS, "run_opened", "run_started", "run_paused", "run_resumed", "phase_changed"}
)
"""The kinds that change a run's life: after its end they are refused."""

ABOUT_THE_RUN: Final = LIFECYCLE | {"run_labeled"}
"""The kinds that say something of the run itself, and nothing of what happened in it."""


class SystemMessage(Data):
    """Instructions to the model."""

    message: str


class UserMessage(Data):
    """What the user said; opens a user message of the ledger."""

    message: str
    structured: Any = None
    parts: tuple[UserPart, ...] | None = None
    """The message as the model gets it, where it is more than a text; `message` is then for people
    to read.
    """


class AssistantMessage(Data):
    """Text of the model. Deltas of a stream are events of this kind too: adjacent texts join, but
    for those of different `content_index`, which are blocks of their own.
    """

    message: str
    structured: Any = None
    content_index: int | None = None
    provider_data: ProviderData = None


class Thinking(Data):
    """Reasoning of the model. A stream's deltas are not final; the final event carries the whole
    text, signed or redacted.
    """

    text: str = ""
    signature: str = ""
    redacted: Base64 | None = None
    content_index: int = 0
    final: bool = False
    provider_data: ProviderData = None


class ToolCall(Data):
    """The model asks for a tool. `parent_tool_call_id` names the call within which an agent-as-tool
    made this one.
    """

    tool_call_id: str
    tool_name: str
    payload: Any = None
    parent_tool_call_id: str | None = None
    provider_data: ProviderData = None


class ToolResult(Data):
    """What a tool answered. It is an error if `error` is there and not null (an empty string is
    one).
    """

    tool_call_id: str
    tool_name: str = ""
    result: Any = None
    error: Any = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    parent_tool_call_id: str | None = None
    attachments: tuple[ImagePart | DocumentPart, ...] = ()


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


class ProviderPart(Data):
    """A block of a response that has no word here, as it came. One that is not `finished` is no
    part of the ledger.
    """

    content: Any
    content_index: int = 0
    finished: bool = True


class ResponseRecorded(Data):
    """The end of a model's response, whose parts are the events with the same `message_id` before
    this one.
    """

    model: str | None = None
    stop_reason: str | None = None
    """In the provider's word."""
    finished: bool = True
    """False where the response broke off: what arrived is in the log."""
    faults: tuple[str, ...] = ()
    """What was wrong with it, a sentence each."""


class StandIn(BaseModel):
    """Another event in the place of one in the log: its kind and its data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal[
        "system_message",
        "user_message",
        "assistant_message",
        "thinking",
        "tool_call",
        "tool_result",
        "provider_part",
    ]
    data: dict[str, Any]

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        self.decode()
        return self

    def decode(self) -> "StandInData":
        return _STAND_INS[self.type].model_validate(self.data)


StandInData = SystemMessage | UserMessage | AssistantMessage | Thinking | ToolCall | ToolResult | ProviderPart
_STAND_INS: Final[Mapping[str, type[StandInData]]] = {
    "system_message": SystemMessage,
    "user_message": UserMessage,
    "assistant_message": AssistantMessage,
    "thinking": Thinking,
    "tool_call": ToolCall,
    "tool_result": ToolResult,
    "provider_part": ProviderPart,
}


class EventAmended(Data):
    """In the ledger the event at `offset` stands as `stand_ins`, or not at all: so a ledger is
    repaired that no provider takes. The last amendment of an offset counts. What is amended is an
    event as it was published, never an amendment."""

    offset: Count
    stand_ins: tuple[StandIn, ...] = ()
    reason: str


class RunOpened(Data):
    """The first event of a life of a run, at offset 0 of its topic."""

    agent_id: Id
    log_id: str
    session_id: SessionId | None = None
    user_id: UserId | None = None
    """Whose `user:` state the run's events change. A run without a user changes none."""
    status: Literal["pending", "running"] = "running"
    labels: Labels = Field(default_factory=dict)


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
    """Labels of the run itself, merged over those it has. A run has 64 at most: further ones are
    ignored.
    """

    labels: Labels
    metadata: dict[str, Any] = Field(default_factory=dict)
    """What the publisher wants to find again with its run, merged likewise; the log keeps it, the
    run record does not.
    """


class PhaseChanged(Data):
    phase: Phase


DataT = TypeVar("DataT", bound=Data)


class Event(BaseModel, Generic[DataT]):
    """The envelope. `timestamp` is the producer's clock; order is the log's and never the
    timestamps'.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    event_id: EventId
    run_id: Id
    timestamp: Time
    data: DataT
    schema_version: Literal[1] = 1
    turn_id: TurnId | None = None
    labels: Labels = Field(default_factory=dict)
    message_id: MessageId | None = None
    """The provider's id of the assistant message that this event is a part of."""
    provider: Provider | None = None
    """Whose response this event was recorded from; such a message keeps the provider's order of
    parts.
    """
    expected_offset: Annotated[int, Field(ge=-1)] | None = None
    """Accept this event only if no other was accepted behind this offset (-1: none at all), which
    its publisher has seen.
    """
    state_delta: StateDelta = None


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


class ProviderPartEvent(Event[ProviderPart]):
    type: Literal["provider_part"]


class ResponseRecordedEvent(Event[ResponseRecorded]):
    type: Literal["response_recorded"]


class EventAmendedEvent(Event[EventAmended]):
    type: Literal["event_amended"]


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


class FrameworkEventEvent(Event[FrameworkEvent]):
    type: Literal["framework_event"]


class StateChangedEvent(Event[StateChanged]):
    type: Literal["state_changed"]


class SessionCreatedEvent(Event[SessionCreated]):
    type: Literal["session_created"]


class SessionUpdatedEvent(Event[SessionUpdated]):
    type: Literal["session_updated"]


class SessionDeletedEvent(Event[SessionDeleted]):
    type: Literal["session_deleted"]


class MemoryCreatedEvent(Event[MemoryCreated]):
    type: Literal["memory_created"]


class MemoryUpdatedEvent(Event[MemoryUpdated]):
    type: Literal["memory_updated"]


class MemoryDeletedEvent(Event[MemoryDeleted]):
    type: Literal["memory_deleted"]


class MemoryRolledBackEvent(Event[MemoryRolledBack]):
    type: Literal["memory_rolled_back"]


class GenerationRequestedEvent(Event[GenerationRequested]):
    type: Literal["generation_requested"]


class MemoriesGeneratedEvent(Event[MemoriesGenerated]):
    type: Literal["memories_generated"]


class BankCreatedEvent(Event[BankCreated]):
    type: Literal["bank_created"]


class BankUpdatedEvent(Event[BankUpdated]):
    type: Literal["bank_updated"]


class BankDeletedEvent(Event[BankDeleted]):
    type: Literal["bank_deleted"]


AnyEvent = (
    SystemMessageEvent
    | UserMessageEvent
    | AssistantMessageEvent
    | ThinkingEvent
    | ToolCallEvent
    | ToolResultEvent
    | PlannerNoteEvent
    | TokenUsageEvent
    | ProviderPartEvent
    | ResponseRecordedEvent
    | EventAmendedEvent
    | RunOpenedEvent
    | RunStartedEvent
    | RunPausedEvent
    | RunResumedEvent
    | RunCompletedEvent
    | RunFailedEvent
    | RunCanceledEvent
    | RunLabeledEvent
    | PhaseChangedEvent
    | FrameworkEventEvent
    | StateChangedEvent
    | SessionCreatedEvent
    | SessionUpdatedEvent
    | SessionDeletedEvent
    | MemoryCreatedEvent
    | MemoryUpdatedEvent
    | MemoryDeletedEvent
    | MemoryRolledBackEvent
    | GenerationRequestedEvent
    | MemoriesGeneratedEvent
    | BankCreatedEvent
    | BankUpdatedEvent
    | BankDeletedEvent
)
"""Every kind. A fold that matches on them ends with `assert_never`, so a new kind is a type error
until it is folded.
"""
