"""The run record: the status, labels, usage and counts of a run, folded from its log.

The status of an ended run never changes. If the current status does not allow a change, the fold
counts it (`illegal_transitions`) and does nothing else. Refusing to fold such a log would hide the
run.

The JSON of a record is under 320 KB for any log, because every reader and the projector hold it
whole.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final, assert_never, get_args

from pydantic import BaseModel, ConfigDict, Field

from runfold_projections.admission import Admitted
from runfold_projections.tally import CHANGING, Tally, tally_of
from runfold_projections.usage import TokenTotals, add, tokens_of
from runfold_schemas.data import LABELS_MAX
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
from runfold_schemas.memories import BankFact, GenerationRequested, MemoriesGenerated, MemoryChange
from runfold_schemas.runs import (
    ENDINGS,
    ForkedFrom,
    Phase,
    PhaseChanged,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunOpened,
    RunPaused,
    RunResumed,
    RunStarted,
    Status,
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

ERROR_LENGTH_MAX: Final = 4096
"""The number of characters of a run's error that its record shows. The event has the whole error.
"""

LIVE: Final[frozenset[Status]] = frozenset(get_args(Status)) - frozenset(ENDINGS.values())
"""The statuses of runs that have not ended."""


PROMPTS_MAX: Final = 32
"""A record shows so many versions of prompts, those that were rendered first."""

SCORERS_MAX: Final = 16
"""A record shows the last scores of so many scorers, those that scored first."""


class PromptUsed(BaseModel):
    """A version of a prompt that was rendered in the run."""

    model_config = ConfigDict(frozen=True)

    prompt_id: str
    version: str | None = None


class Score(BaseModel):
    """What a scorer last said of the run as a whole. The event has the reason."""

    model_config = ConfigDict(frozen=True)

    score: float | None = None
    label: str | None = None
    scored_at: datetime
    """The time of the event."""


class RunRecord(BaseModel):
    """A run after the first `next_offset` records of its log. Times are the producers'."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    agent_id: str = ""
    session_id: str | None = None
    user_id: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    forked_from: Annotated[ForkedFrom | None, Field(exclude_if=lambda value: value is None)] = None
    turn_id: str | None = None
    status: Status = "pending"
    phase: Phase | None = None
    started_at: datetime | None = None
    updated_at: datetime | None = None
    labels: dict[str, str] = {}
    error: str | None = None
    usage: TokenTotals = TokenTotals()
    counts: dict[str, int] = {}
    """The number of events that count, by type."""
    prompts: Annotated[tuple[PromptUsed, ...], Field(exclude_if=lambda value: not value)] = ()
    scores: Annotated[dict[str, Score], Field(exclude_if=lambda value: not value)] = {}
    """By scorer."""
    exceptions: dict[str, int] = {}
    """The number of records that are duplicates, rejected, late or undecodable, by outcome."""
    illegal_transitions: int = 0
    next_offset: int = 0


def fold(record: RunRecord, admitted: Iterable[Admitted]) -> RunRecord:
    """The record after further records of the log, which may be divided in any way."""
    return fold_tally(record, tally_of(admitted))


def fold_tally(record: RunRecord, tally: Tally) -> RunRecord:
    """As `fold`, of records whose outcomes are decided already."""
    for each in tally.whole:
        if each.event is not None and each.event.type in CHANGING and each.counts:
            record = record.model_copy(update=_change(record, each.event))
    counts, exceptions = dict(record.counts), dict(record.exceptions)
    for kind, count in tally.counts.items():
        counts[kind] = counts.get(kind, 0) + count
    for _, outcome, _ in tally.exceptions:
        exceptions[outcome] = exceptions.get(outcome, 0) + 1
    changes: dict[str, Any] = {"counts": counts, "exceptions": exceptions}
    if tally.next_offset is not None:
        changes["next_offset"] = tally.next_offset
    if tally.updated_at is not None:
        changes["updated_at"] = tally.updated_at
    if tally.last_turn_id is not None:
        changes["turn_id"] = tally.last_turn_id
    return record.model_copy(update=changes)


def _change(record: RunRecord, event: AnyEvent) -> Mapping[str, Any]:
    match event.data:
        case RunOpened() as opened:
            return {
                "agent_id": opened.agent_id,
                "session_id": opened.session_id,
                "user_id": opened.user_id,
                "status": opened.status,
                "started_at": event.timestamp,
                "labels": opened.labels,
                "forked_from": opened.forked_from,
            }
        case (
            RunStarted() | RunPaused() | RunResumed() | RunCompleted() | RunFailed() | RunCanceled()
        ) as change:
            return _change_of_status(record, change)
        case RunLabeled() as labeled:
            return {"labels": merged_labels(record.labels, labeled.labels)}
        case PhaseChanged() as changed:
            return {"phase": changed.phase}
        case TokenUsage() as usage:
            return {"usage": add(record.usage, tokens_of(event, usage))}
        case PromptRendered() as rendered:
            return {"prompts": _with_prompt(record.prompts, rendered)}
        case RunScored() as scored:
            return {"scores": _with_score(record.scores, scored, event.timestamp)}
        case (
            SystemMessage()
            | UserMessage()
            | AssistantMessage()
            | Thinking()
            | ToolCall()
            | ToolResult()
            | PlannerNote()
            | PolicyDecided()
            | ProviderPart()
            | ResponseRecorded()
            | EventAmended()
            | Summary()
            | FrameworkEvent()
            | StateChanged()
            | StateDeleted()
            | RunDeleted()
            | SubjectErased()
            | SessionCreated()
            | SessionUpdated()
            | SessionDeleted()
            | MemoryChange()
            | GenerationRequested()
            | MemoriesGenerated()
            | BankFact()
        ):
            return {}
        case _:
            assert_never(event.data)


def _change_of_status(
    record: RunRecord,
    change: RunStarted | RunPaused | RunResumed | RunCompleted | RunFailed | RunCanceled,
) -> Mapping[str, Any]:
    match change:
        case RunStarted():
            return _transition(record, "running", allowed={"pending"})
        case RunPaused():
            return _transition(record, "paused", allowed={"running"})
        case RunResumed():
            return _transition(record, "running", allowed={"paused"})
        case RunCompleted():
            return _transition(record, "completed", allowed=LIVE, phase="completed")
        case RunFailed(error=error):
            return _transition(record, "failed", allowed=LIVE, phase="failed", error=error[:ERROR_LENGTH_MAX])
        case RunCanceled():
            return _transition(record, "canceled", allowed=LIVE, phase="canceled")


def _transition(
    record: RunRecord, status: Status, *, allowed: Iterable[Status], **more: str
) -> Mapping[str, Any]:
    if record.status in allowed:
        return {"status": status, **more}
    return {"illegal_transitions": record.illegal_transitions + 1}


def _with_prompt(prompts: tuple[PromptUsed, ...], rendered: PromptRendered) -> tuple[PromptUsed, ...]:
    used = PromptUsed(prompt_id=rendered.prompt_id, version=rendered.version)
    return prompts if used in prompts or len(prompts) == PROMPTS_MAX else (*prompts, used)


def _with_score(scores: Mapping[str, Score], scored: RunScored, scored_at: datetime) -> Mapping[str, Score]:
    is_of_a_part = scored.scored_turn_id is not None or scored.scored_offset is not None
    if is_of_a_part or (scored.scorer not in scores and len(scores) == SCORERS_MAX):
        return scores
    return {**scores, scored.scorer: Score(score=scored.score, label=scored.label, scored_at=scored_at)}


def merged_labels(labels: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """`labels` with `more` merged over them. New labels beyond the limit of a run are ignored."""
    merged = {**labels, **more}
    return dict(islice(merged.items(), LABELS_MAX))
