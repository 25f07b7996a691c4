"""The columns for analysts: what the events of a run say, beside their records.

Of an event that is sealed, these columns have the clear fields only.
"""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from runfold_projections.admission import Admission, Admitted, Outcome, is_skipped
from runfold_projections.usage import tokens_of
from runfold_schemas.codec import Record, decode
from runfold_schemas.event_fields import EventFields, fields_of
from runfold_schemas.runs import ENDINGS, LIFECYCLE
from runfold_schemas.usage import TokenUsage

_TEXTS: Final = ("message", "text", "note", "error")
"""The members of data that are text for people. `error` is that of a run or of a tool."""

_SEALED: Final = "sealed:"

_STATUSES: Final = {**ENDINGS, "run_started": "running", "run_paused": "paused", "run_resumed": "running"}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_CALLS_MAX: Final = 1000
"""The number of calls that wait for their results. Of more calls at once, the first ones have no
duration.
"""


class TypedColumns(NamedTuple):
    """The typed columns of one record."""

    outcome: Outcome
    event_id: str | None = None
    kind: str | None = None
    time: int | None = None
    """The time of the event in microseconds since 1970."""
    agent_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    turn_id: str | None = None
    provider: str | None = None
    model: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    is_error: bool | None = None
    duration_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    status: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    text: str | None = None


class RunColumns:
    """Makes the typed columns of the records of one run, which are given in order."""

    def __init__(self, run_id: str, *, skipped: Collection[range] = ()) -> None:
        self._admission = Admission(run_id, skipped=skipped)
        self._owner: tuple[str | None, str | None, str | None] = (None, None, None)
        self._calls: dict[str, tuple[datetime, str | None]] = {}

    def next(self, record: Record) -> TypedColumns:
        """The columns of the next record of the log."""
        skipped = self._admission.skipped
        fields = None if skipped and is_skipped(record.offset, skipped) else fields_of(record)
        if fields is None:
            return self._of_model(self._admission.admit(record))
        kind = fields["type"]
        outcome, _ = self._admission.decide(
            record.offset,
            run_id=fields["run_id"],
            event_id=fields["event_id"],
            kind=kind,
            expected=fields.get("expected_offset"),
        )
        return TypedColumns(outcome) if outcome == "undecodable" else self._columns(outcome, fields, record)

    def _of_model(self, admitted: Admitted) -> TypedColumns:
        if admitted.event is None:
            return TypedColumns(admitted.outcome)
        fields: Any = admitted.event.model_dump()
        return self._columns(admitted.outcome, fields, admitted.record)

    def _columns(self, outcome: Outcome, fields: EventFields, record: Record) -> TypedColumns:
        every: dict[str, Any] = dict(fields)
        kind, time = fields["type"], fields["timestamp"]
        data = fields["data"] if isinstance(fields["data"], dict) else {}
        if kind == "run_opened" and outcome == "accepted":
            self._owner = (data.get("agent_id"), data.get("session_id"), data.get("user_id"))
        agent_id, session_id, user_id = self._owner
        return TypedColumns(
            outcome=outcome,
            event_id=fields["event_id"],
            kind=kind,
            time=_microseconds(time),
            agent_id=agent_id,
            session_id=session_id,
            user_id=user_id,
            turn_id=fields.get("turn_id"),
            provider=every.get("provider"),
            model=_clear(data.get("model")),
            status=_status(kind, data) if outcome == "accepted" and kind in LIFECYCLE else None,
            labels=_labels(every.get("labels") or data.get("labels")),
            text=_text(data),
            **self._tool(kind, data, time),
            **(_tokens(record) if kind == "token_usage" else {}),
        )

    def _tool(self, kind: str, data: dict[str, Any], time: datetime) -> dict[str, Any]:
        if kind not in ("tool_call", "tool_result"):
            return {}
        call_id, name = data.get("tool_call_id") or "", data.get("tool_name") or None
        if kind == "tool_call":
            self._calls[call_id] = (time, name)
            if len(self._calls) > _CALLS_MAX:
                del self._calls[next(iter(self._calls))]
            return {"tool_call_id": call_id, "tool_name": name}
        called_at, called_name = self._calls.pop(call_id, (None, None))
        duration = data.get("duration_ms")
        if duration is None and called_at is not None:
            duration = max(0.0, (time - called_at).total_seconds() * 1000)
        return {
            "tool_call_id": call_id,
            "tool_name": name or called_name,
            "is_error": data.get("error") is not None,
            "duration_ms": duration,
        }


def _status(kind: str, data: dict[str, Any]) -> str | None:
    return data.get("status", "running") if kind == "run_opened" else _STATUSES.get(kind)


def _text(data: dict[str, Any]) -> str | None:
    for name in _TEXTS:
        if text := _clear(data.get(name)):
            return text
    return None


def _labels(labels: object) -> tuple[tuple[str, str], ...]:
    pairs = labels.items() if isinstance(labels, dict) else ()
    return tuple((name, text) for name, value in pairs if (text := _clear(value)) is not None)


def _clear(value: object) -> str | None:
    """The value if it is a text that is not sealed. A member that the kind of an event does not
    define may have any type.
    """
    return value if isinstance(value, str) and not value.startswith(_SEALED) else None


def _tokens(record: Record) -> dict[str, Any]:
    """The tokens as the run record counts them."""
    event = decode(record.value)
    if not isinstance(event.data, TokenUsage):
        return {}
    tokens = tokens_of(event, event.data)
    return {
        "input_tokens": tokens.input_tokens,
        "output_tokens": tokens.output_tokens,
        "cache_read_tokens": tokens.cache_read_tokens,
        "cache_write_tokens": tokens.cache_write_tokens,
        "reasoning_tokens": tokens.reasoning_tokens,
    }


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND
