"""Records for tests: events as the broker gives them back, and whole logs for properties."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from tests.builders import event, event_id

from runfold_projections.admission import Admission, Admitted
from runfold_schemas.codec import Record, encode, headers
from runfold_schemas.data import Data
from runfold_schemas.erasures import SubjectErased
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    StandIn,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.judgements import PolicyDecided, PromptRendered, PromptScope, RunScored
from runfold_schemas.memories import (
    BankConfig,
    BankCreated,
    BankDeleted,
    BankUpdated,
    ExtractedMemory,
    GenerationRequested,
    MemoriesGenerated,
    Memory,
    MemoryCreated,
    MemoryDeleted,
    MemoryRolledBack,
    MemoryTopic,
    MemoryUpdated,
    Moment,
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

modest = settings(max_examples=60)
"""For properties: a few seconds for all of them, also where the machine is busy with something
else.
"""

LOG_TIME = 1_767_225_600_000
"""The append time of offset 0, in milliseconds; each further offset is ten later."""

ONE_OF_EACH: tuple[Data, ...] = (
    RunOpened(agent_id="agent-1", log_id="log-1", session_id="session-1", labels={"team": "red"}),
    RunStarted(),
    RunPaused(reason="lunch"),
    RunResumed(),
    RunCompleted(),
    RunFailed(error="out of luck"),
    RunCanceled(),
    RunLabeled(labels={"team": "blue", "tier": "1"}),
    PhaseChanged(phase="planning"),
    PromptRendered(prompt_id="desk.system", version="2", scope=PromptScope(labels={"team": "red"})),
    PolicyDecided(allowed_tools=("search",), caps={"remaining_tool_calls": 3}, metadata={"rule": 7}),
    RunScored(scorer="exact", score=0.5, label="close", reason="half of it"),
    TokenUsage(model="m", input_tokens=3, output_tokens=5, cache_read_tokens=7, cache_write_tokens=11),
    SystemMessage(message="be kind"),
    UserMessage(message="hello"),
    AssistantMessage(message="hi"),
    Thinking(text="hm", signature="s", final=True),
    ToolCall(tool_call_id="1", tool_name="search", payload={"q": "x"}),
    ToolResult(tool_call_id="1", result="found"),
    PlannerNote(note="n"),
    ProviderPart(content={"type": "server_tool_use"}, content_index=1),
    ResponseRecorded(model="m", stop_reason="end_turn", faults=("one",)),
    EventAmended(
        offset=3, stand_ins=(StandIn(type="user_message", data={"message": "hi"}),), reason="it began with us"
    ),
    Summary(text="They said hello.", end_offset=5),
    FrameworkEvent(framework="openai-agents", body={"role": "user", "content": "hi"}),
    StateChanged(),
    SessionCreated(
        session_id="session-1", app="app-1", user="user-1", log_id="0" * 32, labels={"team": "red"}
    ),
    SessionUpdated(session_id="session-1", labels={"team": "blue"}, display_name="A talk"),
    SessionDeleted(session_id="session-1"),
    StateDeleted(keys=("user:seat",)),
    RunDeleted(log_id="0" * 32),
    SubjectErased(subject="0" * 64, receipt="{}"),
    MemoryCreated(bank_id="b", memory_id="m", memory=Memory(fact="likes tea", scope={"user": "ann"})),
    MemoryUpdated(
        bank_id="b",
        memory_id="m",
        based_on="00000000-0000-7000-8000-000000000000",
        memory=Memory(
            fact="likes coffee",
            scope={"user": "ann"},
            topics=(MemoryTopic(managed="USER_PREFERENCES"), MemoryTopic(custom="drinks")),
            metadata={"sure": True, "of": 0.5, "since": Moment(timestamp="2026-01-01T00:00:00Z"), "by": "me"},
        ),
        extracted=(ExtractedMemory(fact="drinks coffee"),),
    ),
    MemoryDeleted(bank_id="b", memory_id="m", leaves_revision=False),
    MemoryRolledBack(
        bank_id="b",
        memory_id="m",
        memory=Memory(fact="likes tea", scope={"user": "ann"}),
        revision_id="00000000-0000-7000-8000-000000000000",
    ),
    GenerationRequested(
        bank_id="b", scope={"user": "ann"}, first_offset=1, end_offset=3, reason="idle_duration"
    ),
    MemoriesGenerated(bank_id="b", deleted=(MemoryDeleted(bank_id="b", memory_id="m"),)),
    BankCreated(bank_id="b", config=BankConfig(display_name="A bank")),
    BankUpdated(bank_id="b", config=BankConfig(disable_revisions=True)),
    BankDeleted(bank_id="b"),
)
"""An event's data of every kind."""


def record(what: AnyEvent | bytes | None, offset: int = 0, **fields: Any) -> Record:
    """The record of an event, or of bytes that are none, at `offset`."""
    defaults: dict[str, Any] = {
        "log_time": LOG_TIME + offset * 10,
        "key": None,
        "headers": () if isinstance(what, bytes | None) else tuple(headers(what, source="tests")),
        "value": what if isinstance(what, bytes | None) else encode(what),
    }
    return Record(offset, **(defaults | fields))


def records(*data: Data, first_offset: int = 0, **envelope: Any) -> list[Record]:
    """A record for each of `data`, one after the other."""
    return [record(event(each, **envelope), offset) for offset, each in enumerate(data, first_offset)]


def admit(log: Sequence[Record], run_id: str = "run-1") -> list[Admitted]:
    """What becomes of a whole log."""
    admission = Admission(run_id)
    return [admission.admit(one) for one in log]


def restored(admission: Admission, before: Sequence[Admitted]) -> Admission:
    """The admission as it is after it was stored: from its plain fields, and the ids of what
    counted before.
    """
    seen = [one.event.event_id for one in before if one.event is not None and one.counts]
    return Admission(
        admission.run_id,
        seen=seen,
        opened=admission.opened,
        ended=admission.ended,
        last_offset=admission.last_offset,
    )


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """A log as the world may write it: kinds in any order, few ids, gaps, and records that are
    nothing.
    """
    log: list[Record] = []
    offset = -1
    for _ in range(draw(st.integers(0, 14))):
        offset += draw(st.sampled_from((1, 1, 1, 2, 7)))
        log.append(draw(st.one_of(_events(offset), _events(offset), _events(offset), _broken(offset))))
    return log


def _events(offset: int) -> st.SearchStrategy[Record]:
    expected = st.one_of(st.none(), st.none(), st.integers(-1, max(offset, 0)))
    return st.builds(
        lambda data, number, expected_offset, turn_id: record(
            event(data, event_id=event_id(number), expected_offset=expected_offset, turn_id=turn_id), offset
        ),
        st.sampled_from(ONE_OF_EACH),
        st.integers(0, 9),
        expected,
        st.sampled_from((None, "turn-1", "turn-2")),
    )


def _broken(offset: int) -> st.SearchStrategy[Record]:
    return st.sampled_from(
        (
            record(b"{", offset),
            record(None, offset),
            record(event(UserMessage(message="lost"), run_id="run-2"), offset),
        )
    )


def portions(log: Sequence[Any]) -> st.SearchStrategy[list[Sequence[Any]]]:
    """`log` cut anywhere, also into nothing."""
    return st.lists(st.integers(0, len(log)), max_size=4).map(
        lambda cuts: [log[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(log)], strict=True)]
    )
