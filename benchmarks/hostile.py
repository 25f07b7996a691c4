"""Measures what hostile inputs cost others: memory of the API and the projector, pauses of the API,
and the delay of a healthy run beside them, as a ratio to its delay before.
"""

import asyncio
import contextlib
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

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

GHOSTS = 260
STEP_SECONDS = 0.02

_log = logging.getLogger(__name__)


class Target(NamedTuple):
    """The processes under attack, and ways to reach them."""

    settings: Settings
    runfold: Runfold
    api: Process
    projector: Process


Send = Callable[[], Awaitable[str]]
"""Sends the input, and returns what became of it."""

Attack = Callable[[Target], Awaitable[Send]]
"""Makes the input, which is not measured."""


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
    send = await attack(target)
    before = {process: _resident_mb(process) for process in (target.api, target.projector)}
    for process in before:
        _forget_peak(process)
    async with _healthy(target) as delays, _pauses(target.api) as pauses:
        await asyncio.sleep(CALM_SECONDS)
        calm, longest_calm = statistics.median(delays), max(pauses)
        del delays[:], pauses[:]
        began = time.perf_counter()
        outcome = await send()
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
            await _request(target.api, f"/v1/runs/{run.run_id}?min_offset={offset}")
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
            await _request(api, "/health/live")
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
    """A request with this body. `{run}` in the path is a run that is open. Another process sends
    it, because this one measures the pauses.
    """

    async def attack(target: Target) -> Send:
        run = await target.runfold.open_run(agent_id="hostile")
        url = f"http://127.0.0.1:{target.api.port}{path.format(run=run.run_id)}"
        content = await asyncio.to_thread(body)

        async def send() -> str:
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                return await _curl(
                    url, "--data-binary", f"@{file.name}", "-H", f"Content-Type: {content_type}"
                )

        return send

    return attack


def get(path: str) -> Attack:
    async def attack(target: Target) -> Send:
        async def send() -> str:
            return f"{await _request(target.api, path)}"

        return send

    return attack


def record(value: Callable[[Run], bytes], *, codec: str = "") -> Attack:
    """A record that no client of ours would send, in the topic of a run. Another process sends
    it.
    """

    async def attack(target: Target) -> Send:
        run = await target.runfold.open_run(agent_id="hostile")
        topic = target.runfold.connection.topics.run(run.run_id, run.life.log_id)
        content = await asyncio.to_thread(value, run)
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            arguments = (target.settings.kafka, topic, file.name, *filter(None, [codec]))
            program = (sys.executable, str(Path(__file__).with_name("raw_sender.py")), *arguments)
            sender = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
            assert sender.stdout is not None
            await sender.stdout.readline()

        async def send() -> str:
            printed, _ = await sender.communicate(b"\n")
            said = printed.decode().strip()
            return await _fate(target, run, int(said)) if said.isdecimal() else said

        return send

    return attack


async def ghosts(target: Target) -> Send:
    return partial(_send_ghosts, target)


async def _send_ghosts(target: Target) -> str:
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
    "5 MB of events, valid": post(
        "/v1/runs/{run}/events", _batch(5_000_000), content_type="application/x-ndjson"
    ),
    "a filter of 2,000 characters": get(f"/v1beta1/reasoningEngines/1/memories?filter={'(' * 2_000}"),
    "7.5 MB of wrong parts in a topic": record(_wrong_record(7_500_000)),
    "7.5 MB of lists in a topic": record(_lists_record(7_500_000)),
    "200,000 values in a topic, valid": record(_lists_record(299_000)),
    "a record in lz4": record(_wrong_record(1_000), codec="lz4"),
    "a gzip bomb of 60 MB": record(lambda _: b"\0" * 60_000_000, codec="gzip"),
    f"{GHOSTS} lives without topics": ghosts,
}
"""The inputs by name, each with how it is sent."""


async def _curl(url: str, *options: str) -> str:
    """The status of the answer. `000` if the connection ended before."""
    curl = ("curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *options, url)
    process = await asyncio.create_subprocess_exec(*curl, stdout=PIPE)
    printed, _ = await process.communicate()
    return printed.decode()


async def _request(api: Process, path: str) -> int:
    """Sends one request on a new connection, and returns the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.readline()
        # An answer is read to its end, so that its time counts.
        await reader.read()
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1])


async def _fate(target: Target, run: Run, offset: int) -> str:
    """What became of a record: the outcome in the projections, or the quarantine."""
    began = time.perf_counter()
    while time.perf_counter() - began < 20:
        status = await _request(target.api, f"/v1/runs/{run.run_id}?min_offset={offset}")
        if status == 200:
            return f"stored or a dead letter after {time.perf_counter() - began:.1f} s"
        if await _gauge(target.projector, 'runfold_quarantined{kind="run"}'):
            return f"set aside after {time.perf_counter() - began:.1f} s"
    return "neither in 20 s"


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
