"""Spans of the services, if OpenTelemetry is installed and configured. Otherwise nothing of it is
imported.

The standard variables configure it: `OTEL_EXPORTER_OTLP_ENDPOINT` switches spans on.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

from runfold.telemetry import outages
from runfold.telemetry.request_context import ids_of

Kind = Literal["SERVER", "CLIENT", "PRODUCER", "INTERNAL"]

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_SAMPLER: Final = "OTEL_TRACES_SAMPLER"

_SHARE: Final = 0.1
"""The share of requests with spans, unless the caller decides or the variable of the sampler."""

_SERVER: Final = "The OTLP endpoint"

_log = logging.getLogger(__name__)


class _Tracing:
    """The tracer of this process, and OpenTelemetry's module with it."""

    api: Any = None
    tracer: Any = None


def is_on() -> bool:
    """Whether this process makes spans."""
    return _Tracing.tracer is not None


def start(service: str, environment: Mapping[str, str] = os.environ) -> None:
    """From here on the process makes spans, if they are configured. Call it before the service is
    built. Logs a warning if the extra `otel` is missing.
    """
    if (
        not any(map(environment.get, _ENDPOINTS))
        or environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    ):
        return
    try:
        from opentelemetry import trace  # noqa: PLC0415  # of the extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415
    except ImportError:
        _log.warning("there are no spans of this service: install Runfold with the extra `otel`")
        return
    # The SDK reads the variable only without a sampler.
    sampler = None if environment.get(_SAMPLER) else ParentBasedTraceIdRatio(_SHARE)
    named = {} if environment.get("OTEL_SERVICE_NAME") else {"service.name": f"runfold-{service}"}
    provider = TracerProvider(sampler=sampler, resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    _Tracing.api, _Tracing.tracer = trace, provider.get_tracer("runfold")


@contextmanager
def request_span(traceparent: str | None) -> Iterator[Any]:
    """A span for a request of the caller with this `traceparent`. Spans within the block are its
    children.
    """
    api = _Tracing.api
    context = None
    if traceparent is not None:
        trace_id, span_id = (int(each, 16) for each in ids_of(traceparent))
        flags = api.TraceFlags(int(traceparent[-2:], 16))
        parent = api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
        context = api.set_span_in_context(api.NonRecordingSpan(parent))
    with _Tracing.tracer.start_as_current_span("HTTP", context=context, kind=api.SpanKind.SERVER) as span:
        yield span


@contextmanager
def work_span(name: str) -> Iterator[None]:
    """A span for a piece of work that no request asked for, if the process makes spans."""
    if _Tracing.tracer is None:
        yield
        return
    with _Tracing.tracer.start_as_current_span(name):
        yield


def child_span(name: str, kind: Kind, attributes: Mapping[str, str | int]) -> Any:
    """A span within the current one, to be ended by the caller. None if nothing records the current
    one.
    """
    api = _Tracing.api
    if api is None or not api.get_current_span().is_recording():
        return None
    return _Tracing.tracer.start_span(name, kind=api.SpanKind[kind], attributes=attributes)


def sending_span(topic: str) -> Any:
    """A span for a record that goes to Kafka. None as `child_span`."""
    if _Tracing.api is None:
        return None
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    # Names of topics contain ids of runs, so the name of the span has none.
    return child_span("send", "PRODUCER", attributes)


def end_span(span: Any, error: str | None = None) -> None:
    """Ends a span of `child_span`. `error` is the kind of the error, if there was one."""
    if error is not None:
        mark_error(span, error)
    span.end()


def mark_error(span: Any, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(_Tracing.api.Status(_Tracing.api.StatusCode.ERROR))


def _exporter() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

    class NotingExporter(OTLPSpanExporter):
        """Spans that cannot be sent are lost. The log has the outage."""

        def export(self, spans: Any) -> SpanExportResult:
            result = super().export(spans)
            if result is SpanExportResult.SUCCESS:
                outages.answered(_SERVER)
            else:
                outages.failed(_SERVER, "it did not take spans")
            return result

    return NotingExporter()
