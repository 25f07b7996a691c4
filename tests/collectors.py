"""A collector of OTLP: an HTTP server that decodes what exporters of OpenTelemetry send."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class Span:
    """A span as it arrived. Times are nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start: int
    end: int
    is_error: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: tuple[tuple[str, str], ...] = ()


@dataclass
class Collector:
    """What came so far. With a `status`, it refuses everything."""

    url: str = ""
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    requests: int = 0

    def of_trace(self, trace_id: str) -> dict[str, Span]:
        """The last version of each span of a trace, by its id."""
        return {span.span_id: span for span in self.spans if span.trace_id == trace_id}

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = _attributes(each.resource.attributes)
                for scope in each.scope_spans:
                    self.spans += [_span(span, resource) for span in scope.spans]
        else:
            for each in ExportLogsServiceRequest.FromString(body).resource_logs:
                for scope in each.scope_logs:
                    self.logs += [
                        {"body": _value(record.body), **_attributes(record.attributes)}
                        for record in scope.log_records
                    ]


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector that listens on a port of this machine for the length of the block."""
    collected = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collected.requests += 1
            if collected.status == 200:
                collected.take(self.path, body)
            self.send_response(collected.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        _attributes(span.attributes),
        resource,
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
