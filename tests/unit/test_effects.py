"""The effects of events beyond their own run."""

from typing import Any

import pytest
from tests.builders import event

from runfold.http.principal import Scope
from runfold.permissions.permissions import scope_for
from runfold_projections.effects import (
    ActsAs,
    ChangesAppState,
    ChangesBank,
    ChangesMemory,
    ChangesSession,
    ChangesUserState,
    Effect,
    JoinsSession,
    ReadsAgent,
    ReadsRun,
    ReadsSession,
    effects_of,
)
from runfold_projections.state import SHARED_KINDS
from runfold_schemas.codec import TYPES, new_data
from runfold_schemas.erasures import SubjectErased
from runfold_schemas.events import (
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
    Memory,
    MemoryCreated,
    MemoryDeleted,
    MemoryRolledBack,
    MemoryUpdated,
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

ANN = {"user": "ann"}
FACT = Memory(fact="Prefers window seats", scope=ANN)
LOG_ID = "0" * 32
REVISION_ID = "00000000-0000-7000-8000-000000000000"
AT = {"bank_id": "b-1", "memory_id": "m-1"}
MADE = MemoryCreated(**AT, memory=FACT)
GONE = MemoryDeleted(bank_id="b-2", memory_id="m-2")
REQUEST = {"bank_id": "b-1", "scope": ANN, "first_offset": 0, "end_offset": 0, "reason": "request"}

EFFECTS: list[tuple[Any, list[Effect]]] = [
    (RunOpened(agent_id="desk", log_id=LOG_ID), [ActsAs("desk")]),
    (
        RunOpened(agent_id="desk", log_id=LOG_ID, session_id="s-1", user_id="ann"),
        [ActsAs("desk", "ann"), JoinsSession("s-1")],
    ),
    (SessionCreated(session_id="s-1", app="desk", user="ann", log_id=LOG_ID), [ActsAs("desk", "ann")]),
    (SessionUpdated(session_id="s-1"), [ChangesSession("s-1")]),
    (SessionDeleted(session_id="s-1"), [ChangesSession("s-1")]),
    (MADE, [ChangesMemory("b-1", "m-1", ANN)]),
    (MemoryUpdated(**AT, memory=FACT), [ChangesMemory("b-1", "m-1", ANN)]),
    (MemoryRolledBack(**AT, memory=FACT, revision_id=REVISION_ID), [ChangesMemory("b-1", "m-1", ANN)]),
    (MemoryDeleted(**AT), [ChangesMemory("b-1", "m-1")]),
    (
        MemoriesGenerated(bank_id="b-1", created=(MADE,), deleted=(GONE,)),
        [ChangesMemory("b-1"), ChangesMemory("b-1", "m-1", ANN), ChangesMemory("b-2", "m-2")],
    ),
    (new_data(GenerationRequested, **REQUEST), [ChangesMemory("b-1", scope=ANN)]),
    (
        new_data(GenerationRequested, **REQUEST, options={"run_id": "run-9"}),
        [ChangesMemory("b-1", scope=ANN), ReadsRun("run-9")],
    ),
    (
        new_data(GenerationRequested, **REQUEST, options={"session": {"session_id": "s-9"}}),
        [ChangesMemory("b-1", scope=ANN), ReadsSession("s-9")],
    ),
    (BankCreated(bank_id="b-1", config=BankConfig()), [ChangesBank("b-1")]),
    (
        BankUpdated(bank_id="b-1", config=BankConfig(agents=("desk",))),
        [ChangesBank("b-1"), ReadsAgent("desk")],
    ),
    (BankDeleted(bank_id="b-1"), [ChangesBank("b-1")]),
]

WITHOUT_EFFECTS = [
    SystemMessage(message=""),
    UserMessage(message=""),
    AssistantMessage(message=""),
    Thinking(),
    ToolCall(tool_call_id="c", tool_name="t"),
    ToolResult(tool_call_id="c"),
    PlannerNote(note=""),
    TokenUsage(),
    ProviderPart(content={}),
    ResponseRecorded(),
    EventAmended(offset=0, reason=""),
    Summary(text="so far", end_offset=1),
    RunStarted(),
    RunPaused(),
    RunResumed(),
    RunCompleted(),
    RunFailed(error=""),
    RunCanceled(),
    RunLabeled(labels={}),
    PhaseChanged(phase="planning"),
    PromptRendered(prompt_id="desk.system"),
    PolicyDecided(allowed_tools=()),
    RunScored(scorer="ann", score=1),
    FrameworkEvent(framework="adk", body={}),
    StateChanged(),
    StateDeleted(),
    RunDeleted(log_id=LOG_ID),
    SubjectErased(subject="0" * 64, receipt="{}"),
]


@pytest.mark.parametrize(("data", "effects"), EFFECTS, ids=lambda value: type(value).__name__)
def test_an_event_has_the_effects_of_its_kind(data, effects):
    assert effects_of(event(data), app="desk", user=None) == effects


@pytest.mark.parametrize("data", WITHOUT_EFFECTS, ids=lambda value: type(value).__name__)
def test_other_events_change_their_own_run_only(data):
    assert effects_of(event(data), app="desk", user="ann") == []


def test_every_kind_of_event_has_a_rule():
    kinds = {event(data).type for data, _ in EFFECTS} | {event(data).type for data in WITHOUT_EFFECTS}

    assert kinds == TYPES


def test_every_kind_that_is_forwarded_has_an_effect():
    assert {event(data).type for data, effects in EFFECTS if effects} >= SHARED_KINDS


def test_shared_keys_of_state_are_effects_of_every_kind():
    changed = event(UserMessage(message=""), state_delta={"app:a": 1, "user:u": 2, "own": 3, "temp:t": 4})

    assert effects_of(changed, app="desk", user="ann") == [
        ChangesAppState("desk"),
        ChangesUserState("desk", "ann"),
    ]
    assert effects_of(changed, app="desk", user=None) == [ChangesAppState("desk")]


def test_everything_in_the_log_of_a_generation_may_change_memories_of_its_bank():
    log = "memories-3b6cf1f0-3b25-5a0c-93d5-0f2e1d2b8a61"

    content = event(FrameworkEvent(framework="adk", body={}), run_id=log)

    assert effects_of(content, app="bank-1", user=None) == [ChangesMemory("bank-1")]


def test_every_effect_needs_one_scope():
    needed = {type(effect): scope_for(effect) for _, effects in EFFECTS for effect in effects}

    assert needed == {
        ActsAs: Scope.publish,
        JoinsSession: Scope.publish,
        ChangesSession: Scope.publish,
        ChangesMemory: Scope.memories,
        ChangesBank: Scope.memories,
        ReadsAgent: Scope.read,
        ReadsRun: Scope.read,
        ReadsSession: Scope.read,
    }
