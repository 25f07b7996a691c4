"""Measures 10,000 open runs of which none is parked: while all are quiet, while 100 of them speak,
and while all of them speak in turn.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from brokers import broker_pid, processor_seconds, resident_mb
from latency import ASKED_FOR, EVENTS_PER_SECOND, SECONDS, paced, publish_and_read, read_first
from query import Figures, Process, median_ms, quantile_ms, serving
from texts import text

from runfold import AssistantMessage, Run, Runfold
from runfold.settings import Settings

RUNS = 10_000
SPEAKING = 100
_AT_ONCE = 100
_PARK_SECONDS = 3_600.0

_log = logging.getLogger(__name__)


async def many(settings: Settings) -> Figures:
    """The delays and costs of many open runs."""
    settings = settings.model_copy(update={"park_seconds": _PARK_SECONDS})
    async with (
        serving(settings, "projector") as projector,
        serving(settings, "query") as query,
        Runfold.of(settings.log()) as runfold,
    ):
        runs: list[Run] = []
        for _ in range(0, RUNS, _AT_ONCE):
            runs += await asyncio.gather(*(runfold.open_run(agent_id="benchmark") for _ in range(_AT_ONCE)))
        await read_first(runs[-_AT_ONCE:], query)
        load = _Load(settings, projector)
        await asyncio.sleep(SECONDS)  # until the runs are quiet
        load.begin()
        await asyncio.sleep(2 * SECONDS)
        idle = f"{RUNS:,} open runs, all quiet"
        figures = [
            (f"{idle}: projector's CPU", "< 2 %", f"{load.projector:.1%}"),
            (f"{idle}: broker's CPU", "< 0.05 cores", load.broker),
            (f"{idle}: projector's memory", "< 250 MB", f"{resident_mb(projector.pid):.0f} MB"),
        ]
        for name, speaking, targets in (
            (f"{SPEAKING} of {RUNS:,} open runs", runs[:SPEAKING], ("< 8 ms", "< 40 ms", "")),
            (f"all of {RUNS:,} open runs in turn", runs, ("< 25 ms", "< 100 ms", "< 0.8 cores")),
        ):
            figures += await _delays(name, speaking, query, load=load, targets=targets)
        return figures


async def _delays(
    name: str, runs: Sequence[Run], query: Process, *, load: "_Load", targets: tuple[str, str, str]
) -> Figures:
    what = f"publish to visible, {EVENTS_PER_SECOND:,} events/s over {name}"
    reads: list[asyncio.Task[float]] = []
    load.begin()
    async with asyncio.TaskGroup() as tasks:
        async for number in paced(EVENTS_PER_SECOND):
            run = runs[number % len(runs)]
            if number % ASKED_FOR:
                await run.send(AssistantMessage(message=text(300)))
            else:
                reads.append(tasks.create_task(publish_and_read(run, query)))
    broker, delays = load.broker, [read.result() for read in reads]
    _log.info("%s: p50 %s, p99 %s", what, median_ms(delays), quantile_ms(delays, 0.99))
    return [
        (f"{what}, p50", targets[0], median_ms(delays)),
        (f"{what}, p99", targets[1], quantile_ms(delays, 0.99)),
        (f"{what}, broker's CPU", targets[2], broker),
    ]


class _Load:
    """The shares of one core that projector and broker take since `begin`."""

    def __init__(self, settings: Settings, projector: Process) -> None:
        self._projector = projector.pid
        self._broker = broker_pid(settings.kafka)
        self._began = 0.0
        self._before: dict[int, float] = {}

    def begin(self) -> None:
        self._began = time.monotonic()
        pids = [pid for pid in (self._projector, self._broker) if pid is not None]
        self._before = {pid: processor_seconds(pid) for pid in pids}

    @property
    def projector(self) -> float:
        return self._share(self._projector)

    @property
    def broker(self) -> str:
        return "elsewhere" if self._broker is None else f"{self._share(self._broker):.2f} cores"

    def _share(self, pid: int) -> float:
        return (processor_seconds(pid) - self._before[pid]) / (time.monotonic() - self._began)
