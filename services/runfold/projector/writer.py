"""What a worker writes, in the order that makes a crash harmless: dead letters, pages, the ended life, the state.

Pages of one run are inserted one after the other, so what is stored never has a hole; those of many runs go together.
States are saved by a loop of their own, and so are small pages merged: new events wait for neither.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Counter

from runfold.log.catalog import life_record, partition_of
from runfold.log.publisher import Outgoing, Publisher
from runfold.projector.active import ActiveRun, Folded
from runfold.projector.forwarding import Forwarder
from runfold.store.pages import MERGE_AT, PageStore
from runfold.store.runs import RunState, RunStore
from runfold.store.state import Entry, StateStore, own_scope
from runfold_projections.admission import Admitted
from runfold_projections.state import Forward, Value
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
    """`told` is the generation before, in a rebuild: of what it has folded, dead letters and ends are known already."""

    def __init__(
        self,
        topics: Topics,
        publisher: Publisher,
        *,
        pages: PageStore,
        runs: RunStore,
        values: StateStore,
        forwarder: Forwarder,
        told: RunStore | None = None,
    ) -> None:
        self._topics = topics
        self._publisher = publisher
        self._pages = pages
        self._runs = runs
        self._values = values
        self._forwarder = forwarder
        self._told = told
        self._unsaved: dict[str, _Unsaved] = {}
        self._to_forward: dict[str, _Unsaved] = {}
        self._forwarding: dict[str, _Unsaved] = {}
        self._has_to_forward = asyncio.Event()
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._mergeable: asyncio.Queue[ActiveRun] = asyncio.Queue()

    async def write(self, batch: Sequence[Folded]) -> list[ActiveRun]:
        """Writes what was folded; gives the runs where another worker was first, which must be loaded anew."""
        await self._bury_of_runs([(one.run, bad) for one in batch for bad in one.undecodable])
        beaten: set[str] = set()
        for turn in range(max((len(one.pages) for one in batch), default=0)):
            pages = [
                one.pages[turn] for one in batch if turn < len(one.pages) and one.run.log_id not in beaten
            ]
            beaten |= await self._pages.insert(pages)
        written = [one for one in batch if one.run.log_id not in beaten]
        await self.announce_ended([one.run for one in written if one.ended])
        for one in written:
            self.save_soon(one)
        return [one.run for one in batch if one.run.log_id in beaten]

    def save_soon(self, folded: Folded) -> None:
        unsaved = self._unsaved.setdefault(folded.run.run_id, _Unsaved(folded.state))
        unsaved.add(folded.state, folded.values, folded.forwards)
        self._changed.set()

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
        told = await self._told_of(runs)
        for run in runs:
            if run.run_id not in told or not told[run.run_id].ended:
                await self.announce(run.state().life)

    async def announce(self, life: Life) -> None:
        ack = await self._publisher.send(
            self._topics.catalog, life_record(life), partition=partition_of(life.run_id)
        )
        await self._publisher.wait(ack)

    async def share(self, forward: Forward) -> None:
        """Publishes an event for `{prefix}.sessions`."""
        await self._forwarder.publish([forward])

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
        """Saves every state that has changed, but for those that wait for what is forwarded."""
        async with self._saving:
            unsaved, self._unsaved = self._unsaved, {}
            await self._values.save(
                Entry(own_scope(one.state.log_id), key, value)
                for one in unsaved.values()
                for key, value in one.values.items()
            )
            await self._clear_up(unsaved)
            ready = []
            for run_id, one in unsaved.items():
                if one.forwards or run_id in self._forwarding:
                    waiting = self._to_forward.setdefault(run_id, _Unsaved(one.state))
                    waiting.add(one.state, {}, one.forwards)
                    self._has_to_forward.set()
                else:
                    ready.append(one.state)
            await self._runs.save(ready)

    async def forward_changes(self) -> None:
        """Endless: forwards what changes shared state. A run's state is saved after it, so a crash forgets none of it."""
        while True:
            await self._has_to_forward.wait()
            self._has_to_forward.clear()
            self._forwarding, self._to_forward = self._to_forward, {}
            forwards = [forward for one in self._forwarding.values() for forward in one.forwards]
            await self._forwarder.forward(forwards)
            async with self._saving:
                await self._runs.save(one.state for one in self._forwarding.values())
                self._forwarding = {}

    async def forget(self, log_ids: Iterable[str]) -> None:
        """Removes the state that the logs of deleted runs decided."""
        await self._values.delete([own_scope(log_id) for log_id in log_ids])

    async def _clear_up(self, run_ids: Iterable[str]) -> None:
        """Removes what was written of runs that had been deleted before: whoever cleared up behind them may have done so
        already, and nobody would look for it again.
        """
        if log_ids := await self._runs.deleted_logs(run_ids):
            await self._pages.delete_logs(log_ids)
            await self.forget(log_ids)

    async def bury(self, undecodable: Sequence[tuple[str, Admitted]]) -> None:
        """Keeps as dead letters what could not be decoded, given with the name of where it was."""
        acks = [
            await self._publisher.send(self._topics.dead_letters, dead_letter(origin, admitted))
            for origin, admitted in undecodable
        ]
        for ack in acks:
            await self._publisher.wait(ack)
        _BURIED.inc(len(acks))

    async def _bury_of_runs(self, undecodable: Sequence[tuple[ActiveRun, Admitted]]) -> None:
        told = await self._told_of([run for run, _ in undecodable])
        await self.bury(
            [
                (run.topic, admitted)
                for run, admitted in undecodable
                if run.run_id not in told or told[run.run_id].record.next_offset <= admitted.record.offset
            ]
        )

    async def _told_of(self, runs: Sequence[ActiveRun]) -> Mapping[str, RunState]:
        """The runs as the generation before has them."""
        if self._told is None or not runs:
            return {}
        return await self._told.get_many([run.run_id for run in runs])


@dataclass(slots=True)
class _Unsaved:
    """What is to be saved of a run: its latest state, what its own keys hold since, and what is to be forwarded before."""

    state: RunState
    values: dict[str, Value] = field(default_factory=dict)
    forwards: list[Forward] = field(default_factory=list)

    def add(self, state: RunState, values: Mapping[str, Value], forwards: Sequence[Forward]) -> None:
        self.state = state
        self.values.update(values)
        self.forwards.extend(forwards)


def dead_letter(origin: str, admitted: Admitted) -> Outgoing:
    """The record as it was, keyed by its origin: one that is buried again after a crash has the same key."""
    record = admitted.record
    return Outgoing(
        key=f"{origin}:{record.offset}".encode(),
        value=record.value,
        headers=[
            *record.headers,
            ("runfold-origin-topic", origin.encode()),
            ("runfold-origin-offset", str(record.offset).encode()),
            ("runfold-reason", admitted.reason.encode()),
        ],
    )
