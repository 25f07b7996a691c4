"""The kinds of events, and the envelope that all of them share.

An event is one immutable fact: an envelope (`Event`) around the data of its kind (`UserMessage`,
`ToolCall`, ...). Kinds and data fields that Goa-AI's memory events also have use the same names.
Unknown fields are kept, so an older reader passes a newer writer's event on unchanged.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runfold_schemas.data import (
    Count,
    Data,
    Items,
    LaterBlobDigests,
    LaterFlag,
    LaterMessageId,
    LaterObject,
)
from runfold_schemas.envelope import Event
from runfold_schemas.erasures import SubjectErased
from runfold_schemas.judgements import PolicyDecided, PromptRendered, RunScored
from runfold_schemas.mcp import mcp_fields
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
from runfold_schemas.messages import (
    Base64,
    Citation,
    Medium,
    ProviderData,
    UserPart,
)
from runfold_schemas.runs import (
    PhaseChanged,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunOpened,
    RunPaused,
    RunResumed,
    RunStarted,
)
from runfold_schemas.sessions import (
    FrameworkEvent,
    RunDeleted,
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
    StateDeleted,
)
from runfold_schemas.summaries import Summary
from runfold_schemas.usage import TokenUsage


class SystemMessage(Data):
    """Instructions to the model."""

    message: str
    provider_data: ProviderData = None


class UserMessage(Data):
    """A message of the user. It begins a user message of the ledger."""

    message: str
    structured: Any = None
    parts: Items[UserPart] | None = None
    """The message for the model, if it holds more than text. `message` is then for people only."""


class AssistantMessage(Data):
    """Text of the model. Deltas of a stream are events of this kind too. Adjacent texts with the
    same `content_index` join into one block.
    """

    message: str
    structured: Any = None
    content_index: int | None = None
    refusal: bool = False
    """Whether the model refuses in this text to do what the user asked."""
    citations: Items[Citation] = ()
    """The sources of the block. Their `start` and `end` count from the beginning of the block."""
    provider_data: ProviderData = None
    blobs: LaterBlobDigests = ()


class Thinking(Data):
    """Reasoning of the model. The deltas of a stream are not final. The final event carries the
    whole text, signed or redacted.
    """

    text: str = ""
    signature: str = ""
    redacted: Base64 | None = None
    content_index: int = 0
    final: bool = False
    provider_data: ProviderData = None


class ToolCall(Data):
    """The model calls a tool. If an agent that is a tool itself made the call,
    `parent_tool_call_id` names the call of that agent.
    """

    tool_call_id: str
    tool_name: str
    payload: Any = None
    parent_tool_call_id: str | None = None
    provider_data: ProviderData = None
    blobs: LaterBlobDigests = ()


class ToolResult(Data):
    """The answer of a tool. The tool failed if `error` is present and not null; an empty string
    counts as an error.
    """

    tool_call_id: str
    tool_name: str = ""
    result: Any = None
    error: Any = None
    duration_ms: Annotated[float, Field(ge=0)] | None = None
    parent_tool_call_id: str | None = None
    attachments: Items[Medium] = ()
    provider_data: LaterObject = None
    blobs: LaterBlobDigests = ()

    @classmethod
    def from_mcp(cls, tool_call_id: str, result: Any, *, tool_name: str = "") -> Self:
        """The result of an MCP server's tool: a `CallToolResult` of the package `mcp`, the same as
        decoded JSON, or a list of its content blocks. Raises `InvalidEventError` for other values.
        """
        return cls(tool_call_id=tool_call_id, tool_name=tool_name, **mcp_fields(result))


class PlannerNote(Data):
    """A note of the planner. The log keeps it; the ledger does not contain it."""

    note: str


class ProviderPart(Data):
    """A block of a response for which Runfold has no kind, unchanged. The ledger omits blocks that
    are not `finished`.
    """

    content: Any
    content_index: int = 0
    finished: bool = True
    blobs: LaterBlobDigests = ()


class ResponseRecorded(Data):
    """The end of a model's response. The parts are the earlier events with its `message_id`."""

    model: str | None = None
    stop_reason: str | None = None
    """The reason in the provider's own word."""
    refused: LaterFlag = None
    """True if the model, or a filter of its provider, refused to answer or to go on. None
    otherwise.
    """
    finished: bool = True
    """False if the response broke off. The log then has the part that arrived."""
    faults: Items[str] = ()
    """One sentence for each defect of the response."""
    response_id: LaterMessageId = None
    """The provider's id of the response. Some servers repeat ids."""
    provider_data: LaterObject = None
    """What stands beside the content: citations, safety ratings, further choices."""
    next_request: LaterObject = None
    """The members beside the messages that the next request to the provider needs."""
    blobs: LaterBlobDigests = ()


class StandIn(BaseModel):
    """An event that takes the place of an amended event in the ledger: its kind and its data."""

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
    """The ledger has `stand_ins` in the place of the event at `offset`; without stand-ins the
    ledger omits the event. Amendments repair ledgers that no provider accepts. The last amendment
    of an offset counts. An amendment itself cannot be amended.
    """

    offset: Count
    stand_ins: Items[StandIn] = ()
    reason: str


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


class SummaryEvent(Event[Summary]):
    type: Literal["summary"]


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


class PromptRenderedEvent(Event[PromptRendered]):
    type: Literal["prompt_rendered"]


class PolicyDecidedEvent(Event[PolicyDecided]):
    type: Literal["policy_decided"]


class RunScoredEvent(Event[RunScored]):
    type: Literal["run_scored"]


class FrameworkEventEvent(Event[FrameworkEvent]):
    type: Literal["framework_event"]


class StateChangedEvent(Event[StateChanged]):
    type: Literal["state_changed"]


class StateDeletedEvent(Event[StateDeleted]):
    type: Literal["state_deleted"]


class RunDeletedEvent(Event[RunDeleted]):
    type: Literal["run_deleted"]


class SubjectErasedEvent(Event[SubjectErased]):
    type: Literal["subject_erased"]


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
    | SummaryEvent
    | RunOpenedEvent
    | RunStartedEvent
    | RunPausedEvent
    | RunResumedEvent
    | RunCompletedEvent
    | RunFailedEvent
    | RunCanceledEvent
    | RunLabeledEvent
    | PhaseChangedEvent
    | PromptRenderedEvent
    | PolicyDecidedEvent
    | RunScoredEvent
    | FrameworkEventEvent
    | StateChangedEvent
    | StateDeletedEvent
    | RunDeletedEvent
    | SubjectErasedEvent
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
"""An event of any kind. Folds that match on kinds end with `assert_never`, so a new kind is a type
error until each fold handles it.
"""
