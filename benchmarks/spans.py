"""Measures what the spans of a request cost, in processor time."""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from query import Figures
from starlette.types import Message, Receive, Scope, Send

from runfold.http.request_ids import RequestIds
from runfold.http.request_spans import RequestSpans
from runfold.settings import Settings
from runfold.telemetry import spans

REQUESTS = 6_000
CHILDREN = 2
"""A publish sends one record; a read asks MongoDB once or twice."""

EXPORT_SECONDS = 1.5


async def spans_of_requests(_: Settings) -> Figures:
    """Answers requests without work: without spans, with those of a tenth, and with all."""
    with collector() as url:
        none = _micros({})
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        tenth = _micros(endpoint)
        every = _micros(endpoint | {"OTEL_TRACES_SAMPLER": "always_on"})
    return [
        ("processor time of the spans of a request, a tenth of requests", "", f"{tenth - none:.0f} us"),
        ("processor time of the spans of a request, all requests", "", f"{every - none:.0f} us"),
    ]


def _micros(environment: dict[str, str]) -> float:
    """The time of one request, with what the exporter's thread takes for it."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=_measure, args=(environment, answers))
    process.start()
    seconds: float = answers.get()
    process.join()
    return seconds / REQUESTS * 1_000_000


def _measure(environment: dict[str, str], answers: Any) -> None:
    os.environ.update(environment)
    spans.start("bench")
    app = RequestIds(RequestSpans(_answer)) if spans.is_on() else RequestIds(_answer)
    began = time.process_time()
    asyncio.run(_requests(app))
    time.sleep(EXPORT_SECONDS)
    answers.put(time.process_time() - began)
    # The exporter would look for the collector until it gives up.
    os._exit(0)


async def _requests(app: RequestIds) -> None:
    scope = {"type": "http", "path": "/v1/runs", "method": "GET", "headers": [], "scheme": "http"}
    for _ in range(REQUESTS):
        await app({**scope}, _nothing, _drop)


async def _answer(_: Scope, __: Receive, send: Send) -> None:
    for _child in range(CHILDREN):
        attributes = {"db.system.name": "mongodb", "db.namespace": "b", "db.operation.name": "find"}
        if (span := spans.child_span("find", "CLIENT", attributes)) is not None:
            spans.end_span(span)
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _drop(_: Message) -> None:
    """Nobody reads the answers."""


@contextmanager
def collector() -> Iterator[str]:
    context = multiprocessing.get_context("spawn")
    ports = context.SimpleQueue()
    process = context.Process(target=_collect, args=(ports,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ports.get()}"
    process.terminate()


def _collect(ports: Any) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ports.put(server.server_port)
    server.serve_forever()
