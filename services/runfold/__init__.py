"""Runfold: a memory backend for AI agents. Each run is a log, and everything else is folded from
the logs.

Everything that an agent needs is importable from here: runs, sessions, memories and banks, and
every error. Importing it needs pydantic and aiokafka, connects to nothing and changes nothing.
`HttpRuns`, `HttpSessions`, `HttpMemories` and `HttpOperations` are importable from here too, if
httpx is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from runfold.client.appender import Position
from runfold.client.envelope import Envelope, RecordOptions, ResponseEnvelope
from runfold.client.memories import Memories
from runfold.client.memory import MemorySelection, NearestMemory, RevisionOptions
from runfold.client.new_run import ForkOptions
from runfold.client.prefixes import AsOfOptions, LedgerOptions, RunView, StateChange
from runfold.client.recording import Recorded
from runfold.client.run import Run
from runfold.client.runfold import LogOptions, Runfold, RunOptions
from runfold.client.session import EventSelection, RecordedEvent, Session
from runfold.client.sessions import Sessions
from runfold_projections.admission import Admitted
from runfold_projections.budget import Budget, Fitted
from runfold_projections.memory import BankRecord, MemoryRecord, Revision
from runfold_projections.providers import Encoded, EncodeOptions, encode, validate
from runfold_projections.repair import repair
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_projections.validation import Fault
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.data import Data
from runfold_schemas.errors import (
    BankConflictError,
    BankNotEmptyError,
    BankNotFoundError,
    BlobNotFoundError,
    BudgetExceededError,
    ConfigurationError,
    DamagedError,
    DeadLetterNotFoundError,
    EventTooLargeError,
    ForbiddenError,
    GenerationFailedError,
    InexpressibleError,
    InvalidEventError,
    InvalidIdError,
    KeyNotFoundError,
    MemoryChangedError,
    MemoryConflictError,
    MemoryNotFoundError,
    NoModelError,
    NotQuarantinedError,
    NotYetVisibleError,
    OutsideLimitsError,
    QuarantinedError,
    QuotaExceededError,
    RejectedError,
    RevisionNotFoundError,
    RunConflictError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
    ScopeMissingError,
    SessionConflictError,
    SessionEndedError,
    SessionNotFoundError,
    TenantNotFoundError,
    UnauthenticatedError,
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
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.judgements import PolicyDecided, PromptRendered, PromptScope, RunScored
from runfold_schemas.memories import BankConfig, Memory
from runfold_schemas.messages import (
    AudioPart,
    Citation,
    DocumentPart,
    ImagePart,
    Message,
    Provider,
    TextPart,
    VideoPart,
)
from runfold_schemas.runs import (
    ForkedFrom,
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
from runfold_schemas.summaries import Summary
from runfold_schemas.usage import TokenUsage

if TYPE_CHECKING:
    from runfold.documents.agents import AgentDocument as AgentDocument
    from runfold.documents.agents import AgentStatistics as AgentStatistics
    from runfold.documents.agents import SharedToolDocument as SharedToolDocument
    from runfold.documents.dead_letters import DeadLetterDocument as DeadLetterDocument
    from runfold.documents.dead_letters import DeadLetterEntry as DeadLetterEntry
    from runfold.documents.operations import OperationsDocument as OperationsDocument
    from runfold.documents.quarantine import QuarantineEntry as QuarantineEntry
    from runfold.documents.runs import RunDocument as RunDocument
    from runfold.documents.runs import RunSummary as RunSummary
    from runfold.remote.memories import HttpMemories as HttpMemories
    from runfold.remote.operations import HttpOperations as HttpOperations
    from runfold.remote.runs import HttpRun as HttpRun
    from runfold.remote.runs import HttpRuns as HttpRuns
    from runfold.remote.runs import Moment as Moment
    from runfold.remote.runs import RunFilters as RunFilters
    from runfold.remote.sessions import HttpSessions as HttpSessions
    from runfold_schemas.lists import QuarantineKind as QuarantineKind
    from runfold_schemas.lists import RunSort as RunSort
    from runfold_schemas.lists import ShownStatus as ShownStatus

_OVER_HTTP: Final = {
    "AgentDocument": "runfold.documents.agents",
    "AgentStatistics": "runfold.documents.agents",
    "SharedToolDocument": "runfold.documents.agents",
    "DeadLetterDocument": "runfold.documents.dead_letters",
    "DeadLetterEntry": "runfold.documents.dead_letters",
    "HttpMemories": "runfold.remote.memories",
    "HttpOperations": "runfold.remote.operations",
    "HttpRun": "runfold.remote.runs",
    "HttpRuns": "runfold.remote.runs",
    "HttpSessions": "runfold.remote.sessions",
    "Moment": "runfold.remote.runs",
    "OperationsDocument": "runfold.documents.operations",
    "QuarantineEntry": "runfold.documents.quarantine",
    "QuarantineKind": "runfold_schemas.lists",
    "RunDocument": "runfold.documents.runs",
    "RunFilters": "runfold.remote.runs",
    "RunSort": "runfold_schemas.lists",
    "RunSummary": "runfold.documents.runs",
    "ShownStatus": "runfold_schemas.lists",
}
"""The clients over HTTP and the types of their verbs, with their modules. They are imported when
they are first used, because the clients need httpx.
"""


def __getattr__(name: str) -> Any:
    if name in _OVER_HTTP:
        return getattr(import_module(_OVER_HTTP[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Admitted",
    "AnyEvent",
    "ArchiveDamagedError",
    "AsOfOptions",
    "AssistantMessage",
    "AudioPart",
    "BankConfig",
    "BankConflictError",
    "BankNotEmptyError",
    "BankNotFoundError",
    "BankRecord",
    "BlobNotFoundError",
    "Budget",
    "BudgetExceededError",
    "Citation",
    "ConfigurationError",
    "DamagedError",
    "Data",
    "DeadLetterNotFoundError",
    "DocumentPart",
    "EncodeOptions",
    "Encoded",
    "Envelope",
    "EventAmended",
    "EventSelection",
    "EventTooLargeError",
    "Fault",
    "Fitted",
    "ForbiddenError",
    "ForkOptions",
    "ForkedFrom",
    "GenerationFailedError",
    "ImagePart",
    "InexpressibleError",
    "InvalidEventError",
    "InvalidIdError",
    "KeyNotFoundError",
    "LedgerOptions",
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
    "NotQuarantinedError",
    "NotYetVisibleError",
    "OutsideLimitsError",
    "PhaseChanged",
    "PlannerNote",
    "PolicyDecided",
    "Position",
    "PromptRendered",
    "PromptScope",
    "Provider",
    "ProviderPart",
    "QuarantinedError",
    "QuotaExceededError",
    "RecordOptions",
    "Recorded",
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
    "RunScored",
    "RunStarted",
    "RunView",
    "Runfold",
    "RunfoldError",
    "ScopeMissingError",
    "Session",
    "SessionConflictError",
    "SessionEndedError",
    "SessionNotFoundError",
    "SessionRecord",
    "Sessions",
    "StateChange",
    "StateChanged",
    "Summary",
    "SystemMessage",
    "TenantNotFoundError",
    "TextPart",
    "Thinking",
    "TokenUsage",
    "ToolCall",
    "ToolResult",
    "UnauthenticatedError",
    "UnavailableError",
    "UndecidedError",
    "UndecodableError",
    "UserMessage",
    "VideoPart",
    "encode",
    "repair",
    "validate",
]
