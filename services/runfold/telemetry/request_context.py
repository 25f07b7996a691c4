"""The HTTP request that the current task answers, for log lines and for published events."""

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

# Version 00 of W3C's Trace Context; an id of zeros alone is not valid.
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass
class RequestContext:
    """`traceparent` is the caller's header of W3C's Trace Context, if it is valid."""

    request_id: str
    traceparent: str | None = None
    unavailable: str = ""
    """The reason of the answer, if it is 503."""
    is_over: bool = False
    """Background tasks that a request started keep its context after its end."""


_current: ContextVar[RequestContext | None] = ContextVar("request", default=None)

enter_request: Final = _current.set
leave_request: Final = _current.reset


def current_request() -> RequestContext | None:
    """The request that the current task answers, if there is one."""
    context = _current.get()
    return None if context is None or context.is_over else context


def note_unavailable(reason: str) -> None:
    """Call it if the current request is answered with 503."""
    if (request := current_request()) is not None:
        request.unavailable = reason


def valid_traceparent(value: str | None) -> str | None:
    """`value`, if it is a `traceparent` of version 00."""
    return value if value is not None and _TRACEPARENT.fullmatch(value) else None


def ids_of(traceparent: str) -> tuple[str, str]:
    """The ids of the trace and of the span in a valid `traceparent`."""
    _, trace_id, span_id, _ = traceparent.split("-")
    return trace_id, span_id
