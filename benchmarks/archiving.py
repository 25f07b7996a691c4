"""Measures `runfold serve archiver` with a backlog of ended runs: many short ones, and a few long
ones.
"""

import asyncio
import logging
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from brokers import broker_pid, processor_seconds
from query import Figures, Process, serving

from runfold import Runfold
from runfold.ids import new_log_id, uuid7
from runfold.log.admin import RUN_CONFIG
from runfold.log.catalog import life_record, partition_of
from runfold.log.publisher import Outgoing
from runfold.settings import Settings
from runfold_schemas.catalog import Life
from runfold_schemas.codec import encode, headers, new_event
from runfold_schemas.events import RunCompleted, RunOpened, UserMessage

SHORT, SHORT_EVENTS = 2_000, 10
LONG, LONG_EVENTS = 100, 1_000

_TOPICS_AT_ONCE = 100
_LOOK_SECONDS = 0.2
_GIVE_UP_SECONDS = 900.0
_TEXT = "Please look up order {} of {}, and tell me when it arrives, whether it can be changed, and how."

_log = logging.getLogger(__name__)


class _Counts(NamedTuple):
    """What an archiver has done so far."""

    runs: float
    records: float
    size: float
    deleted: float


async def archiving(settings: Settings) -> Figures:
    """The rates of one archiver."""
    return [
        *await _archive(settings, SHORT, SHORT_EVENTS),
        *await _archive(settings, LONG, LONG_EVENTS),
    ]


async def _archive(settings: Settings, runs: int, events: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        own = Settings(
            kafka=settings.kafka,
            mongo=settings.mongo,
            prefix=f"bench-{uuid4().hex[:8]}",
            archive_url=f"file://{folder}",
            archive_after_seconds=0.1,
            archive_delete_seconds=0.1,
        )
        await _make(own.model_copy(update={"publish_timeout_seconds": 120.0}), runs, events)
        broker = broker_pid(own.kafka)
        before = processor_seconds(broker) if broker else 0.0
        started = time.monotonic()
        async with serving(own, "archiver") as archiver:
            began = time.monotonic()
            idle = processor_seconds(archiver.pid)
            first, last, counts = await _watch(archiver, runs, events)
            taken = processor_seconds(archiver.pid) - idle
            deleted = time.monotonic()
            memory = archiver.peak_megabytes()
        kafka = f", broker {processor_seconds(broker) - before:.1f} s" if broker else ""
        stored = stored_bytes(Path(folder))
    seconds = last - began
    _log.info("ready after %.1f s, first run after %.1f s", began - started, first - started)
    what = f"archiving {runs:,} ended runs of {events:,} events"
    return [
        (f"{what}: runs/s", "200", f"{runs / seconds:,.0f}"),
        (f"{what}: events/s", "50,000", f"{counts.records / seconds:,.0f}"),
        (f"{what}: from the start to the last deletion", "", f"{deleted - began:.1f} s"),
        (f"{what}: processor time, memory", "", f"{taken:.1f} s{kafka}, {memory:.0f} MB"),
        (f"{what}: stored bytes / bytes of keys, headers and values", "0.5", f"{stored / counts.size:.2f}"),
    ]


async def _watch(archiver: Process, runs: int, events: int) -> tuple[float, float, _Counts]:
    """Returns when all topics are deleted: the times of the first and of the last archived run."""
    first = last = 0.0
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while True:
        counts = await asyncio.to_thread(_counts, archiver)
        if counts.runs and not first:
            first = time.monotonic()
        if counts.runs >= runs and not last:
            last = time.monotonic()
            assert counts.records == runs * events
        if counts.deleted >= runs:
            return first, last, counts
        assert time.monotonic() < deadline, counts
        _log.debug("%s", counts)
        await asyncio.sleep(_LOOK_SECONDS)


def _counts(archiver: Process) -> _Counts:
    with urllib.request.urlopen(f"http://127.0.0.1:{archiver.port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    values = {
        name: float(value) for name, _, value in (line.partition(" ") for line in lines if line[0] != "#")
    }
    names = ("archived_runs", "archived_records", "archived_bytes", "archiver_deleted_topics")
    return _Counts(*(float(values[f"runfold_{name}_total"]) for name in names))


def stored_bytes(folder: Path) -> int:
    """The size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def _make(settings: Settings, runs: int, events: int) -> None:
    """Writes the topics of ended runs, and then the catalog."""
    lives = [
        Life(run_id=str(uuid7()), log_id=new_log_id(), agent_id="benchmark", ended=True) for _ in range(runs)
    ]
    async with Runfold.of(settings.log()) as runfold:
        connection = runfold.connection
        topics, publisher = connection.topics, connection.publisher
        for begin in range(0, runs, _TOPICS_AT_ONCE):
            portion = lives[begin : begin + _TOPICS_AT_ONCE]
            names = [topics.run(life.run_id, life.log_id) for life in portion]
            await connection.admin.create_topics(dict.fromkeys(names, (1, RUN_CONFIG)))
            await asyncio.gather(*(_fill(runfold, life, events) for life in portion))
        by_partition: defaultdict[int, list[Outgoing]] = defaultdict(list)
        for life in lives:
            by_partition[partition_of(topics, life.run_id)].append(life_record(life))
        for number, records in by_partition.items():
            await publisher.wait(await publisher.send_batch(topics.catalog, records, partition=number))
    _log.info("wrote %d runs of %d events", runs, events)


async def _fill(runfold: Runfold, life: Life, events: int) -> None:
    topic = runfold.connection.topics.run(life.run_id, life.log_id)
    publisher = runfold.connection.publisher
    await publisher.prime(topic)
    data = [
        RunOpened(agent_id="benchmark", log_id=life.log_id),
        *(UserMessage(message=_TEXT.format(number, life.run_id)) for number in range(events - 2)),
        RunCompleted(),
    ]
    made = (
        new_event(each, event_id=str(uuid7()), run_id=life.run_id, timestamp="2026-11-01T00:00:00Z")
        for each in data
    )
    records = [Outgoing(None, encode(event), tuple(headers(event, source="bench"))) for event in made]
    await publisher.wait(await publisher.send_batch(topic, records))
    publisher.finish(topic)
