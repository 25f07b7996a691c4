"""A client in a process of its own: `catalog.py` starts it, and reads what it measured as JSON.

It looks runs up, or goes through all runs, and measures the times and the added memory.
"""

import asyncio
import json
import re
import sys
import time
from contextlib import aclosing
from pathlib import Path

from runfold import Runfold, RunNotFoundError

_KILOBYTES = re.compile(r"Vm(RSS|HWM):\s+(\d+)")


async def measure(kafka: str, prefix: str, what: str, run_ids: list[str]) -> dict[str, float]:
    async with Runfold(kafka, prefix=prefix, create_topics=True) as runfold:
        _forget_peak()
        before = _megabytes()["RSS"]
        figures = await (look_up(runfold, run_ids) if what == "lookup" else go_through(runfold))
        return figures | {"megabytes": _megabytes()["HWM"] - before}


async def look_up(runfold: Runfold, run_ids: list[str]) -> dict[str, float]:
    """The first look-up, the same again, and others of the same partition."""
    first = await _timed(runfold, run_ids[0])
    again = sorted([await _timed(runfold, run_ids[0]) for _ in range(50)])
    others = sorted([await _timed(runfold, run_id) for run_id in run_ids[1:]])
    cpu = time.process_time()
    for run_id in run_ids[1:]:
        await _timed(runfold, run_id)
    return {
        "first": first,
        "again": again[len(again) // 2],
        "other": others[len(others) // 2],
        "cpu": time.process_time() - cpu,
    }


async def go_through(runfold: Runfold) -> dict[str, float]:
    """The first of all runs, and all of them."""
    began, cpu, runs, first, megabytes = time.perf_counter(), time.process_time(), 0, 0.0, 0.0
    before = _megabytes()["RSS"]
    async with aclosing(runfold.runs()) as all_runs:
        async for _ in all_runs:
            runs += 1
            if not first:
                first, megabytes = time.perf_counter() - began, _megabytes()["HWM"] - before
    return {
        "first": first,
        "first_megabytes": megabytes,
        "whole": time.perf_counter() - began,
        "runs": runs,
        "cpu": time.process_time() - cpu,
    }


async def _timed(runfold: Runfold, run_id: str) -> float:
    began = time.perf_counter()
    try:
        await runfold.get_run(run_id)
    except RunNotFoundError:
        sys.exit(f"run {run_id} was not found")
    return time.perf_counter() - began


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _megabytes() -> dict[str, float]:
    status = Path("/proc/self/status").read_text()
    return {name: int(kilobytes) / 1024 for name, kilobytes in _KILOBYTES.findall(status)}


if __name__ == "__main__":
    kafka, prefix, what, *run_ids = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(kafka, prefix, what, run_ids))))
