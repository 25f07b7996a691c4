"""The trace to which the current task belongs."""

import sys

from runfold.telemetry import spans
from runfold.telemetry.request_context import current_request, ids_of


def event_traceparent() -> str | None:
    """The `traceparent` that an event gets which the current task publishes, None outside of a
    trace. In a service, the caller's counts: spans of our own may not be sampled.
    """
    if (request := current_request()) is not None:
        return request.traceparent
    return None if spans.is_on() else _of_current_span()


def current_trace() -> tuple[str, str] | None:
    """The ids of the current trace and span, if there are any: our own, or those of the caller of
    the current request.
    """
    traceparent = _of_current_span()
    if traceparent is None and (request := current_request()) is not None:
        traceparent = request.traceparent
    return None if traceparent is None else ids_of(traceparent)


def _of_current_span() -> str | None:
    # A program that has not imported OpenTelemetry has no span, so nothing is imported for it.
    if (api := sys.modules.get("opentelemetry.trace")) is None:
        return None
    span = api.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
