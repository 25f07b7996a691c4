"""Measures creating, finding and rebuilding memories, with services in processes of their own."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self

import httpx
from query import Figures, Process, median_ms, quantile_ms, serving, timed_get
from texts import text

from runfold import Runfold
from runfold.client.memories import Memories
from runfold.embeddings import Embedder, Vectors, embedder_of
from runfold.ids import new_event_id
from runfold.log.ends import LogEnds
from runfold.log.partition_counts import counted
from runfold.log.publisher import Outgoing
from runfold.log.shared import deciding, partitions_of
from runfold.query.reading import Reading
from runfold.query.similarity import StoredSimilarity
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold_schemas.codec import encode, headers, new_event
from runfold_schemas.memories import Memory, MemoryChange, MemoryCreated, MemoryUpdated, memory_key

BANK = "bench"
SCOPE = {"app_name": "shop", "user_id": "ann"}
MADE = 300
NEAR = 1_000
LONG = 10_000
REBUILT = 100_000
REBUILT_MEMORIES = 1_000
READINGS = 100
BATCH = 500


async def memories(settings: Settings) -> Figures:
    """Creates, finds and lists memories, then rebuilds everything from the log."""
    async with Runfold.of(settings.log()) as runfold, serving(settings, "api") as api:
        async with serving(settings, "projector"):
            await runfold.memories.create_bank(BANK)
            figures = await _making(api)
            figures += await _finding(runfold, settings)
            figures += await _listing(runfold, settings, api)
        return figures + await _rebuilding(runfold, settings)


async def _making(api: Process) -> Figures:
    """The times from request to answer, one after the other. An answered change is readable."""
    took: list[float] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{api.port}") as client:
        for number in range(MADE):
            began = time.perf_counter()
            memory = {"fact": f"{number}: {text(80)}", "scope": {"user_id": f"u-{number}"}}
            answer = await client.post(f"/v1/banks/{BANK}/memories", json=memory)
            took.append(time.perf_counter() - began)
            answer.raise_for_status()
    what = "create a memory, to the answer that makes it visible"
    return [
        (f"{what}, p50", "< 15 ms", median_ms(took)),
        (f"{what}, p99", "< 60 ms", quantile_ms(took, 0.99)),
    ]


async def _finding(runfold: Runfold, settings: Settings) -> Figures:
    facts = [f"fact {number}: {text(60)}" for number in range(NEAR)]
    await _publish(runfold, [_created(f"near-{number}", fact, SCOPE) for number, fact in enumerate(facts)])
    async with Reading(settings) as reading, embedder_of(settings) as embedder:
        cached = _CachedEmbedder(embedder)
        similarity = StoredSimilarity(reading.shared, lambda: cached)
        verbs = Memories(runfold.connection, reading.stored_memories, similarity=similarity)
        await verbs.nearest(BANK, SCOPE, "warming up")
        without, whole = [], []
        for number in range(READINGS):
            query = f"what is fact {number} about?"
            began = time.perf_counter()
            await embedder.embed([query])
            embedding = time.perf_counter() - began
            await cached.embed([query])
            began = time.perf_counter()
            await verbs.nearest(BANK, SCOPE, query)
            without.append(time.perf_counter() - began)
            whole.append(without[-1] + embedding)
    what = f"the 3 nearest of {NEAR:,} memories of a scope, p50"
    return [
        (f"{what}, without the embedding of the query", "< 20 ms", median_ms(without)),
        (f"{what}, with it", "", median_ms(whole)),
    ]


class _CachedEmbedder:
    """An embedder that caches the vectors of all texts."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._cache: dict[tuple[str, ...], Vectors] = {}

    @property
    def model(self) -> str:
        return self._embedder.model

    @property
    def dimensions(self) -> int | None:
        return self._embedder.dimensions

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if tuple(texts) not in self._cache:
            self._cache[tuple(texts)] = await self._embedder.embed(texts)
        return self._cache[tuple(texts)]


async def _listing(runfold: Runfold, settings: Settings, api: Process) -> Figures:
    await _publish(runfold, [_created("long", text(80), SCOPE)])
    await _publish(runfold, [_updated("long", f"{number}: {text(80)}") for number in range(LONG - 1)])
    await _folded(settings)
    path = f"/v1/banks/{BANK}/memories/long/revisions?limit=50"
    took = [timed_get(api, path) for _ in range(READINGS)]
    return [
        (
            f"first 50 of {LONG:,} revisions of a memory, over HTTP, p50",
            "< 15 ms",
            f"{median_ms(took)} (p99 {quantile_ms(took, 0.99)})",
        )
    ]


async def _rebuilding(runfold: Runfold, settings: Settings) -> Figures:
    """A projector that begins with an empty database."""
    each = REBUILT // REBUILT_MEMORIES
    changes: list[MemoryChange] = []
    for number in range(REBUILT_MEMORIES):
        changes.append(_created(f"m-{number}", text(80), {"user_id": f"u-{number}"}))
        changes += [
            MemoryUpdated(
                bank_id=BANK,
                memory_id=f"m-{number}",
                memory=Memory(fact=f"{turn}: {text(80)}", scope={"user_id": f"u-{number}"}),
            )
            for turn in range(1, each)
        ]
    await _publish(runfold, changes)
    async with connect(settings.mongo, settings.database) as database:
        await Editions(database).drop_all()
        async with serving(settings, "projector"):
            count, seconds = await _rebuilt(settings, database)
    return [
        (
            f"rebuilding {REBUILT:,} revisions from the log",
            "≥ 30,000/s",
            f"{count / seconds:,.0f}/s",
        )
    ]


async def _rebuilt(settings: Settings, database: Any) -> tuple[int, float]:
    """The final number of revisions, and the time since the first of them."""
    stores = Edition.of(database, await Editions(database).current_or_first())
    collection = database[f"revisions.{stores.name}"]
    ends = await _ends(settings)
    first = 0
    while not first:
        await asyncio.sleep(0.005)
        first = await collection.estimated_document_count()
    began = time.perf_counter()
    while not await _has(stores, ends):
        await asyncio.sleep(0.02)
    return await collection.estimated_document_count() - first, time.perf_counter() - began


async def _publish(runfold: Runfold, changes: Sequence[MemoryChange]) -> None:
    """Publishes changes in batches to the partitions that decide them."""
    batches: dict[Any, list[Outgoing]] = {}
    for change in changes:
        key = memory_key(change.bank_id, change.memory_id)
        event = new_event(change, event_id=new_event_id(), run_id="-", timestamp=datetime.now(UTC))
        record = Outgoing(key=key.encode(), value=encode(event), headers=headers(event, source="bench"))
        batches.setdefault(deciding(runfold.connection.topics, key), []).append(record)
    for at, records in batches.items():
        for begin in range(0, len(records), BATCH):
            ack = await runfold.connection.publisher.send_batch(
                at.topic, records[begin : begin + BATCH], partition=at.partition
            )
            await runfold.connection.publisher.wait(ack)


async def _folded(settings: Settings) -> None:
    async with connect(settings.mongo, settings.database) as database:
        stores = Edition.of(database, await Editions(database).current_or_first())
        ends = await _ends(settings)
        while not await _has(stores, ends):
            await asyncio.sleep(0.05)


async def _has(stores: Edition, ends: dict[Any, int]) -> bool:
    reached = await stores.shared_positions.positions()
    return all(reached.get(at, 0) >= end for at, end in ends.items())


async def _ends(settings: Settings) -> dict[Any, int]:
    log = await counted(settings.log())
    async with LogEnds.connect(log) as ends:
        return await ends.ends_of(partitions_of(log.topics, log.topics.memories))


def _created(memory_id: str, fact: str, scope: dict[str, str]) -> MemoryCreated:
    return MemoryCreated(bank_id=BANK, memory_id=memory_id, memory=Memory(fact=fact, scope=scope))


def _updated(memory_id: str, fact: str) -> MemoryUpdated:
    return MemoryUpdated(bank_id=BANK, memory_id=memory_id, memory=Memory(fact=fact, scope=SCOPE))
