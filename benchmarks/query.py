"""Measures reading ledgers, live runs and lists over HTTP, with query and projector in processes of
their own.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from texts import text

from runfold import AssistantMessage, Run, Runfold, Thinking, ToolCall, ToolResult, UserMessage
from runfold.local import Service, free_port, ready_url
from runfold.secret_urls import SecretUrl
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.editions import Editions
from runfold.store.pages import PageStore
from runfold.store.runs import RunState, RunStore
from runfold_projections.run import RunRecord
from runfold_schemas.data import Data

Figures = list[tuple[str, str, str]]
"""A measurement, its target, and the measured value."""

EVENTS = 3_000
LARGE_EVENTS = 100_000
BATCH = 200

FOLLOWERS = 100
FOLLOW_SECONDS = 15

LISTED_RUNS = 10_000


async def ledgers(settings: Settings) -> Figures:
    """The whole ledger of a run of 3,000 events, written at once and written event by event into
    small pages.
    """
    own = _apart(settings)
    figures: Figures = []
    async with serving(own, "projector"), serving(own, "query") as query, Runfold.of(own.log()) as runfold:
        at_once = [await opened(runfold) for _ in range(20)]
        for run in at_once:
            await fill(run, EVENTS)
        singly = [await opened(runfold) for _ in range(5)]
        await fill_singly(singly, EVENTS, seconds_between=0.012)
        await asyncio.gather(*(projected(query, run, EVENTS) for run in at_once + singly))
        for how, runs in (("written at once", at_once), ("written event by event", singly)):
            pages = statistics.median([await stored_pages(own, run) for run in runs])
            first = await first_reads(own, runs)
            again = await later_reads(query, runs)
            what = f"ledger of {EVENTS:,} events {how}, p50"
            figures.append(
                (f"{what}, first reading", "< 20 ms", f"{median_ms(first)} from {pages:.0f} pages")
            )
            figures.append((f"{what}, read again after each new event", "< 25 ms", median_ms(again)))
    return figures


async def large_ledger(settings: Settings) -> Figures:
    """The ledger of a run of 100,000 events: the memory of the process that streams it, and the
    time.
    """
    own = _apart(settings)
    async with Runfold.of(own.log()) as runfold:
        async with serving(own, "projector"), serving(own, "query") as query:
            run = await opened(runfold)
            await fill(run, LARGE_EVENTS)
            await projected(query, run, LARGE_EVENTS)
        async with serving(own, "query") as query:
            idle = query.peak_megabytes()
            first_byte, total, size = stream_ledger(query, run)
            peak = query.peak_megabytes()
    megabytes = size / 1e6
    what = f"ledger of {LARGE_EVENTS:,} events ({megabytes:.0f} MB)"
    return [
        (f"{what}, peak memory of its server", "< 200 MB", f"{peak:.0f} MB (idle {idle:.0f} MB)"),
        (f"{what}, first byte", "< 0.15 s", f"{first_byte:.2f} s"),
        (f"{what}, whole", "< 1.5 s", f"{total:.2f} s"),
    ]


async def follow(settings: Settings) -> Figures:
    """The time from publish to receipt with 100 followers: of one run, and each of its own run."""
    own = _apart(settings)
    figures: Figures = []
    async with serving(own, "projector"), serving(own, "query") as query, Runfold.of(own.log()) as runfold:
        for runs, rate in ((1, 20), (FOLLOWERS, 100)):
            delays = await follow_delays(query, runfold, runs=runs, events_per_second=rate)
            whom = "one run" if runs == 1 else f"{runs} runs"
            measured = f"{quantile_ms(delays, 0.99)} (p50 {median_ms(delays)})"
            figures.append(
                (f"publish to {FOLLOWERS} followers of {whom}, {rate} events/s, p99", "< 100 ms", measured)
            )
    return figures


async def listing(settings: Settings) -> Figures:
    """The first page of 50 out of 10,000 runs: of an agent with all runs, and of an agent with one
    in a hundred.
    """
    own = _apart(settings)
    began = datetime(2026, 1, 1, tzinfo=UTC)
    states = [
        RunState(
            log_id=f"log-{number}",
            partition=0,
            active=False,
            record=RunRecord(
                run_id=f"run-{number}",
                agent_id=agent,
                session_id=f"session-{number % 100}",
                started_at=began + timedelta(seconds=number),
                labels={"channel": "chat"},
                next_offset=1,
            ),
        )
        for number in range(LISTED_RUNS)
        for agent in ["rare" if number % 100 == 0 else "busy"]
    ]
    async with connect(own.mongo, own.database) as database:
        runs = RunStore(database, await Editions(database).current_or_first())
        await runs.create_indexes()
        await runs.add(states)
    figures: Figures = []
    async with serving(own, "query") as query:
        for run_filter in ("agent_id=busy", "agent_id=rare", "session_id=session-7", "label=channel:chat"):
            path = f"/v1/runs?{run_filter}&limit=50"
            times = [timed_get(query, path) for _ in range(100)]
            figures.append(
                (f"list {LISTED_RUNS:,} runs, first page, {run_filter}, p50", "", median_ms(times))
            )
    return figures


class Process(NamedTuple):
    port: int
    pid: int

    def peak_megabytes(self) -> float:
        """The highest memory use of the process so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


@asynccontextmanager
async def serving(settings: Settings, part: str) -> AsyncIterator[Process]:
    """`runfold serve PART` in a process of its own, for the length of the block."""
    port = free_port()
    environment = {
        f"RUNFOLD_{name.upper()}": _plain(getattr(settings, name)) for name in settings.model_fields_set
    }
    with tempfile.TemporaryDirectory() as directory:
        service = Service(
            part,
            # The projector serves its health on the next port.
            [sys.executable, "-m", "runfold.cli", "serve", part, "--port", str(port - (part == "projector"))],
            ready=ready_url(f"http://127.0.0.1:{port}/health/ready"),
            log=Path(directory) / "log",
            env=environment | {"RUNFOLD_LOG_LEVEL": "WARNING"},
        )
        await service.start()
        assert service.pid is not None
        try:
            yield Process(port, service.pid)
        finally:
            await service.stop()


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretUrl) else str(value)


async def opened(runfold: Runfold) -> Run:
    return await runfold.open_run(agent_id="bench")


def turns() -> Iterator[Data]:
    """Endless: the events of an agent's turns, about 600 bytes each."""
    number = 0
    while True:
        number += 1
        yield UserMessage(message=text(300))
        yield Thinking(text=text(400), signature=text(200), final=True)
        yield AssistantMessage(message=text(400))
        for call in ("a", "b"):
            yield ToolCall(
                tool_call_id=f"{number}-{call}", tool_name="search", payload={"query": text(200), "limit": 10}
            )
        for call in ("b", "a"):
            yield ToolResult(
                tool_call_id=f"{number}-{call}", tool_name="search", result={"found": [text(200), text(200)]}
            )
        yield AssistantMessage(message=text(400))


async def fill(run: Run, events: int) -> None:
    """Publishes in large batches until the run has `events` events, with its opening."""
    steps = turns()
    for begin in range(1, events, BATCH):
        await run.publish_batch([next(steps) for _ in range(min(BATCH, events - begin))])


async def fill_singly(runs: Sequence[Run], events: int, *, seconds_between: float) -> None:
    """The same as `fill`, but with pauses between the events, so that each event becomes a page."""
    steps = turns()
    next_at = time.perf_counter()
    for _ in range(events - 1):
        next_at += seconds_between
        await asyncio.gather(*(run.publish(next(steps)) for run in runs))
        await asyncio.sleep(max(0.0, next_at - time.perf_counter()))


async def projected(query: Process, run: Run, events: int) -> None:
    """Waits until the pages hold the whole run."""
    async with asyncio.timeout(300):
        while True:
            connection = HTTPConnection("127.0.0.1", query.port)
            connection.request("GET", f"/v1/runs/{run.run_id}?min_offset={events - 1}")
            response = connection.getresponse()
            response.read()
            connection.close()
            if response.status == 200 and response.headers["Runfold-Source"] == "snapshot":
                return
            await asyncio.sleep(0.1)


async def stored_pages(settings: Settings, run: Run) -> int:
    async with connect(settings.mongo, settings.database) as database:
        pages = PageStore(database, await Editions(database).current_or_first())
        return len(await pages.all(run.life.log_id))


async def first_reads(settings: Settings, runs: Sequence[Run]) -> list[float]:
    """The times of first reads of runs by a process. Its very first answer is not counted."""
    times: list[float] = []
    for _ in range(3):
        async with serving(settings, "query") as query:
            times += [read_ledger(query, run) for run in runs][1:]
    return times


async def later_reads(query: Process, runs: Sequence[Run]) -> list[float]:
    """The times of reads like an agent's: again after every event."""
    times: list[float] = []
    for run in runs:
        read_ledger(query, run)
        for _ in range(100 // len(runs)):
            position = await run.publish(AssistantMessage(message=text(400)))
            await projected(query, run, position.offset + 1)
            times.append(read_ledger(query, run))
    return times


def read_ledger(query: Process, run: Run) -> float:
    return timed_get(query, f"/v1/runs/{run.run_id}/ledger")


def timed_get(query: Process, path: str) -> float:
    """The seconds from the request to the last byte, on an open connection."""
    connection = HTTPConnection("127.0.0.1", query.port)
    connection.connect()
    began = time.perf_counter()
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    took = time.perf_counter() - began
    connection.close()
    assert response.status == 200, response.status
    return took


def stream_ledger(query: Process, run: Run) -> tuple[float, float, int]:
    """The seconds to the first byte and to the last byte, and the number of bytes."""
    connection = HTTPConnection("127.0.0.1", query.port)
    began = time.perf_counter()
    connection.request("GET", f"/v1/runs/{run.run_id}/ledger")
    response = connection.getresponse()
    size = len(response.read(1))
    first_byte = time.perf_counter() - began
    while chunk := response.read(1 << 16):
        size += len(chunk)
    connection.close()
    return first_byte, time.perf_counter() - began, size


async def follow_delays(
    query: Process, runfold: Runfold, *, runs: int, events_per_second: int
) -> list[float]:
    """The seconds from the publishing call to the received line, for every event and follower."""
    followed = [await opened(runfold) for _ in range(runs)]
    published: dict[tuple[str, int], float] = {}
    received: list[tuple[str, int, float]] = []
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        receiving: list[asyncio.Task[None]] = []
        for number in range(FOLLOWERS):
            run = followed[number % runs]
            lines = await stack.enter_async_context(following(query, run))
            receiving.append(tasks.create_task(receive(run, lines, received)))
        steps = turns()
        next_at = time.perf_counter()
        for number in range(FOLLOW_SECONDS * events_per_second):
            run = followed[number % runs]
            began = time.perf_counter()
            position = await run.publish(next(steps))
            published[run.run_id, position.offset] = began
            next_at += 1 / events_per_second
            await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
        expected = len(published) * FOLLOWERS // runs
        async with asyncio.timeout(10):
            while len(received) < expected:
                await asyncio.sleep(0.05)
        for task in receiving:
            task.cancel()
    return [at - published[run_id, offset] for run_id, offset, at in received]


@asynccontextmanager
async def following(query: Process, run: Run) -> AsyncIterator[asyncio.StreamReader]:
    """A follower that has received the run's opening and waits for further events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", query.port)
    writer.write(f"GET /v1/runs/{run.run_id}/follow HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
    try:
        async with asyncio.timeout(10):
            while await reader.readline() != b"id: 0\n":
                pass
        yield reader
    finally:
        writer.close()


async def receive(run: Run, lines: asyncio.StreamReader, received: list[tuple[str, int, float]]) -> None:
    while line := await lines.readline():
        if line.startswith(b"id: "):
            received.append((run.run_id, int(line[4:]), time.perf_counter()))


def median_ms(seconds: Iterable[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.1f} ms"


def quantile_ms(seconds: Sequence[float], share: float) -> str:
    return f"{sorted(seconds)[int(len(seconds) * share)] * 1000:.1f} ms"


def _apart(settings: Settings) -> Settings:
    """Settings with topics and a database of their own, so that measurements see no runs of each
    other.
    """
    name = f"bench-{uuid4().hex[:8]}"
    return settings.model_copy(update={"prefix": name, "database": name})
