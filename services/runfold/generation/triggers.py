"""When memories are generated from a stream of contents: a rule, and the state of the stream's log.

A content is pending until a trigger follows it in the log, and a trigger is unanswered until its
answer follows it. Times are the broker's, in milliseconds since 1970, so that every process sees
the same times.
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
    """Memories are generated when one of these conditions holds. A rule without conditions
    generates them whenever something is ingested.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_count: Annotated[int, Field(ge=1)] | None = None
    """This many contents are pending."""
    interval_seconds: _Seconds | None = None
    """So many seconds after the last trigger, or after the first content, if contents are
    pending.
    """
    idle_seconds: _Seconds | None = None
    """So many seconds after the last content."""
    overlap_event_count: Annotated[int, Field(ge=0, le=OVERLAP_MAX)] = 0
    """How many earlier contents the model reads again, to understand the new ones."""


class StreamSettings(BaseModel):
    """A stream's settings; each change of them is an event in its log."""

    model_config = ConfigDict(frozen=True)

    scope: Scope
    rule: TriggerRule = TriggerRule()
    options: GenerationOptions = GenerationOptions()
    bank_created_by: str | None = None
    """The event that created the stream's bank; None if the log does not contain it."""


class LoggedTrigger(NamedTuple):
    """A trigger as it is in the log."""

    event: AnyEvent
    offset: int
    log_time: int


class StreamState(NamedTuple):
    """The state of a stream's log, from its records before `next_offset`."""

    next_offset: int = 0
    last_offset: int = -1
    """The offset of the last event that counts."""
    settings: StreamSettings | None = None
    unanswered: LoggedTrigger | None = None
    pending_count: int = 0
    pending_first: int = 0
    """The offset of the first pending content."""
    pending_since: int = 0
    """The time of the last trigger; before there is one, the time of the first content."""
    content_at: int = 0
    """The time of the last content."""
    recent: tuple[int, ...] = ()
    """The offsets of the last contents."""
    covered: tuple[int, ...] = ()
    """The offsets of the last contents before the last trigger."""
    triggered_at: int | None = None
    answered: LoggedTrigger | None = None
    """The last trigger with an answer."""
    answered_at: int | None = None
    has_ended: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether contents may follow; the log of another generation ends with its answer."""
        return self.settings is not None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done before something is ingested."""
        return self.unanswered is None and self.pending_count == 0


def apply(state: StreamState, admitted: Admitted) -> StreamState:
    record, event = admitted.record, admitted.event
    state = state._replace(next_offset=record.offset + 1)
    if not admitted.counts or event is None:
        return state
    state = state._replace(last_offset=record.offset)
    match event.data:
        case FrameworkEvent():
            return _with_content(state, record.offset, record.log_time)
        case RunLabeled() as labeled if STREAM in labeled.metadata:
            return state._replace(settings=_settings(labeled) or state.settings)
        case GenerationRequested() as request:
            trigger = LoggedTrigger(event, record.offset, record.log_time)
            # A trigger with facts retries refused changes; it does not cover the pending contents.
            is_retry = "facts" in request.options
            return (state if is_retry else _triggered(state, record.log_time))._replace(unanswered=trigger)
        case MemoriesGenerated() as answer:
            is_answer = state.unanswered is not None and answer.trigger == state.unanswered.event.event_id
            if not is_answer:
                return state
            return state._replace(unanswered=None, answered=state.unanswered, answered_at=record.log_time)
        case RunCompleted() | RunFailed() | RunCanceled():
            return state._replace(has_ended=True)
        case _:
            return state


def due(state: StreamState, now: int) -> Reason | None:
    """The condition that holds now, so that memories have to be generated; None if none holds."""
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
    """When memories have to be generated if nothing else happens; None: never."""
    if not _has_more(state) or state.settings is None:
        return None
    rule, times = state.settings.rule, list[int]()
    if rule.interval_seconds is not None:
        times.append(_after(state.pending_since, rule.interval_seconds))
    if rule.idle_seconds is not None:
        times.append(_after(state.content_at, rule.idle_seconds))
    return min(times, default=None)


def _has_more(state: StreamState) -> bool:
    """Whether contents are pending, and a trigger may be published."""
    return bool(state.pending_count) and state.unanswered is None and not state.has_ended


def first_offset(state: StreamState) -> int:
    """The first offset that a generation from the pending contents reads."""
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
        return None  # any program may label a run


def _after(milliseconds: int, seconds: float) -> int:
    return milliseconds + int(seconds * 1000)
