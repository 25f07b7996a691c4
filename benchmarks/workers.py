"""Measures projectors as processes: several on one machine beside one, one with many open runs, and
a rebuild beside one.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import uuid4

import throughput
from processor import broker, children, processor_seconds, resident_megabytes
from query import Figures, serving

from runfold import AssistantMessage, Run, Runfold
from runfold.cli.garbage import collect_rarely
from runfold.projector.rebuild import RebuildProgress, rebuild
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions

EVENTS = 300_000
RUNS = 1_000
REBUILT_RUNS = 100
OPEN_RUNS = 10_000
OPEN_RUN_EVENTS = 10
_AT_ONCE = 100
_PAUSED_SECONDS = 60
"""How long Kafka waits for a worker that is paused while its backlog is published. A worker also
takes longer to join if the time is longer.
"""

_log = logging.getLogger(__name__)


async def workers(settings: Settings) -> Figures:
    """The processor time of one and of two workers for the same backlog. Both are up when the
    backlog begins.
    """
    spent = [await _backlog(settings, count) for count in (1, 2)]
    one, two = spent
    backlog = f"backlog of {EVENTS:,} events in {RUNS:,} runs"
    return [
        (
            f"{name}, {backlog}, processor time for 100,000 events",
            "",
            f"{each.own:.2f} s, broker {each.broker:.2f} s ({each.rate:,.0f} events/s)",
        )
        for name, each in (("one worker", one), ("two workers", two))
    ] + [("two workers beside one, processor time", "<= 1.1 times", f"{two.own / one.own:.2f} times")]


async def memory(settings: Settings) -> Figures:
    """The memory of a projector with many open runs, none of which is parked."""
    open_settings = settings.model_copy(update={"park_seconds": 3600.0})
    async with serving(open_settings, "projector") as projector:
        idle = resident_megabytes(projector.pid)
        async with Runfold.of(settings.log()) as runfold:
            for _ in range(0, OPEN_RUNS, _AT_ONCE):
                await asyncio.gather(*(_open(runfold) for _ in range(_AT_ONCE)))
        await folded(settings, OPEN_RUNS * OPEN_RUN_EVENTS)
        await asyncio.sleep(5)  # what is needed only while events come is freed
        full = resident_megabytes(projector.pid)
    runs = f"{OPEN_RUNS:,} open runs of {OPEN_RUN_EVENTS} events"
    return [(f"worker's memory with {runs}", "<= 250 MB", f"{full:.0f} MB (without runs {idle:.0f} MB)")]


async def rebuilding(settings: Settings) -> Figures:
    """A rebuild beside a projector. Its rate is compared with the raw limit of the same log. Both
    collect garbage as the command does.
    """
    collect_rarely()
    log_ids = await throughput.fill(settings, runs=REBUILT_RUNS)
    async with serving(settings, "projector"):
        await folded(settings, EVENTS)
        limit = await throughput.raw(settings, log_ids)
        at, before = _Moments(time.perf_counter()), (time.process_time(), _spent([], settings)[1])
        await rebuild(settings, report=at.report, switched=lambda: None)
        ended = time.perf_counter()
        own, of_broker = time.process_time() - before[0], _spent([], settings)[1] - before[1]
    rate = EVENTS / at.folding()
    _log.info("begun after %.1f s, folded in %.1f s", at.begin(), at.folding())
    name = f"rebuild of {EVENTS:,} events in {REBUILT_RUNS} runs"
    return [
        (f"{name}, beside the raw limit", ">= 0.70", f"{rate / limit:.2f} ({rate:,.0f} of {limit:,.0f}/s)"),
        (
            f"{name}, whole",
            "",
            f"{ended - at.began:.1f} s (own processor time {own:.1f} s, broker {of_broker:.1f} s)",
        ),
        (f"{name}, hand-over to the projector", "< 8 s", f"{ended - at.last:.1f} s"),
    ]


class _Moments:
    """When a rebuild began, had its first records, and had all."""

    def __init__(self, began: float) -> None:
        self.began = self.first = self.last = began

    def report(self, progress: RebuildProgress) -> None:
        now = time.perf_counter()
        if not progress.done:
            self.first = now
        self.last = now

    def begin(self) -> float:
        return self.first - self.began

    def folding(self) -> float:
        return self.last - self.first


class _Spent(NamedTuple):
    own: float
    """Processor seconds of all workers for 100,000 events."""
    broker: float
    rate: float


async def _backlog(settings: Settings, count: int) -> _Spent:
    name = f"{settings.prefix}-{count}-{uuid4().hex[:4]}"
    changes = {"prefix": name, "database": name, "workers": count, "session_timeout_seconds": _PAUSED_SECONDS}
    # A projector reads these settings from variables, which have what was set.
    own = Settings(**{field: getattr(settings, field) for field in ("kafka", "mongo")}, **changes)
    async with _projectors(own, count) as pids, Runfold.of(own.log()) as runfold:
        runs: list[Run] = []
        for _ in range(0, RUNS, _AT_ONCE):
            runs += await asyncio.gather(*(runfold.open_run(agent_id="benchmark") for _ in range(_AT_ONCE)))
        await folded(own, RUNS)
        _signal(pids, signal.SIGSTOP)
        try:
            for begin in range(0, RUNS, _AT_ONCE):
                some = runs[begin : begin + _AT_ONCE]
                await asyncio.gather(*(throughput.publish(run, EVENTS // RUNS) for run in some))
            before, began = _spent(pids, own), time.perf_counter()
        finally:
            _signal(pids, signal.SIGCONT)
        await folded(own, RUNS + EVENTS)
        seconds = time.perf_counter() - began
        spent, of_broker = (
            (after - earlier) * 100_000 / EVENTS
            for after, earlier in zip(_spent(pids, own), before, strict=True)
        )
    _log.info("%d workers: %.2f s, broker %.2f s for 100,000 events", count, spent, of_broker)
    return _Spent(spent, of_broker, EVENTS / seconds)


@asynccontextmanager
async def _projectors(settings: Settings, count: int) -> AsyncIterator[list[int]]:
    async with serving(settings, "projector") as projector:
        if count == 1:
            yield [projector.pid]
            return
        while len(pids := children(projector.pid)) < count:
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)  # all workers have joined, and share the partitions
        yield pids


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _spent(pids: Iterable[int], settings: Settings) -> tuple[float, float]:
    kafka = broker(settings)
    return sum(map(processor_seconds, pids)), processor_seconds(kafka) if kafka else 0.0


async def _open(runfold: Runfold) -> None:
    run = await runfold.open_run(agent_id="benchmark")
    for number in range(OPEN_RUN_EVENTS - 1):
        await run.publish(AssistantMessage(message=f"This is message {number}."))


async def folded(settings: Settings, count: int) -> None:
    """Returns when the states of all runs together include `count` records."""
    async with connect(settings.mongo, settings.database) as database:
        while True:
            stores = Edition.of(database, await Editions(database).current_or_first())
            if sum([position async for _, position in stores.runs.progress()]) >= count:
                return
            await asyncio.sleep(0.1)
