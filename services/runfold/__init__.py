"""Runfold: a memory backend for AI agents. Each run is a log, and everything else is folded from
the logs.

Everything that an agent needs is importable from here: runs, sessions, memories and banks, and
every error. Importing it needs pydantic and aiokafka, connects to nothing and changes nothing.
`HttpSessions` and `HttpMemories` are importable from here too, if httpx is installed.
"""

from typing import TYPE_CHECKING, Any

from runfold.client.appender import Position
from runfold.client.envelope import Envelope, ResponseEnvelope
from runfold.client.memories import Memories
from runfold.client.memory import MemorySelection, NearestMemory, RevisionOptions
from runfold.client.run import Run
from runfold.client.runfold import LogOptions, Runfold, RunOptions
from runfold.client.session import EventSelection, RecordedEvent, Session
from runfold.client.sessions import Sessions
from runfold_projections.admission import Admitted
from runfold_projections.memory import BankRecord, MemoryRecord, Revision
from runfold_projections.providers import Encoded, encode, validate
from runfold_projections.repair import repair
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_projections.validation import Fault
from runfold_schemas.data import Data
from runfold_schemas.errors import (
    BankConflictError,
    BankNotEmptyError,
    BankNotFoundError,
    ConfigurationError,
    EventTooLargeError,
    GenerationFailedError,
    InexpressibleError,
    InvalidEventError,
    InvalidIdError,
    MemoryChangedError,
    MemoryConflictError,
    MemoryNotFoundError,
    NoModelError,
    NotYetVisibleError,
    RejectedError,
    RevisionNotFoundError,
    RunConflictError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
    SessionConflictError,
    SessionEndedError,
    SessionNotFoundError,
    UnavailableError,
    UndecidedError,
    UndecodableError,
)
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    SystemMessage,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.memories import BankConfig, Memory
from runfold_schemas.messages import DocumentPart, ImagePart, Message, Provider, TextPart
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
from runfold_schemas.sessions import StateChanged

if TYPE_CHECKING:
    from runfold.remote.memories import HttpMemories as HttpMemories
    from runfold.remote.sessions import HttpSessions as HttpSessions


def __getattr__(name: str) -> Any:
    """The clients over HTTP are imported when they are first used, because they need httpx."""
    if name == "HttpSessions":
        from runfold.remote.sessions import HttpSessions  # noqa: PLC0415

        return HttpSessions
    if name == "HttpMemories":
        from runfold.remote.memories import HttpMemories  # noqa: PLC0415

        return HttpMemories
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Admitted",
    "AnyEvent",
    "AssistantMessage",
    "BankConfig",
    "BankConflictError",
    "BankNotEmptyError",
    "BankNotFoundError",
    "BankRecord",
    "ConfigurationError",
    "Data",
    "DocumentPart",
    "Encoded",
    "Envelope",
    "EventAmended",
    "EventSelection",
    "EventTooLargeError",
    "Fault",
    "GenerationFailedError",
    "ImagePart",
    "InexpressibleError",
    "InvalidEventError",
    "InvalidIdError",
    "LogOptions",
    "Memories",
    "Memory",
    "MemoryChangedError",
    "MemoryConflictError",
    "MemoryNotFoundError",
    "MemoryRecord",
    "MemorySelection",
    "Message",
    "NearestMemory",
    "NoModelError",
    "NotYetVisibleError",
    "PhaseChanged",
    "PlannerNote",
    "Position",
    "Provider",
    "ProviderPart",
    "RecordedEvent",
    "RejectedError",
    "ResponseEnvelope",
    "ResponseRecorded",
    "Revision",
    "RevisionNotFoundError",
    "RevisionOptions",
    "Run",
    "RunCanceled",
    "RunCompleted",
    "RunConflictError",
    "RunEndedError",
    "RunFailed",
    "RunLabeled",
    "RunNotFoundError",
    "RunOpened",
    "RunOptions",
    "RunPaused",
    "RunRecord",
    "RunResumed",
    "RunStarted",
    "Runfold",
    "RunfoldError",
    "Session",
    "SessionConflictError",
    "SessionEndedError",
    "SessionNotFoundError",
    "SessionRecord",
    "Sessions",
    "StateChanged",
    "SystemMessage",
    "TextPart",
    "Thinking",
    "TokenUsage",
    "ToolCall",
    "ToolResult",
    "UnavailableError",
    "UndecidedError",
    "UndecodableError",
    "UserMessage",
    "encode",
    "repair",
    "validate",
]
