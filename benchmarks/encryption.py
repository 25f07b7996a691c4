"""Measures what sealing costs: publishing and reading a ledger, sealed and in clear, in turn."""

import statistics
import tempfile
import time
from base64 import b64encode
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from processor import processor_seconds
from query import EVENTS, Figures, Process, opened, projected, read_ledger, serving, turns

from runfold import Run, Runfold
from runfold.encryption.cipher import new_key
from runfold.settings import Settings

PAIRS = 10


class _Way(NamedTuple):
    """Services with a prefix of their own, and the processor time of their runs in seconds."""

    runfold: Runfold
    query: Process
    published: list[float]
    read: list[float]


async def encryption(settings: Settings) -> Figures:
    """Publishes runs of 3,000 events, one in clear and one sealed, then reads the ledger of each
    for the first time.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runfold-bench-")))
        (folder / "key").write_text(b64encode(new_key()).decode())
        clear, sealed = [await _way(stack, settings, key) for key in (None, f"file:{folder / 'key'}")]
        runs = [(way, await _published(way)) for _ in range(PAIRS) for way in (clear, sealed)]
        for way, run in runs:
            await projected(way.query, run, EVENTS)
        for way, run in runs:
            began = processor_seconds(way.query.pid)
            read_ledger(way.query, run)
            way.read.append(processor_seconds(way.query.pid) - began)
    share = statistics.median(clear.published) / statistics.median(sealed.published)
    times = sum(sealed.read) / sum(clear.read)
    return [
        (
            "sealed events published for the processor time of one in clear",
            ">= 0.85",
            f"{share:.2f} ({_micros(sealed.published)} to {_micros(clear.published)} us an event)",
        ),
        (
            f"processor time of a sealed ledger of {EVENTS:,} events, compared with one in clear",
            "<= 1.3",
            f"{times:.2f} ({sum(sealed.read) / PAIRS * 1000:.0f} to {sum(clear.read) / PAIRS * 1000:.0f} ms)",
        ),
    ]


async def _way(stack: AsyncExitStack, settings: Settings, key: str | None) -> _Way:
    name = f"bench-{uuid4().hex[:8]}"
    named = {"prefix": name, "database": name}
    clear = settings.model_copy(update=named)
    own = clear if key is None else settings.model_copy(update={**named, "encryption_key": key})
    await stack.enter_async_context(serving(clear, "projector"))
    query = await stack.enter_async_context(serving(own, "query"))
    return _Way(await stack.enter_async_context(Runfold.of(own.log())), query, [], [])


async def _published(way: _Way) -> Run:
    """A run of 3,000 events, each sent alone."""
    run, steps = await opened(way.runfold), turns()
    events = [next(steps) for _ in range(EVENTS - 1)]
    began = time.process_time()
    for event in events:
        await run.send(event)
    await run.flush()
    way.published.append(time.process_time() - began)
    return run


def _micros(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) / EVENTS * 1e6:.0f}"
