"""Measures the provider adapters: encoding a ledger compared with building it, and recording a
stream compared with consuming it.
"""

import json
import logging
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

from google.genai.types import GenerateContentResponse
from openai import AsyncOpenAI
from query import EVENTS, Figures
from texts import text

from runfold import AssistantMessage, Run, Runfold, ToolCall, ToolResult, UserMessage
from runfold.ids import new_event_id
from runfold.settings import Settings
from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode, recorder
from runfold_schemas.codec import parse_event
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import PROVIDERS

REPEATS = 15
CHUNKS = 3_000
STREAMS = 12

_log = logging.getLogger(__name__)


async def encoding(_: Settings) -> Figures:
    """Builds and encodes in turns a ledger of 3,000 events of kinds that every provider has."""
    events = list(conversation())
    messages = build_messages_from_events(events)
    figures: Figures = []
    for provider in PROVIDERS:
        ratios, built, encoded = [], [], []
        for _repeat in range(REPEATS):
            built.append(_milliseconds(lambda: build_messages_from_events(events)))
            encoded.append(_milliseconds(lambda to=provider: encode(messages, to)))
            ratios.append(encoded[-1] / built[-1])
        what = f"encode a ledger of {EVENTS:,} events for {provider}, beside building its messages"
        times = f"{statistics.median(encoded):.1f} ms beside {statistics.median(built):.1f} ms"
        figures.append((what, "<= 1.5 times", f"{statistics.median(ratios):.2f} times ({times})"))
    return figures


async def recording(settings: Settings) -> Figures:
    """Consumes and records in turns a streamed answer of 3,000 chunks through OpenAI's client."""
    with _model() as url:
        async with (
            AsyncOpenAI(api_key="none", base_url=url) as client,
            Runfold.of(settings.log()) as runfold,
        ):
            run = await runfold.open_run(agent_id="benchmark")
            # The first round is not counted, because of imports and connections.
            await _consume(client)
            await _record(client, run)
            pairs = [(await _consume(client), await _record(client, run)) for _ in range(STREAMS)]
    alone = statistics.median(consumed for consumed, _ in pairs)
    added = statistics.median(recorded - consumed for consumed, recorded in pairs)
    what = f"record a stream of {CHUNKS:,} chunks, processor time beside consuming it"
    measured = f"{1e6 * added / CHUNKS:.1f} us a chunk more ({1e6 * alone / CHUNKS:.0f} us alone)"
    return [(what, "<= 3 us a chunk more", measured), *map(_recorder, (True, False))]


def _recorder(counts: bool) -> tuple[str, str, str]:
    """The time that Gemini's recorder takes for a chunk, without a server and without publishing.
    Gemini sends counts of tokens with each chunk.
    """
    chunks = [_gemini_chunk(number, counts=counts) for number in range(CHUNKS)]
    took = []
    for _ in range(STREAMS):
        recording, began = recorder("gemini"), time.process_time()
        for chunk in chunks:
            recording.feed(chunk)
        took.append(time.process_time() - began)
    what = f"record a chunk of Gemini's stream {'with' if counts else 'without'} counts, the recorder alone"
    return (what, "<= 3 us", f"{1e6 * statistics.median(took) / CHUNKS:.1f} us")


def _gemini_chunk(number: int, *, counts: bool) -> GenerateContentResponse:
    content = {"role": "model", "parts": [{"text": f"word{number} "}]}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": number, "totalTokenCount": 5 + number}
    fields: dict[str, Any] = {
        "candidates": [{"content": content, "index": 0}],
        "modelVersion": "gemini-3-pro",
        "responseId": "r-1",
    }
    return GenerateContentResponse.model_validate(fields | ({"usageMetadata": usage} if counts else {}))


async def _consume(client: AsyncOpenAI) -> float:
    began = time.process_time()
    async for _ in await _stream(client):
        pass
    return time.process_time() - began


async def _record(client: AsyncOpenAI, run: Run) -> float:
    began = time.process_time()
    async for _ in run.record_stream(await _stream(client)):
        pass
    return time.process_time() - began


async def _stream(client: AsyncOpenAI) -> AsyncIterator[Any]:
    messages = [{"role": "user", "content": "Tell me everything."}]
    stream: AsyncIterator[Any] = await client.chat.completions.create(
        model="m", messages=messages, stream=True
    )
    return stream


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def conversation() -> Iterator[AnyEvent]:
    """Repeats a question, a text, and two calls with their results."""
    for turn in range(EVENTS // 6):
        calls = [f"call-{turn}-{index}" for index in range(2)]
        yield _event(UserMessage(message=text(300)))
        yield _event(AssistantMessage(message=text(300)))
        for call in calls:
            yield _event(ToolCall(tool_call_id=call, tool_name="search", payload={"query": text(100)}))
        for call in calls:
            yield _event(ToolResult(tool_call_id=call, tool_name="search", result={"found": [text(200)]}))


def _event(data: Any) -> AnyEvent:
    kinds = {
        UserMessage: "user_message",
        AssistantMessage: "assistant_message",
        ToolCall: "tool_call",
        ToolResult: "tool_result",
    }
    return parse_event(
        {
            "event_id": new_event_id(),
            "run_id": "run-1",
            "timestamp": "2026-01-02T03:04:05Z",
            "type": kinds[type(data)],
            "data": data.model_dump(exclude_unset=True),
        }
    )


@contextmanager
def _model() -> Iterator[str]:
    """A model in a process of its own that answers at once, so only the client is measured."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


def _serve(port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    port.send(server.server_address[1])
    server.serve_forever()


class _Answering(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number in range(CHUNKS):
            self.wfile.write(_frame({"content": f"word{number} "}, None))
        self.wfile.write(_frame({}, "stop") + b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


def _frame(delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
