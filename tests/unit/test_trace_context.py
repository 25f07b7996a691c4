"""The trace of a program's current span goes with what it sends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from tests.builders import event

from runfold.client.records import outgoing
from runfold.remote.api_client import HttpClient
from runfold.telemetry.request_context import RequestContext, enter_request, leave_request
from runfold_schemas.events import UserMessage

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"
SPAN = NonRecordingSpan(
    SpanContext(
        int(TRACEPARENT[3:35], 16), int(TRACEPARENT[36:52], 16), is_remote=True, trace_flags=TraceFlags(1)
    )
)


def header_of_record() -> str | None:
    headers = dict(outgoing(event(UserMessage(message="m")), source="s").headers)
    value = headers.get("traceparent")
    return None if value is None else value.decode()


def test_an_event_has_the_context_of_the_current_span():
    assert header_of_record() is None
    with use_span(SPAN):
        assert header_of_record() == TRACEPARENT
    assert header_of_record() is None


def test_in_a_request_the_callers_context_counts():
    for caller in (OTHER, None):
        token = enter_request(RequestContext("r", caller))
        with use_span(SPAN):
            assert header_of_record() == caller
        leave_request(token)


async def test_a_call_over_http_has_the_context_of_the_current_span():
    async with listening() as (url, requests):
        client = HttpClient(url)
        with use_span(SPAN):
            await client.call("GET", "x")
        await client.call("POST", "x", json=b"{}", headers={"A": "b"})
        await client.close()

    first, second = (request.lower() for request in requests)
    assert f"traceparent: {TRACEPARENT}\r\n" in first
    assert "traceparent" not in second
    assert "content-type: application/json" in second
    assert "\r\na: b\r\n" in second


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that answers everything with 200, and the heads of its requests."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
