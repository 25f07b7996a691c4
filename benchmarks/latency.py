"""Measures how soon a published event can be read, with projector and query in processes of their
own.

A delay begins with the call that publishes an event and ends with the HTTP answer that contains it.
The request with `min_offset` is sent as soon as the event's offset is known.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence

from brokers import processor_seconds
from hops import hops
from query import Figures, Process, median_ms, quantile_ms, serving
from texts import text

from runfold import AssistantMessage, Run, Runfold
from runfold.settings import Settings

RUNS = 100
EVENTS_PER_SECOND = 1_000
ASKED_FOR = 21
"""One of so many events is read. Reading all of them would measure the query service. The number
shares no factor with RUNS.
"""

OPENED_PER_SECOND = 20
IDLE_RUNS = 5_000
IDLE_PARK_SECONDS = 60.0
SECONDS = 20

_log = logging.getLogger(__name__)


async def live(settings: Settings) -> Figures:
    """The delays of events and of the first events of runs, and where the time goes."""
    async with serving(settings, "projector"), serving(settings, "query") as query:
        figures = await _delays(settings, query)
    return figures + await hops(settings)


async def idle(settings: Settings) -> Figures:
    """The same with many parked open runs, and their cost for the projector."""
    settings = settings.model_copy(update={"park_seconds": IDLE_PARK_SECONDS})
    async with serving(settings, "projector") as projector, serving(settings, "query") as query:
        await _open_idle(settings, query)
        _log.info("%s runs are open; waiting until they are parked", f"{IDLE_RUNS:,}")
        while await _active(projector):
            await asyncio.sleep(1)
        share = await _processor_share(projector)
        beside = f"beside {IDLE_RUNS:,} idle runs"
        return [
            (f"projector's CPU with {IDLE_RUNS:,} idle runs", "< 3 %", f"{share:.1%}"),
            *(
                (f"{figure}, {beside}", target, measured)
                for figure, target, measured in await _delays(settings, query)
            ),
        ]


async def _delays(settings: Settings, query: Process) -> Figures:
    async with Runfold.of(settings.log()) as runfold:
        events = await _event_delays(runfold, query)
        _log.info("publish to visible: p50 %s, p99 %s", median_ms(events), quantile_ms(events, 0.99))
        openings = await _opening_delays(runfold, query)
        _log.info("open to visible: p50 %s, p99 %s", median_ms(openings), quantile_ms(openings, 0.99))
    load = f"{EVENTS_PER_SECOND:,} events/s over {RUNS} runs"
    return [
        (f"publish to visible, {load}, p50", "< 6 ms", median_ms(events)),
        (f"publish to visible, {load}, p99", "< 25 ms", quantile_ms(events, 0.99)),
        (
            f"open a run to its first event visible, {OPENED_PER_SECOND} new runs/s, p99",
            "< 100 ms",
            f"{quantile_ms(openings, 0.99)} (p50 {median_ms(openings)})",
        ),
    ]


async def _event_delays(runfold: Runfold, query: Process) -> list[float]:
    runs = await asyncio.gather(*(runfold.open_run(agent_id="benchmark") for _ in range(RUNS)))
    await asyncio.gather(*(publish_and_read(run, query) for run in runs))
    reads: list[asyncio.Task[float]] = []
    async with asyncio.TaskGroup() as tasks:
        async for number in paced(EVENTS_PER_SECOND):
            run = runs[number % RUNS]
            if number % ASKED_FOR:
                await run.send(AssistantMessage(message=text(300)))
            else:
                reads.append(tasks.create_task(publish_and_read(run, query)))
    return [read.result() for read in reads]


async def _opening_delays(runfold: Runfold, query: Process) -> list[float]:
    async with asyncio.TaskGroup() as tasks:
        reads = [tasks.create_task(_open_and_read(runfold, query)) async for _ in paced(OPENED_PER_SECOND)]
    return [read.result() for read in reads]


async def _open_and_read(runfold: Runfold, query: Process) -> float:
    began = time.perf_counter()
    await publish_and_read(await runfold.open_run(agent_id="benchmark"), query)
    return time.perf_counter() - began


async def publish_and_read(run: Run, query: Process) -> float:
    """The time from the publish of an event to the answer that contains it."""
    began = time.perf_counter()
    position = await run.publish(AssistantMessage(message=text(300)))
    offset = position.offset
    answer = json.loads(
        await get(query, f"/v1/runs/{run.run_id}/events?first_offset={offset}&min_offset={offset}&limit=1")
    )
    assert answer["events"][0]["offset"] == offset
    return time.perf_counter() - began


async def paced(a_second: int) -> AsyncIterator[int]:
    """Yields numbers at an even pace for one measurement. It catches up after a delay."""
    began = time.perf_counter()
    for number in range(SECONDS * a_second):
        await asyncio.sleep(max(0.0, began + number / a_second - time.perf_counter()))
        yield number
    late = time.perf_counter() - began - SECONDS
    if late > SECONDS / 20:
        _log.warning("the machine is too busy: what should have taken %s s took %.1f s more", SECONDS, late)


async def _open_idle(settings: Settings, query: Process) -> None:
    portion = 100
    async with Runfold.of(settings.log()) as runfold:
        for _ in range(0, IDLE_RUNS, portion):
            runs = await asyncio.gather(*(runfold.open_run(agent_id="benchmark") for _ in range(portion)))
        await read_first(runs, query)


async def read_first(runs: Sequence[Run], query: Process) -> None:
    """Returns when the first events of these runs are visible."""
    for run in runs:
        await get(query, f"/v1/runs/{run.run_id}?min_offset=0")


async def _active(projector: Process) -> float:
    metrics = (await get(projector, "/metrics")).decode().splitlines()
    return float(next(line.split()[1] for line in metrics if line.startswith("runfold_active_runs ")))


async def _processor_share(process: Process) -> float:
    """The used share of one core."""
    before = processor_seconds(process.pid)
    await asyncio.sleep(2 * SECONDS)
    return (processor_seconds(process.pid) - before) / (2 * SECONDS)


async def get(process: Process, path: str) -> bytes:
    """Sends one request on a new connection. A kept connection would save a fraction of a
    millisecond.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    assert head.startswith(b"HTTP/1.1 200"), (path, head, body)
    return body
