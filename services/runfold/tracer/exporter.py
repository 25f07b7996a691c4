"""Sends spans over OTLP (HTTP with protobuf), by the exporter of OpenTelemetry's SDK. Its standard
variables set the endpoint, the headers and the certificates: `OTEL_EXPORTER_OTLP_ENDPOINT` and
those beside it.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final

from runfold.telemetry import outages
from runfold.telemetry.request_context import ids_of
from runfold.tracer.conventions import ERROR_TYPE, OFFSET
from runfold.tracer.trace_span import TraceSpan
from runfold_schemas.errors import ConfigurationError, UnavailableError

_SERVER: Final = "The OTLP endpoint"

_BATCH_MAX: Final = 64
"""With contents, these have up to 6 MB. A collector takes 20 MB by default."""


class TraceExporter:
    """Raises `ConfigurationError` if the extra `otel` is not installed."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415  # of the extra
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import ReadableSpan, export  # noqa: PLC0415
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(
                "the tracer needs OpenTelemetry: install Runfold with the extra `otel`"
            ) from error
        self._trace: Final = trace
        self._span_class: Final = ReadableSpan
        self._success: Final = export.SpanExportResult.SUCCESS
        self._exporter: Final[Any] = OTLPSpanExporter()
        # OTEL_SERVICE_NAME has another name.
        self._resource: Final = Resource.create({"service.name": "runfold"})
        self._scope: Final = InstrumentationScope("runfold.tracer", version("runfold"))

    async def export(self, trace_id: str, spans: Sequence[TraceSpan]) -> None:
        """Returns when the endpoint has taken all spans. Raises `UnavailableError`."""
        for at in range(0, len(spans), _BATCH_MAX):
            batch = [self._readable(trace_id, span) for span in spans[at : at + _BATCH_MAX]]
            result = await asyncio.to_thread(self._exporter.export, batch)
            if result is not self._success:
                outages.failed(_SERVER, "it did not take spans")
                raise UnavailableError(_SERVER, reason="it did not take the spans of a run")
        if spans:
            outages.answered(_SERVER)

    def close(self) -> None:
        self._exporter.shutdown()

    def _readable(self, trace_id: str, span: TraceSpan) -> Any:
        trace = self._trace
        attributes = {**span.attributes, OFFSET: span.first_offset}
        if span.error is not None:
            attributes[ERROR_TYPE] = span.error
        code = trace.StatusCode.UNSET if span.error is None else trace.StatusCode.ERROR
        return self._span_class(
            name=span.name,
            context=self._context(trace_id, span.span_id),
            parent=None if span.parent_id is None else self._context(trace_id, span.parent_id),
            resource=self._resource,
            attributes=attributes,
            links=[] if span.link is None else [trace.Link(self._context(*ids_of(span.link)))],
            kind=trace.SpanKind.CLIENT if span.kind == "chat" else trace.SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            status=trace.Status(code),
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
        )

    def _context(self, trace_id: str, span_id: str) -> Any:
        flags = self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED)
        ids = int(trace_id, 16), int(span_id, 16)
        return self._trace.SpanContext(*ids, is_remote=False, trace_flags=flags)


def _nanoseconds(time: datetime) -> int:
    # A float has no room for nanoseconds.
    return round(time.timestamp() * 1_000_000) * 1_000
