"""Measures the console in a Chromium: how soon a run of 10,000 events is shown, whether it scrolls
smoothly, and what an open list of runs costs the API.

It is a program of its own, because it needs a Chromium on the PATH:

python benchmarks/console.py http://127.0.0.1:8080 RUN [PID]

RUN is a run of some 10,000 events, and PID the process of the API on this machine. Beside each time
stands the processor time of all of the browser's processes, which other programs do not change.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

from playwright.async_api import Browser, async_playwright

PAINTS = 5
SCROLL_FRAMES = 120
PIXELS_A_FRAME = 80
"""A quick turn of the wheel: 4,800 pixels a second."""

WATCH_SECONDS = 20

FRAMES = f"""async () => {{
    const timeline = document.querySelector("rf-timeline");
    const times = [];
    for (let frame = 0; frame < {SCROLL_FRAMES}; frame += 1) {{
        timeline.scrollTop += {PIXELS_A_FRAME};
        times.push(await new Promise(requestAnimationFrame));
    }}
    return times.slice(1).map((time, index) => time - times[index]).sort((a, b) => a - b);
}}"""
"""Scrolls, and returns the milliseconds of each frame."""


async def main(url: str, run_id: str, pid: int | None) -> None:
    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    no_sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=no_sandbox)
        before = browser_seconds()
        paints = sorted([await first_events(browser, url, run_id) for _ in range(PAINTS)])
        used = (browser_seconds() - before) / PAINTS * 1000
        print(f"first events shown: median {paints[PAINTS // 2]:.0f} ms, {used:.0f} ms of processors")
        frames, used = await scrolled(browser, url, run_id)
        print(f"scrolling: median frame {frames[len(frames) // 2]:.1f} ms, {used:.1f} ms of processors")
        if pid is not None:
            print(f"the API beside an open list of runs: {await share(browser, url, pid):.1%} of a core")
        await browser.close()


async def first_events(browser: Browser, url: str, run_id: str) -> float:
    """From the beginning of the navigation, with an empty cache."""
    page = await browser.new_page()
    began = time.perf_counter()
    await page.goto(f"{url}/#/runs/{run_id}", wait_until="commit")
    await page.wait_for_selector("rf-timeline .event")
    milliseconds = (time.perf_counter() - began) * 1000
    await page.close()
    return milliseconds


async def scrolled(browser: Browser, url: str, run_id: str) -> tuple[list[float], float]:
    """The milliseconds of each frame, and the processor time of one."""
    page = await browser.new_page()
    await page.goto(f"{url}/#/runs/{run_id}")
    await page.wait_for_selector(".is-ended, .is-live", state="attached")
    before = browser_seconds()
    frames: list[float] = await page.evaluate(FRAMES)
    used = (browser_seconds() - before) / SCROLL_FRAMES * 1000
    await page.close()
    return frames, used


async def share(browser: Browser, url: str, pid: int) -> float:
    """The processor time of the API, with the open page less without it."""
    quiet = await cpu_share(pid)
    page = await browser.new_page()
    await page.goto(f"{url}/#/runs")
    await page.wait_for_selector("rf-table .row-link")
    busy = await cpu_share(pid)
    await page.close()
    return busy - quiet


async def cpu_share(pid: int) -> float:
    before = cpu_seconds(pid)
    await asyncio.sleep(WATCH_SECONDS)
    return (cpu_seconds(pid) - before) / WATCH_SECONDS


def browser_seconds() -> float:
    """Of all processes that this one has started."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    total = 0.0
    for pid in own - {os.getpid()}:
        with contextlib.suppress(OSError):
            total += cpu_seconds(pid)
    return total


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None))
