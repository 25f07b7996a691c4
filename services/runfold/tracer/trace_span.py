"""A span of a run's trace, before it is OpenTelemetry's. Its ids are hashes of the ids of the run's
log and of its event, so exporting a run again gives the same trace.
"""

from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Literal

Value = str | int | float | bool | tuple[str, ...]

Kind = Literal["invoke_agent", "chat", "execute_tool"]


@dataclass
class TraceSpan:
    """`first_offset` and `last_offset` are those of the records that it was made of."""

    kind: Kind
    name: str
    span_id: str
    parent_id: str | None
    start: datetime
    end: datetime
    first_offset: int
    last_offset: int
    attributes: dict[str, Value] = field(default_factory=dict)
    error: str | None = None
    """The kind of the error, a word. None: no error."""
    link: str | None = None
    """The `traceparent` of another trace that caused the span."""

    def extend(self, time: datetime, offset: int) -> None:
        """The span goes on until this record. Producers' clocks may go backwards."""
        self.start, self.end = min(self.start, time), max(self.end, time)
        self.last_offset = max(self.last_offset, offset)


def trace_id_of(log_id: str) -> str:
    return sha256(f"runfold trace {log_id}".encode()).hexdigest()[:32]


def span_id_of(log_id: str, *what: str) -> str:
    return sha256("\0".join(("runfold span", log_id, *what)).encode()).hexdigest()[:16]
