"""Measures how fast one projector worker folds a backlog, compared with the raw limit: consuming
the same records and inserting the same bytes as pages, without decoding.

Both are measured from the first stored batch to the last. They take turns on one log, so other load
of the machine affects both, and the ratio of two neighbours says more than either time.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from statistics import median

from processor import BrokerSeconds
from query import Figures
from texts import text

from runfold import Run, Runfold
from runfold.cli.garbage import collect_rarely
from runfold.log.tail import Tail
from runfold.projector.connection import connect_worker
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.editions import Editions, new_edition
from runfold.store.pages import EVENTS_MAX, Page, PageStore, pack
from runfold_schemas.codec import Record, encode
from runfold_schemas.events import AssistantMessage
from runfold_schemas.topics import Partition

EVENT_BYTES = 590
EVENTS = 300_000
PAIRS = 5
TARGETS = {100: 0.65, 1_000: 0.70}
"""The target, by the number of runs: the lowest ratio of a worker to the raw limit."""

_BATCH = 200
_RUNS_AT_ONCE = 50
"""The number of concurrent publishers. More fill the producer's buffers faster than one broker
empties them.
"""

_log = logging.getLogger(__name__)


async def throughput(settings: Settings) -> Figures:
    """The medians of all pairs. The ratio is the median of the pairs' ratios."""
    collect_rarely()
    figures: Figures = []
    for runs, least in TARGETS.items():
        own = settings.model_copy(update={"prefix": f"{settings.prefix}-{runs}"})
        log_ids, spent = await fill(own, runs=runs), BrokerSeconds(settings)
        pairs = [await _pair(own, log_ids, spent) for _ in range(PAIRS)]
        limit, worked = median(raw for raw, _ in pairs), median(rate for _, rate in pairs)
        ratio = median(rate / raw for raw, rate in pairs)
        of_broker = spent.seconds / PAIRS * 100_000 / EVENTS
        backlog = f"backlog of {EVENTS:,} events of {EVENT_BYTES} bytes in {runs:,} runs"
        figures += [
            (f"one worker, {backlog}", "", f"{worked:,.0f} events/s (raw limit {limit:,.0f})"),
            (f"the broker's processor time for 100,000 of them, {runs:,} runs", "", f"{of_broker:.2f} s"),
            (f"its ratio to the raw limit, {runs:,} runs", f">= {least:.2f}", f"{ratio:.2f}"),
        ]
    return figures


async def _pair(settings: Settings, log_ids: Mapping[str, str], spent: BrokerSeconds) -> tuple[float, float]:
    limit = await raw(settings, log_ids)
    with spent:
        worked = await worker(settings)
    _log.info("%d runs: raw %.0f/s, worker %.0f/s, ratio %.2f", len(log_ids), limit, worked, worked / limit)
    return limit, worked


async def fill(settings: Settings, *, runs: int) -> dict[str, str]:
    """Opens runs and publishes events of 590 bytes. Returns the log ids by topic."""
    topics = {}
    async with Runfold.of(settings.log()) as runfold:
        for begin in range(0, runs, _RUNS_AT_ONCE):
            some = range(begin, min(begin + _RUNS_AT_ONCE, runs))
            opened = await asyncio.gather(*(runfold.open_run(agent_id="benchmark") for _ in some))
            await asyncio.gather(*(publish(run, EVENTS // runs - 1) for run in opened))
            topics |= {
                runfold.connection.topics.run(run.run_id, run.life.log_id): run.life.log_id for run in opened
            }
    return topics


async def publish(run: Run, count: int) -> None:
    room = EVENT_BYTES - len(encode(run.event(AssistantMessage(message=""))))
    for begin in range(0, count, _BATCH):
        some = range(begin, min(begin + _BATCH, count))
        await run.publish_batch([AssistantMessage(message=text(room)) for _ in some])


async def raw(settings: Settings, log_ids: Mapping[str, str]) -> float:
    """Consumes records and inserts pages of the same bytes without decoding. Inserts overlap with
    fetches, as in the worker.
    """
    edition = new_edition()
    async with connect(settings.mongo, settings.database) as database, Tail.connect(settings.log()) as tail:
        pages = PageStore(database, edition)
        await pages.create_indexes()
        for topic in log_ids:
            tail.follow(Partition(topic, 0), 0)
        stored: list[tuple[float, int]] = []
        inserting: asyncio.Task[None] | None = None
        fetched = 0
        async for fetch in tail.fetches():
            rounds = []
            for part in fetch:
                rounds.append(_undecoded(log_ids[part.partition.topic], part.records))
                fetched += len(part.records)
                await asyncio.sleep(0)
            if inserting is not None:
                await inserting
            inserting = asyncio.create_task(_insert(pages, rounds, stored)) if fetch else None
            if fetched == EVENTS:
                break
        await inserting
        await Editions(database).drop(edition)
    (began, first), *_, (ended, _) = stored
    return (EVENTS - first) / (ended - began)


def _undecoded(log_id: str, records: Sequence[Record]) -> list[Page]:
    chunks = [records[start : start + EVENTS_MAX] for start in range(0, len(records), EVENTS_MAX)]
    return [
        Page(
            log_id=log_id,
            first_offset=chunk[0].offset,
            next_offset=chunk[-1].offset + 1,
            count=len(chunk),
            first_time=0,
            max_time=0,
            counts={},
            turns=[],
            ids=b"",
            exceptions=[],
            body=pack(chunk),
            checksum=0,
            size=0,
        )
        for chunk in chunks
    ]


async def _insert(
    pages: PageStore, rounds: Sequence[Sequence[Page]], stored: list[tuple[float, int]]
) -> None:
    for turn in range(max(map(len, rounds))):
        await pages.insert([chunks[turn] for chunks in rounds if turn < len(chunks)])
    stored.append((time.perf_counter(), sum(page.count for chunks in rounds for page in chunks)))


async def worker(settings: Settings) -> float:
    """A worker on an edition of its own, with all its tasks as in a service."""
    edition = new_edition()
    async with connect(settings.mongo, settings.database) as database:
        async with connect_worker(settings, database, edition) as worker:
            working = asyncio.create_task(worker.work())
            while not (before := worker.events):
                await asyncio.sleep(0.001)
            began = time.perf_counter()
            while worker.events < EVENTS:
                await asyncio.sleep(0.005)
            took = time.perf_counter() - began
            working.cancel()
            await asyncio.wait([working])
        await Editions(database).drop(edition)
    return (EVENTS - before) / took
