"""Measures how fast one client opens runs, publishes an event to each and ends them, many at a
time, how the rate changes as the runs become more, and the processor time of each process for one
life.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from statistics import median
from urllib.parse import urlsplit

from brokers import broker_pid, processor_seconds
from query import Figures, median_ms, quantile_ms, serving

from runfold import Runfold, UserMessage
from runfold.settings import Settings

RUNS = 10_000
AT_ONCE = 200
SHARE = 1_000
TARGET = 400
SHARE_TARGET = 0.9
"""The lowest ratio of the rate of the last thousand runs to the rate of the second thousand. The
first thousand warms the broker up.
"""

ALONE = 200
ALONE_PER_SECOND = 20

_log = logging.getLogger(__name__)


async def opening(settings: Settings) -> Figures:
    """The lives without a projector. Any error ends it."""
    return await _lives(settings, beside="")


async def opening_beside(settings: Settings) -> Figures:
    """The lives beside a projector. Any error ends it."""
    async with serving(settings, "projector") as projector:
        return await _lives(settings, beside=", beside a projector", projector=projector.pid)


async def _lives(settings: Settings, *, beside: str, projector: int | None = None) -> Figures:
    processes = {
        "client": os.getpid(),
        "broker": broker_pid(settings.kafka),
        "MongoDB": broker_pid(urlsplit(str(settings.mongo)).netloc),
        "projector": projector,
    }
    rates: list[float] = []
    costs: list[dict[str, float]] = []
    async with Runfold.of(settings.log()) as runfold:
        alone = await _alone(runfold)
        began = time.perf_counter()
        for _ in range(RUNS // SHARE):
            before = _seconds(processes)
            rates.append(await _rate(runfold))
            after = _seconds(processes)
            costs.append({name: 1_000 * (after[name] - before[name]) / SHARE for name in after})
            _log.info("%d runs: %.0f/s, %s", len(rates) * SHARE, rates[-1], _spelled(costs[-1]))
        took = time.perf_counter() - began
    each = ", ".join(f"{rate:.0f}" for rate in rates)
    typical = {name: median(cost[name] for cost in costs) for name in costs[0]}
    return [
        (
            f"{RUNS:,} runs opened, published to and ended by one client, {AT_ONCE} at a time{beside}",
            f">= {TARGET}/s, no error",
            f"{RUNS / took:.0f}/s (by each thousand: {each})",
        ),
        (
            f"their last thousand beside the second{beside}",
            f">= {SHARE_TARGET}",
            f"{rates[-1] / rates[1]:.2f}",
        ),
        (f"processor time of one of these lives{beside}", "", _spelled(typical)),
        (
            f"open a run, {ALONE_PER_SECOND} new runs/s, p50{beside}",
            "",
            f"{median_ms(alone)} (p99 {quantile_ms(alone, 0.99)})",
        ),
    ]


def _seconds(processes: dict[str, int | None]) -> dict[str, float]:
    """The processor time so far, without processes of other machines."""
    return {name: processor_seconds(pid) for name, pid in processes.items() if pid is not None}


def _spelled(cost: dict[str, float]) -> str:
    return ", ".join(f"{name} {milliseconds:.2f} ms" for name, milliseconds in cost.items())


async def _alone(runfold: Runfold) -> list[float]:
    """The seconds that single openings take, at an even pace."""
    delays: list[float] = []

    async def open_one() -> None:
        began = time.perf_counter()
        await runfold.open_run(agent_id="benchmark")
        delays.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(ALONE):
            await asyncio.sleep(max(0.0, began + number / ALONE_PER_SECOND - time.perf_counter()))
            group.create_task(open_one())
    return delays


async def _rate(runfold: Runfold) -> float:
    began = time.perf_counter()
    numbers = iter(range(SHARE))
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(_work(runfold, numbers))
    return SHARE / (time.perf_counter() - began)


async def _work(runfold: Runfold, numbers: Iterator[int]) -> None:
    for number in numbers:
        run = await runfold.open_run(agent_id="benchmark")
        await run.publish(UserMessage(message=f"Where is order {number}?"))
        await run.complete()
