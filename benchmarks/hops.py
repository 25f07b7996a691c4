"""Measures where the time of an event goes on its way from the publisher to a reader.

    publish --append--> log --fetch--> worker --fold--> --insert--> MongoDB --read--> reader
                         +--------------------read ahead--------------------------> reader
    a position of shared topics is stored --notify--> the reader that waits for it

The worker, the publisher and the readers are in one process, so all times have one clock. The rate
is low: the hops show what each step takes by itself. `latency` measures the whole way under load.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from query import Figures, median_ms, quantile_ms
from texts import text

from runfold import AssistantMessage, Memory, Run, Runfold
from runfold.client.memories import Memories
from runfold.log.tail import FetchedRecords, Tail
from runfold.projector.connection import connect_worker
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.page import Page
from runfold.store.pages import PageStore
from runfold.store.progress import position_key
from runfold.store.shared_positions import SharedPositionStore
from runfold_schemas.topics import Partition

RUNS: Final = 100
EVENTS: Final = 400
A_SECOND: Final = 40
MEMORIES: Final = 100

_STEPS: Final = {
    "append": "publish to acknowledged",
    "fetch": "acknowledged to received by the projector",
    "fold": "received to the begin of the insert",
    "insert": "begin of the insert to stored",
    "read": "stored to read from MongoDB",
    "read ahead": "acknowledged to read with the newest records from the log",
    "notify": "position of shared topics stored to told by the change stream",
}


async def hops(settings: Settings) -> Figures:
    """The medians of the hops, and their 99th percentiles."""
    own = settings.model_copy(
        update={"prefix": f"{settings.prefix}-hops", "database": f"{settings.database}-h"}
    )
    way = _Way()
    with way.observed():
        async with _working(own) as edition, Runfold.of(own.log()) as runfold, Reading(own) as reading:
            runs = await asyncio.gather(*(runfold.open_run(agent_id="benchmark") for _ in range(RUNS)))
            await _publish(runs, way, reading)
            told = asyncio.create_task(way.note_told(edition))
            memories = Memories(runfold.connection, reading.stored_memories)
            await memories.create_bank("hops")
            for number in range(MEMORIES):
                await memories.create("hops", Memory(fact=text(80), scope={"user": str(number)}))
            told.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await told
    return [
        (f"hop {name}: {what}", "", f"p50 {median_ms(times)}, p99 {quantile_ms(times, 0.99)}")
        for name, what in _STEPS.items()
        if (times := way.times[name])
    ]


@asynccontextmanager
async def _working(settings: Settings) -> AsyncIterator[Edition]:
    async with connect(settings.mongo, settings.database) as database:
        name = await Editions(database).current_or_first()
        async with connect_worker(settings, database, name) as worker:
            working = asyncio.create_task(worker.work())
            try:
                yield Edition.of(database, name)
            finally:
                working.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await working


async def _publish(runs: list[Run], way: "_Way", reading: Reading) -> None:
    for run in runs:
        # The first read of a run loads what the next ones use.
        position = await run.publish(AssistantMessage(message=text(300)))
        await reading.runs.history(run.run_id, min_offset=position.offset)
    async with asyncio.TaskGroup() as tasks:
        for number in range(EVENTS):
            tasks.create_task(_follow(runs[number % RUNS], way, reading))
            await asyncio.sleep(1 / A_SECOND)


async def _follow(run: Run, way: "_Way", reading: Reading) -> None:
    """Publishes one event, and reads it ahead of the projector, and again when it is stored."""
    began = time.perf_counter()
    position = await run.publish(AssistantMessage(message=text(300)))
    acknowledged = time.perf_counter()
    event = way.event(run, position.offset)
    history = await reading.runs.history(run.run_id, min_offset=position.offset)
    await history.event(position.offset)
    ahead = time.perf_counter()
    async with asyncio.timeout(30):
        inserted = await event["inserted"]
    asked = time.perf_counter()
    stored = await reading.stored_runs.find(run.run_id)
    assert stored is not None
    async for _ in stored.edition.pages.read(run.life.log_id, first_offset=position.offset):
        pass
    read = time.perf_counter()
    received, inserting = await event["received"], await event["inserting"]
    for name, seconds in (
        ("append", acknowledged - began),
        # The projector may be faster than the acknowledgement.
        ("fetch", max(0.0, received - acknowledged)),
        ("fold", inserting - received),
        ("insert", inserted - inserting),
        ("read", read - asked),
        ("read ahead", ahead - acknowledged),
    ):
        way.times[name].append(seconds)


class _Way:
    """The events on their way, and when each of them was where."""

    def __init__(self) -> None:
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self._saved: dict[str, float] = {}
        self._passed: defaultdict[str, list[tuple[int, str, float]]] = defaultdict(list)
        self._waiting: defaultdict[str, dict[int, dict[str, asyncio.Future[float]]]] = defaultdict(dict)

    def event(self, run: Run, offset: int) -> dict[str, "asyncio.Future[float]"]:
        """The times of an event, some of which may have been noted before it is asked for."""
        log_id, loop = run.life.log_id, asyncio.get_running_loop()
        names = ("received", "inserting", "inserted")
        event = self._waiting[log_id][offset] = {name: loop.create_future() for name in names}
        for end, name, at in self._passed[log_id]:
            _settle(event, offset, end, name, at)
        return event

    def note(self, log_id: str, end: int, name: str) -> None:
        """The log has come this far."""
        at = time.perf_counter()
        self._passed[log_id].append((end, name, at))
        for offset, event in self._waiting[log_id].items():
            _settle(event, offset, end, name, at)

    async def note_told(self, edition: Edition) -> None:
        async for key in edition.progress.positions():
            if key in self._saved:
                self.times["notify"].append(max(0.0, time.perf_counter() - self._saved.pop(key)))

    @contextmanager
    def observed(self) -> Iterator[None]:
        fetches: Callable[[Tail], AsyncIterator[list[FetchedRecords]]] = Tail.fetches
        insert = PageStore.insert

        async def noted_fetches(tail: Tail) -> AsyncIterator[list[FetchedRecords]]:
            async for parts in fetches(tail):
                for part in parts:
                    self.note(part.partition.topic.rpartition(".")[2], part.next_offset, "received")
                yield parts

        async def noted_insert(store: PageStore, pages: Iterable[Page]) -> set[str]:
            inserted = list(pages)
            for page in inserted:
                self.note(page.log_id, page.next_offset, "inserting")
            beaten = await insert(store, inserted)
            for page in inserted:
                self.note(page.log_id, page.next_offset, "inserted")
            return beaten

        save = SharedPositionStore.save_position

        async def noted_save(store: SharedPositionStore, at: Partition, *what: Any) -> None:
            await save(store, at, *what)
            self._saved[position_key(at)] = time.perf_counter()

        with (
            patch.object(Tail, "fetches", noted_fetches),
            patch.object(PageStore, "insert", noted_insert),
            patch.object(SharedPositionStore, "save_position", noted_save),
        ):
            yield


def _settle(event: dict[str, Any], offset: int, end: int, name: str, at: float) -> None:
    if end > offset and not event[name].done():
        event[name].set_result(at)
