"""Measures what hostile inputs cost others: memory and pauses of the API and the projector, and the
delay of a healthy run beside them, as a ratio to its delay before.
"""

import asyncio
import contextlib
import json
import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from aiokafka import AIOKafkaProducer
from query import Figures, Process, serving

from runfold import Run, Runfold, ToolResult, UserMessage
from runfold.ids import uuid7
from runfold.log.catalog import life_record, partition_of
from runfold.settings import Settings
from runfold_schemas.catalog import Life
from runfold_schemas.codec import encode

CALM_SECONDS = 3
ATTACK_SECONDS = 3
"""How long the healthy run is measured at the least; an attack that takes longer is measured to its
end.
"""

_PIECE_BYTES = 64 * 1024

GHOSTS = 260
STEP_SECONDS = 0.02

_log = logging.getLogger(__name__)


class Target(NamedTuple):
    """The processes under attack, and ways to reach them."""

    settings: Settings
    runfold: Runfold
    api: Process
    projector: Process


Attack = Callable[[Target], Awaitable[str]]
"""Sends the input, and returns what became of it."""


async def hostile(settings: Settings) -> Figures:
    """Each input beside a healthy run."""
    figures: Figures = []
    async with (
        serving(settings, "api") as api,
        serving(settings, "projector") as projector,
        Runfold.of(settings.log()) as runfold,
    ):
        target = Target(settings, runfold, api, projector)
        for name, attack in ATTACKS.items():
            figures.append(await _measure(target, name, attack))
            _log.info("%s: %s", name, figures[-1][2])
    return figures


async def _measure(target: Target, name: str, attack: Attack) -> tuple[str, str, str]:
    before = {process: _resident_mb(process) for process in (target.api, target.projector)}
    for process in before:
        _forget_peak(process)
    async with _healthy(target) as delays, _pauses(target.api) as pauses:
        await asyncio.sleep(CALM_SECONDS)
        calm, longest_calm = statistics.median(delays), max(pauses)
        del delays[:], pauses[:]
        began = time.perf_counter()
        outcome = await attack(target)
        await asyncio.sleep(max(1.0, ATTACK_SECONDS - (time.perf_counter() - began)))
        ratio = statistics.median(delays) / calm
    api, projector = (process.peak_megabytes() - before[process] for process in before)
    measured = (
        f"{outcome}; API +{api:.0f} MB, projector +{projector:.0f} MB; longest pause"
        f" {max(pauses) * 1000:.0f} ms (before: {longest_calm * 1000:.0f}); healthy run {ratio:.1f} times"
    )
    return f"hostile: {name}", "< 300 MB, < 100 ms", measured


@asynccontextmanager
async def _healthy(target: Target) -> AsyncIterator[list[float]]:
    """The delays of a run from the call that publishes to the answer that shows the event."""
    run = await target.runfold.open_run(agent_id="healthy")
    delays: list[float] = []

    async def go_on() -> None:
        while True:
            began = time.perf_counter()
            offset = (await run.publish(UserMessage(message="?"))).offset
            await _request(target.api, "GET", f"/v1/runs/{run.run_id}?min_offset={offset}")
            delays.append(time.perf_counter() - began)
            await asyncio.sleep(STEP_SECONDS)

    async with _beside(go_on()):
        yield delays


@asynccontextmanager
async def _pauses(api: Process) -> AsyncIterator[list[float]]:
    """The times of empty requests."""
    pauses = [0.0]

    async def ping() -> None:
        while True:
            began = time.perf_counter()
            await _request(api, "GET", "/health/live")
            pauses.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)

    async with _beside(ping()):
        yield pauses


@asynccontextmanager
async def _beside(work: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def post(path: str, body: Callable[[], bytes], *, content_type: str = "application/json") -> Attack:
    """A request with this body. `{run}` in the path is a run that is open."""

    async def attack(target: Target) -> str:
        run = await target.runfold.open_run(agent_id="hostile")
        status = await _request(
            target.api, "POST", path.format(run=run.run_id), await asyncio.to_thread(body), content_type
        )
        return f"{status}"

    return attack


def get(path: str) -> Attack:
    async def attack(target: Target) -> str:
        return f"{await _request(target.api, 'GET', path)}"

    return attack


def record(value: Callable[[Run], bytes], **options: str) -> Attack:
    """A record that no client of ours would send, in the topic of a run."""

    async def attack(target: Target) -> str:
        run = await target.runfold.open_run(agent_id="hostile")
        topic = target.runfold.connection.topics.run(run.run_id, run.life.log_id)
        bytes_ = await asyncio.to_thread(value, run)
        producer = AIOKafkaProducer(
            bootstrap_servers=target.settings.kafka, max_request_size=64 * 1024 * 1024, **options
        )
        await producer.start()
        try:
            sent = await producer.send_and_wait(topic, bytes_, partition=0)
        except Exception as error:  # noqa: BLE001  # the broker's refusal is the outcome
            return type(error).__name__
        finally:
            await producer.stop()
        return await _fate(target, run, sent.offset)

    return attack


async def ghosts(target: Target) -> str:
    """Lives on the catalog whose topics do not exist."""
    publisher, topics = target.runfold.connection.publisher, target.runfold.connection.topics
    began = time.perf_counter()
    for _ in range(GHOSTS):
        life = Life(run_id=str(uuid7()), log_id=uuid7().hex, agent_id="ghost")
        await publisher.send(topics.catalog, life_record(life), partition=partition_of(topics, life.run_id))
    while await _gauge(target.projector, 'runfold_quarantined{kind="run"}') < GHOSTS:
        if time.perf_counter() - began > 60:
            return "not set aside in 60 s"
        await asyncio.sleep(0.1)
    return f"set aside after {time.perf_counter() - began:.1f} s"


def _lists(size: int) -> Callable[[], bytes]:
    return lambda: b"[" + b",".join([b"[]"] * (size // 3)) + b"]"


def _wrong_parts(size: int) -> Callable[[], bytes]:
    parts = [{"x": 1}] * (size // 9)
    event = {"type": "user_message", "data": {"message": "", "parts": parts}}
    return lambda: json.dumps(event, separators=(",", ":")).encode()


def _wrong_record(size: int) -> Callable[[Run], bytes]:
    def value(run: Run) -> bytes:
        event = json.loads(encode(run.event(UserMessage(message=""))))
        event["data"]["parts"] = [{"x": 1}] * (size // 9)
        return json.dumps(event, separators=(",", ":")).encode()

    return value


def _lists_record(size: int) -> Callable[[Run], bytes]:
    def value(run: Run) -> bytes:
        event = encode(run.event(ToolResult(tool_call_id="c", result="?")))
        return event.replace(b'"?"', _lists(size)())

    return value


def _batch(size: int) -> Callable[[], bytes]:
    line = json.dumps({"type": "user_message", "data": {"message": "x" * 1_000}}).encode() + b"\n"
    return lambda: line * (size // len(line))


MIB = 1024 * 1024

ATTACKS: dict[str, Attack] = {
    "60 MB of lists as a ledger": post("/v1/runs/{run}/ledger", _lists(60_000_000)),
    "32 MiB of lists as an event": post("/v1/runs/{run}/events", _lists(32 * MIB - 2)),
    "32 MiB of lists as a memory": post("/v1/banks/b/memories", _lists(32 * MIB - 2)),
    "3.9 MB of wrong parts": post("/v1/runs/{run}/events", _wrong_parts(3_900_000)),
    "7.5 MB of wrong parts": post("/v1/runs/{run}/events", _wrong_parts(7_500_000)),
    "7.9 MB of events, valid": post(
        "/v1/runs/{run}/events", _batch(7_900_000), content_type="application/x-ndjson"
    ),
    "a filter of 60 KB": get(f"/v1beta1/reasoningEngines/1/memories?filter={'(' * 60_000}"),
    "7.5 MB of wrong parts in a topic": record(_wrong_record(7_500_000)),
    "7.5 MB of lists in a topic": record(_lists_record(7_500_000)),
    "200,000 values in a topic, valid": record(_lists_record(299_000)),
    "a record in lz4": record(_wrong_record(1_000), compression_type="lz4"),
    "a gzip bomb of 60 MB": record(lambda _: b"\0" * 60_000_000, compression_type="gzip"),
    f"{GHOSTS} lives without topics": ghosts,
}
"""The inputs by name, each with how it is sent."""


async def _request(
    api: Process, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
) -> int:
    """Sends one request on a new connection, and returns the status of the answer. 0: the server
    ended the connection before the answer was read.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode())
        answering = asyncio.create_task(reader.readline())
        # The server may refuse the body before it has read it, and reset the connection afterwards.
        with contextlib.suppress(ConnectionError):
            for begin in range(0, len(body), _PIECE_BYTES):
                if answering.done():
                    break
                writer.write(body[begin : begin + _PIECE_BYTES])
                await writer.drain()
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await answering
            # An answer is read to its end, so that its time counts.
            await reader.read()
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def _fate(target: Target, run: Run, offset: int) -> str:
    """What became of a record: the outcome in the projections, or the quarantine."""
    began = time.perf_counter()
    while time.perf_counter() - began < 20:
        status = await _request(target.api, "GET", f"/v1/runs/{run.run_id}?min_offset={offset}")
        if status == 200:
            return f"folded after {time.perf_counter() - began:.1f} s"
        if await _gauge(target.projector, 'runfold_quarantined{kind="run"}'):
            return f"set aside after {time.perf_counter() - began:.1f} s"
    return "not folded in 20 s"


async def _gauge(process: Process, name: str) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        lines = (await reader.read()).decode().splitlines()
    finally:
        writer.close()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)


def _resident_mb(process: Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def _forget_peak(process: Process) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")
