"""The effects of an event beyond its own run: what it changes or reads that others share.

An event is appended to one run, but it may delete a bank, or make memories of another session. So
its sender needs permission for each effect, and not only for the run. `effects_of` is the only
function that knows the effects of the kinds of events.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from runfold_schemas.data import APP_PREFIX, USER_PREFIX
from runfold_schemas.erasures import SubjectErased
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
from runfold_schemas.judgements import PolicyDecided, PromptRendered, RunScored
from runfold_schemas.memories import (
    BankConfig,
    BankCreated,
    BankDeleted,
    BankUpdated,
    GenerationRequested,
    MemoriesGenerated,
    MemoryChange,
    is_generation_log,
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


@dataclass(frozen=True, slots=True)
class ActsAs:
    """A run or a session of this agent begins, and of this user if there is one."""

    agent_id: str
    user_id: str | None = None


@dataclass(frozen=True, slots=True)
class JoinsSession:
    """The run becomes a part of the session: its messages are in the session's ledger."""

    session_id: str


@dataclass(frozen=True, slots=True)
class ChangesSession:
    """The session is changed or deleted."""

    session_id: str


@dataclass(frozen=True, slots=True)
class ChangesAppState:
    """The state that all users of the app share is changed."""

    app: str


@dataclass(frozen=True, slots=True)
class ChangesUserState:
    """The state that all sessions of a user of the app share is changed."""

    app: str
    user: str


@dataclass(frozen=True, slots=True)
class ChangesMemory:
    """A memory is changed. If `scope` is None, the scope is the one that the memory has already. If
    `memory_id` is None too, any memory of the bank may be changed.
    """

    bank_id: str
    memory_id: str | None = None
    scope: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ChangesBank:
    """The bank is created, configured or deleted."""

    bank_id: str


@dataclass(frozen=True, slots=True)
class ReadsAgent:
    """Every later run of the agent is read, to make memories from it."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class ReadsRun:
    """The run is read, to make memories from it."""

    run_id: str


@dataclass(frozen=True, slots=True)
class ReadsSession:
    """The session is read, to make memories from it."""

    session_id: str


Effect = (
    ActsAs
    | JoinsSession
    | ChangesSession
    | ChangesAppState
    | ChangesUserState
    | ChangesMemory
    | ChangesBank
    | ReadsAgent
    | ReadsRun
    | ReadsSession
)


def effects_of(event: AnyEvent, *, app: str, user: str | None) -> list[Effect]:
    """The effects of an event that is appended to a run of this agent, and of this user if the run
    has one. No effect means that the event changes its own run only.
    """
    effects = list(_effects_of_data(event))
    if event.state_delta:
        effects += effects_of_state(event.state_delta, app=app, user=user)
    if is_generation_log(event.run_id):
        # Memories are made from all contents of such a log. Its agent is the bank.
        effects.append(ChangesMemory(app))
    return effects


def effects_of_state(delta: Mapping[str, Any], *, app: str, user: str | None) -> list[Effect]:
    """The effects of changes of state in a run of this agent and user."""
    effects: list[Effect] = []
    if any(key.startswith(APP_PREFIX) for key in delta):
        effects.append(ChangesAppState(app))
    if user is not None and any(key.startswith(USER_PREFIX) for key in delta):
        effects.append(ChangesUserState(app, user))
    return effects


def effects_of_config(bank_id: str, config: BankConfig | None) -> list[Effect]:
    """The effects of giving a bank this configuration."""
    agents = config.agents if config is not None else ()
    return [ChangesBank(bank_id), *map(ReadsAgent, agents)]


def _effects_of_data(event: AnyEvent) -> Iterable[Effect]:
    match event.data:
        case RunOpened() as opened:
            joins = [JoinsSession(opened.session_id)] if opened.session_id is not None else []
            return [ActsAs(opened.agent_id, opened.user_id), *joins]
        case SessionCreated() as created:
            return [ActsAs(created.app, created.user)]
        case (SessionUpdated() | SessionDeleted()) as change:
            return [ChangesSession(change.session_id)]
        case MemoryChange() as change:
            return [_effect_of_change(change)]
        case MemoriesGenerated() as generated:
            return [ChangesMemory(generated.bank_id), *map(_effect_of_change, generated.changes())]
        case GenerationRequested() as request:
            return _effects_of_request(request)
        case (BankCreated() | BankUpdated()) as fact:
            return effects_of_config(fact.bank_id, fact.config)
        case BankDeleted() as fact:
            return [ChangesBank(fact.bank_id)]
        case (
            SystemMessage()
            | UserMessage()
            | AssistantMessage()
            | Thinking()
            | ToolCall()
            | ToolResult()
            | PlannerNote()
            | TokenUsage()
            | ProviderPart()
            | ResponseRecorded()
            | EventAmended()
            | Summary()
            | RunStarted()
            | RunPaused()
            | RunResumed()
            | RunCompleted()
            | RunFailed()
            | RunCanceled()
            | RunLabeled()
            | PhaseChanged()
            | PromptRendered()
            | PolicyDecided()
            | RunScored()
            | FrameworkEvent()
            | StateChanged()
            | StateDeleted()
            | RunDeleted()
            | SubjectErased()
        ):
            return ()
        case _:
            assert_never(event.data)


def _effect_of_change(change: MemoryChange) -> Effect:
    memory = getattr(change, "memory", None)
    return ChangesMemory(change.bank_id, change.memory_id, memory.scope if memory is not None else None)


def _effects_of_request(request: GenerationRequested) -> Iterator[Effect]:
    """A request for a generation names its source in `options`, in a form that nothing has checked.
    Without a source, the generation reads the log that has the request.
    """
    yield ChangesMemory(request.bank_id, scope=request.scope)
    if (run_id := request.options.get("run_id")) is not None:
        yield ReadsRun(str(run_id))
    if (session := request.options.get("session")) is not None:
        yield ReadsSession(str(session.get("session_id")) if isinstance(session, dict) else str(session))
