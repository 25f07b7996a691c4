"""What a worker writes, in the order that makes a crash harmless: dead letters, pages, the ended life, the state.

Pages of one run are inserted one after the other, so what is stored never has a hole; those of many runs go together.
States are saved by a loop of their own, and so are small pages merged: new events wait for neither.
"""

import asyncio
import time
from collections.abc import Sequence

from prometheus_client import Counter

from runfold.log.catalog import life_record, partition_of
from runfold.log.publisher import Outgoing, Publisher
from runfold.projector.active import ActiveRun, Folded
from runfold.store.pages import MERGE_AT, PageStore
from runfold.store.runs import RunState, RunStore
from runfold_projections.admission import Admitted
from runfold_schemas.catalog import Life
from runfold_schemas.topics import Topics

_SAVE_SHARE = 0.2
"""Of the time, at the most, that saving states takes under load; reads fold what a state lacks from the pages."""

_BURIED = Counter(
    "runfold_dead_letters", "Records that this projector could not decode and kept as dead letters"
)

_SAVE_PAUSE_SECONDS = 0.25
"""Between two savings at the least: a run that gets an event every few milliseconds is one update, not many."""


class Writer:
    """`publisher` is None for a rebuild: what it folds was told to Kafka when it was first folded."""

    def __init__(self, topics: Topics, publisher: Publisher | None, pages: PageStore, runs: RunStore) -> None:
        self._topics = topics
        self._publisher = publisher
        self._pages = pages
        self._runs = runs
        self._unsaved: dict[str, RunState] = {}
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._mergeable: asyncio.Queue[ActiveRun] = asyncio.Queue()

    async def write(self, batch: Sequence[Folded]) -> list[ActiveRun]:
        """Writes what was folded; gives the runs where another worker was first, which must be loaded anew."""
        await self._bury([(one.run, bad) for one in batch for bad in one.undecodable])
        beaten: set[str] = set()
        for turn in range(max((len(one.pages) for one in batch), default=0)):
            pages = [
                one.pages[turn] for one in batch if turn < len(one.pages) and one.run.log_id not in beaten
            ]
            beaten |= await self._pages.insert(pages)
        written = [one for one in batch if one.run.log_id not in beaten]
        await self.announce_ended([one.run for one in written if one.ended])
        for one in written:
            self._unsaved[one.run.run_id] = one.state
        self._changed.set()
        return [one.run for one in batch if one.run.log_id in beaten]

    def wants_merge(self, run: ActiveRun) -> bool:
        return run.small_pages >= MERGE_AT

    def merge_soon(self, run: ActiveRun) -> None:
        run.small_pages = 0
        self._mergeable.put_nowait(run)

    async def merge_pages(self) -> None:
        """Endless: merges the runs that were named, one after the other. It may meet the writing of the same run: what is
        appended meanwhile stays beside the merged page.
        """
        while True:
            await self.merge(await self._mergeable.get())

    async def merge(self, run: ActiveRun) -> None:
        run.small_pages = 0
        run.merge_from = await self._pages.merge(run.log_id, first_offset=run.merge_from)

    async def announce_ended(self, runs: Sequence[ActiveRun]) -> None:
        """Tells publishers, by the catalog, that these lives are over."""
        for run in runs:
            life = Life(
                run_id=run.run_id,
                log_id=run.log_id,
                agent_id=run.record.agent_id,
                session_id=run.record.session_id,
                ended=True,
            )
            await self.announce(life)

    async def announce(self, life: Life) -> None:
        if self._publisher is None:
            return
        ack = await self._publisher.send(
            self._topics.catalog, life_record(life), partition=partition_of(life.run_id)
        )
        await self._publisher.wait(ack)

    async def save_states(self) -> None:
        """Endless: saves states as they change."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            await self.flush()
            took = time.monotonic() - began
            await asyncio.sleep(max(_SAVE_PAUSE_SECONDS, took * (1 / _SAVE_SHARE - 1)))

    async def flush(self) -> None:
        """Saves every state that has changed."""
        async with self._saving:
            states, self._unsaved = self._unsaved, {}
            await self._runs.save(states.values())

    async def _bury(self, undecodable: Sequence[tuple[ActiveRun, Admitted]]) -> None:
        if self._publisher is None:
            return
        acks = [
            await self._publisher.send(self._topics.dead_letters, dead_letter(run.topic, admitted))
            for run, admitted in undecodable
        ]
        for ack in acks:
            await self._publisher.wait(ack)
        _BURIED.inc(len(acks))


def dead_letter(topic: str, admitted: Admitted) -> Outgoing:
    """The record as it was, keyed by its origin: one that is buried again after a crash has the same key."""
    record = admitted.record
    return Outgoing(
        key=f"{topic}:{record.offset}".encode(),
        value=record.value,
        headers=[
            *record.headers,
            ("runfold-origin-topic", topic.encode()),
            ("runfold-origin-offset", str(record.offset).encode()),
            ("runfold-reason", admitted.reason.encode()),
        ],
    )
