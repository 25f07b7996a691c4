"""How fast one projector worker folds a backlog, beside the raw limit: the same records consumed and the same bytes
inserted as pages, with nothing decoded.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from itertools import count

from aiokafka import TopicPartition

from runfold import Runfold
from runfold.ids import new_event_id
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.tail import Tail
from runfold.projector.worker import connect_worker
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.generations import new_generation
from runfold.store.pages import EVENTS_MAX, Page, PageStore, pack
from runfold.store.runs import RunStore

EVENT_BYTES = 590
BATCH = 200


async def measure(settings: Settings, *, runs: int, events: int) -> tuple[float, float]:
    """Events a second: the raw limit, and a worker with everything on."""
    log_ids = await fill(settings, runs=runs, events=events)
    total = events + runs
    return await raw(settings, log_ids, total), await worker(settings, total)


async def fill(settings: Settings, *, runs: int, events: int) -> dict[str, str]:
    """Opens runs and publishes events of 590 bytes to them; gives the topics with their log ids."""
    async with Runfold.of(settings.log()) as runfold, Publisher.connect(settings.log()) as publisher:
        opened = await asyncio.gather(*(runfold.open_run(agent_id="bench") for _ in range(runs)))
        topics = {runfold.topics.run(run.run_id, run.life.log_id): run for run in opened}
        await publisher.prime(list(topics))
        for _ in range(events // runs // BATCH or 1):
            acks = [
                await publisher.send_batch(
                    topic, [record(run.run_id) for _ in range(min(BATCH, events // runs))]
                )
                for topic, run in topics.items()
            ]
            for ack in acks:
                await publisher.wait(ack)
    return {topic: run.life.log_id for topic, run in topics.items()}


def record(run_id: str) -> Outgoing:
    event_id = new_event_id()
    event = {
        "event_id": event_id,
        "run_id": run_id,
        "timestamp": "2026-01-02T03:04:05.678901Z",
        "type": "assistant_message",
        "turn_id": "turn-1",
        "data": {"message": ""},
    }
    event["data"] = {"message": "x" * (EVENT_BYTES - len(json.dumps(event)))}
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", event_id.encode()),
        ("ce_type", b"assistant_message"),
        ("ce_source", b"bench"),
        ("ce_time", b"2026-01-02T03:04:05.678901Z"),
        ("content-type", b"application/json"),
    ]
    return Outgoing(key=run_id.encode(), value=json.dumps(event).encode(), headers=headers)


async def raw(settings: Settings, log_ids: dict[str, str], total: int) -> float:
    """Consume and insert pages of the same bytes, without decoding; inserts overlap with fetches as in the worker."""
    async with connect(settings.mongo, settings.database) as database, Tail.connect(settings.log()) as tail:
        pages = PageStore(database, new_generation())
        for topic in log_ids:
            tail.follow(TopicPartition(topic, 0), 0)
        inserting: asyncio.Task[None] | None = None
        seen, began = 0, 0.0
        async for slices in tail.slices():
            if not slices:
                continue
            began = began or time.perf_counter()
            rounds = [_undecoded(log_ids[part.partition.topic], part.records) for part in slices]
            seen += sum(len(part.records) for part in slices)
            if inserting is not None:
                await inserting
            inserting = asyncio.create_task(_insert(pages, rounds))
            if seen >= total:
                await inserting
                return seen / (time.perf_counter() - began)
    raise AssertionError


def _undecoded(log_id: str, records: Sequence) -> list[Page]:
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
        )
        for chunk in chunks
    ]


async def _insert(pages: PageStore, rounds: list[list[Page]]) -> None:
    for turn in range(max(map(len, rounds))):
        await pages.insert([chunks[turn] for chunks in rounds if turn < len(chunks)])


async def worker(settings: Settings, total: int) -> float:
    generation = new_generation()
    async with connect(settings.mongo, settings.database) as database:
        runs = RunStore(database, generation)
        async with connect_worker(settings, database, generation) as one:
            working = asyncio.create_task(one.work())
            while one.events == 0:
                await asyncio.sleep(0.001)
            began = time.perf_counter()
            for _ in count():
                await asyncio.sleep(0.02)
                if one.events >= total and sum([offset async for _, offset in runs.progress()]) >= total:
                    break
            took = time.perf_counter() - began
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    return total / took
