"""Measures what clients and services do with a catalog of 200,000 runs: look-ups, a pass over all
runs, and the starts of the API and of the projector.
"""

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from brokers import broker_pid, processor_seconds
from query import Figures, serving

from runfold import Runfold
from runfold.ids import new_log_id, uuid7
from runfold.log.catalog import life_record, partition_of
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.editions import Editions
from runfold.store.runs import RunState, RunStore
from runfold_projections.run import RunRecord
from runfold_schemas.catalog import Life
from runfold_schemas.topics import PARTITIONS_DEFAULT, Topics

RUNS = 200_000
OTHERS = 20
"""Further runs of the same partition that are looked up."""

TOPICS = Topics(partitions=PARTITIONS_DEFAULT)
"""The topics of any prefix hash alike."""

_BATCH = 2_000
_CLIENT = Path(__file__).with_name("catalog_client.py")

_log = logging.getLogger(__name__)


async def catalog(settings: Settings) -> Figures:
    """Runs that have ended, each with a record of its opening and one of its end, all endings after
    all openings: the order in which a pass over all runs has to hold most of them.
    """
    lives = [
        Life(run_id=str(uuid7()), log_id=new_log_id(), agent_id="benchmark", ended=True) for _ in range(RUNS)
    ]
    await _announce(settings, lives)
    number = partition_of(TOPICS, lives[0].run_id)
    same = [life.run_id for life in lives if partition_of(TOPICS, life.run_id) == number][: OTHERS + 1]
    broker = broker_pid(settings.kafka)
    return [
        *await _clients(settings, same, broker),
        *await _starts(settings, lives, broker),
    ]


async def _announce(settings: Settings, lives: list[Life]) -> None:
    by_partition: defaultdict[int, list[Life]] = defaultdict(list)
    for life in lives:
        by_partition[partition_of(TOPICS, life.run_id)].append(life)
    async with Runfold.of(settings.log()) as runfold:
        publisher, topic = runfold.connection.publisher, runfold.connection.topics.catalog
        for partition, own in by_partition.items():
            opened = [life.model_copy(update={"ended": False}) for life in own]
            records = [life_record(life) for life in [*opened, *own]]
            for begin in range(0, len(records), _BATCH):
                ack = await publisher.send_batch(topic, records[begin : begin + _BATCH], partition=partition)
                await publisher.wait(ack)
    _log.info("announced %d runs", len(lives))


async def _clients(settings: Settings, run_ids: list[str], broker: int | None) -> Figures:
    with _processor(broker) as looking:
        found = await _client(settings, "lookup", *run_ids)
    with _processor(broker) as passing:
        runs = await _client(settings, "runs")
    assert runs["runs"] == RUNS
    what = f"a client, {RUNS:,} runs in the catalog"
    return [
        (f"{what}: first look-up", "< 1 s", f"{found['first']:.2f} s"),
        (
            f"{what}: memory of {len(run_ids)} look-ups",
            "< 20 MB",
            f"{found['megabytes']:.0f} MB ({_cpu(looking)})",
        ),
        (f"{what}: the same look-up again, p50", "< 5 ms", f"{1000 * found['again']:.1f} ms"),
        (f"{what}: another run of the partition, p50", "", f"{1000 * found['other']:.1f} ms"),
        (
            f"{what}: first result of `runs()`",
            "< 1 s, < 20 MB",
            f"{runs['first']:.2f} s, {runs['first_megabytes']:.0f} MB",
        ),
        (
            f"{what}: whole `runs()`",
            "",
            f"{runs['whole']:.1f} s, {runs['megabytes']:.0f} MB, CPU {runs['cpu']:.1f} s ({_cpu(passing)})",
        ),
    ]


async def _client(settings: Settings, what: str, *run_ids: str) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, _CLIENT, settings.kafka, settings.prefix, what, *run_ids, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    figures: dict[str, float] = json.loads(output)
    _log.info("%s: %s", what, figures)
    return figures


async def _starts(settings: Settings, lives: list[Life], broker: int | None) -> Figures:
    await _store(settings, lives)
    figures: Figures = []
    with _processor(broker) as taken:
        began = time.perf_counter()
        async with serving(settings, "api") as api:
            ready = time.perf_counter() - began
            await asyncio.sleep(5)  # the catalog is read in the background
            peak = api.peak_megabytes()
    figures.append(
        (
            f"start of the API, {RUNS:,} runs in the catalog",
            "",
            f"{ready:.1f} s, {peak:.0f} MB ({_cpu(taken)})",
        )
    )
    for how in ("the first, which reads the catalog", "a later one"):
        with _processor(broker) as taken:
            began = time.perf_counter()
            async with serving(settings, "projector") as projector:
                ready = time.perf_counter() - began
                await _caught_up(settings)
                whole, peak = time.perf_counter() - began, projector.peak_megabytes()
        figures.append(
            (
                f"start of a projector, {RUNS:,} ended runs, {how}",
                "",
                f"ready in {ready:.1f} s, caught up in {whole:.1f} s, {peak:.0f} MB ({_cpu(taken)})",
            )
        )
    return figures


async def _store(settings: Settings, lives: list[Life]) -> None:
    """Stores the runs as a projector has them when they have ended."""
    now = datetime.now(UTC)
    async with connect(settings.mongo, settings.database) as database:
        runs = RunStore(database, await Editions(database).current_or_first())
        await runs.create_indexes()
        for begin in range(0, len(lives), _BATCH):
            await runs.add(
                [
                    RunState(
                        log_id=life.log_id,
                        partition=partition_of(TOPICS, life.run_id),
                        active=False,
                        record=RunRecord(
                            run_id=life.run_id, agent_id=life.agent_id, started_at=now, ended_at=now
                        ),
                    )
                    for life in lives[begin : begin + _BATCH]
                ]
            )
    _log.info("stored %d runs", len(lives))


async def _caught_up(settings: Settings) -> None:
    """Returns when the projectors' group has committed the catalog's ends."""
    async with connect(settings.mongo, settings.database) as database:
        edition = await Editions(database).current_or_first()
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        committed = 0
        while committed < 2 * RUNS:
            await asyncio.sleep(0.1)
            offsets = await admin.list_consumer_group_offsets(f"{settings.prefix}.projector.{edition}")
            committed = sum(max(0, each.offset) for each in offsets.values())
    finally:
        await admin.close()


@contextmanager
def _processor(broker: int | None) -> Iterator[list[float]]:
    """The processor time of the broker within the block, empty if the broker runs elsewhere."""
    taken: list[float] = []
    before = processor_seconds(broker) if broker is not None else 0.0
    yield taken
    if broker is not None:
        taken.append(processor_seconds(broker) - before)


def _cpu(taken: list[float]) -> str:
    return f"broker {taken[0]:.1f} s of CPU" if taken else "broker elsewhere"
