"""When memories are generated of a stream of contents: a rule, and the fold of the stream's log
that it looks at.

What is ingested is pending until a trigger stands behind it in the log; the trigger is unanswered
until its answer does. Times are the broker's, in milliseconds since 1970, so that every process
sees the same.
"""

from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runfold.generation.options import GenerationOptions
from runfold_projections.admission import Admitted
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import GenerationRequested, MemoriesGenerated, Scope
from runfold_schemas.runs import RunCanceled, RunCompleted, RunFailed, RunLabeled
from runfold_schemas.sessions import FrameworkEvent

OVERLAP_MAX: Final = 100

STREAM: Final = "stream"
"""The name of a stream's settings in its run's metadata."""

Reason = Literal["event_count", "fixed_interval", "idle_duration", "flush"]

_Seconds = Annotated[float, Field(gt=0, le=10 * 365 * 86_400)]


class TriggerRule(BaseModel):
    """Memories are generated when the first of these conditions holds. Without any, whenever
    something is ingested.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_count: Annotated[int, Field(ge=1)] | None = None
    """So many contents are pending."""
    interval_seconds: _Seconds | None = None
    """So long after the last trigger, or after the first content, if something is pending."""
    idle_seconds: _Seconds | None = None
    """So long after the last content."""
    overlap_event_count: Annotated[int, Field(ge=0, le=OVERLAP_MAX)] = 0
    """Contents of before that the model reads once more, to understand those that are new."""


class StreamSettings(BaseModel):
    """What is known of a stream beside its contents; its log has it whenever it changes."""

    model_config = ConfigDict(frozen=True)

    scope: Scope
    rule: TriggerRule = TriggerRule()
    options: GenerationOptions = GenerationOptions()
    bank_created_by: str | None = None
    """The event that made the stream's bank; None where the log does not tell."""


class Unanswered(NamedTuple):
    event: AnyEvent
    offset: int
    log_time: int


class StreamState(NamedTuple):
    """What the records of a stream's log before `next_offset` come to."""

    next_offset: int = 0
    last_offset: int = -1
    """Of the last event that counts."""
    settings: StreamSettings | None = None
    unanswered: Unanswered | None = None
    pending_count: int = 0
    pending_first: int = 0
    """The offset of the first content that is pending."""
    pending_since: int = 0
    """When the wait for a trigger began: at the last one, or at the first content after all were
    answered for.
    """
    content_at: int = 0
    """When the last content came."""
    recent: tuple[int, ...] = ()
    """The offsets of the last contents."""
    covered: tuple[int, ...] = ()
    """Those of the last contents before the last trigger."""
    triggered_at: int | None = None
    answered: Unanswered | None = None
    """The last trigger that has its answer."""
    answered_at: int | None = None
    has_ended: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether contents may come; the log of any other generation is over with its answer."""
        return self.settings is not None

    @property
    def is_settled(self) -> bool:
        """Whether nothing will happen before something is ingested."""
        return self.unanswered is None and self.pending_count == 0


def apply(state: StreamState, one: Admitted) -> StreamState:
    state = state._replace(next_offset=one.record.offset + 1)
    if not one.counts or one.event is None:
        return state
    state = state._replace(last_offset=one.record.offset)
    match one.event.data:
        case FrameworkEvent():
            return _with_content(state, one.record.offset, one.record.log_time)
        case RunLabeled() as labeled if STREAM in labeled.metadata:
            return state._replace(settings=_settings(labeled) or state.settings)
        case GenerationRequested() as requested:
            asked = Unanswered(one.event, one.record.offset, one.record.log_time)
            # Facts that are tried once more cover nothing that was ingested.
            is_again = "facts" in requested.options
            return (state if is_again else _triggered(state, one.record.log_time))._replace(unanswered=asked)
        case MemoriesGenerated() as generated:
            is_answer = state.unanswered is not None and generated.trigger == state.unanswered.event.event_id
            if not is_answer:
                return state
            return state._replace(unanswered=None, answered=state.unanswered, answered_at=one.record.log_time)
        case RunCompleted() | RunFailed() | RunCanceled():
            return state._replace(has_ended=True)
        case _:
            return state


def due(state: StreamState, now: int) -> Reason | None:
    """Why memories are to be generated now; None if they are not."""
    if not _has_more(state) or state.settings is None:
        return None
    rule = state.settings.rule
    if not (rule.event_count or rule.interval_seconds or rule.idle_seconds):
        return "flush"
    if rule.event_count is not None and state.pending_count >= rule.event_count:
        return "event_count"
    if rule.interval_seconds is not None and now >= _after(state.pending_since, rule.interval_seconds):
        return "fixed_interval"
    if rule.idle_seconds is not None and now >= _after(state.content_at, rule.idle_seconds):
        return "idle_duration"
    return None


def due_at(state: StreamState) -> int | None:
    """When memories are to be generated if nothing more happens; None if they are not."""
    if not _has_more(state) or state.settings is None:
        return None
    rule, times = state.settings.rule, list[int]()
    if rule.interval_seconds is not None:
        times.append(_after(state.pending_since, rule.interval_seconds))
    if rule.idle_seconds is not None:
        times.append(_after(state.content_at, rule.idle_seconds))
    return min(times, default=None)


def _has_more(state: StreamState) -> bool:
    """Whether something is pending that a trigger may be put behind."""
    return bool(state.pending_count) and state.unanswered is None and not state.has_ended


def first_offset(state: StreamState) -> int:
    """Where a generation of what is pending begins to read."""
    assert state.settings is not None
    overlap = state.settings.rule.overlap_event_count
    return state.covered[-overlap:][0] if overlap and state.covered else state.pending_first


def _with_content(state: StreamState, offset: int, log_time: int) -> StreamState:
    if not state.pending_count:
        since = log_time if state.triggered_at is None else state.triggered_at
        state = state._replace(pending_first=offset, pending_since=since)
    return state._replace(
        pending_count=state.pending_count + 1,
        content_at=log_time,
        recent=(*state.recent, offset)[-OVERLAP_MAX:],
    )


def _triggered(state: StreamState, log_time: int) -> StreamState:
    return state._replace(pending_count=0, covered=state.recent, triggered_at=log_time)


def _settings(labeled: RunLabeled) -> StreamSettings | None:
    try:
        return StreamSettings.model_validate(labeled.metadata[STREAM])
    except ValidationError:
        return None  # anybody may label a run


def _after(milliseconds: int, seconds: float) -> int:
    return milliseconds + int(seconds * 1000)
