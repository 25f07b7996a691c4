"""What a worker writes, in the order that makes a crash harmless: dead letters, pages, the ended
life, the state.

Pages of one run are inserted one after the other, so what is stored never has a hole; those of many
runs go together. States are saved by a loop of their own, and so are small pages merged: new events
wait for neither.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import Counter

from runfold.log.catalog import life_record, partition_of
from runfold.log.publisher import Outgoing, Publisher, record_size
from runfold.projector.active import ActiveRun, Folded, load
from runfold.projector.forwarding import Forwarder
from runfold.projector.unsaved import FORWARDS_BYTES_MAX, UnsavedRuns
from runfold.store.edition import Edition
from runfold.store.pages import MERGE_AT
from runfold.store.runs import RunState, RunStore
from runfold.store.state import Entry, own_scope
from runfold_projections.admission import Admitted
from runfold_projections.state import Forward
from runfold_schemas.catalog import Life
from runfold_schemas.topics import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX, Topics

_SAVE_SHARE = 0.2
"""Of the time that saving states takes under load; reads fold what a state lacks from the pages."""

_BURIED = Counter(
    "runfold_dead_letters", "Records that this projector could not decode and kept as dead letters"
)

_SAVE_PAUSE_SECONDS = 0.25
"""Between two savings at the least: a run that gets an event every few milliseconds is one update,
not many.
"""

_SAVE_PAUSE_MAX_SECONDS = 10.0
"""A saving that took a minute was hardly under load: the process had been stopped, or MongoDB was
away.
"""

_UNDECIDED_PAUSE_SECONDS = 0.1
"""Before it is looked again for what says whether a change is to be forwarded."""


class Writer:
    """`previous` is the store of the edition before this one, in a rebuild: of what it has folded,
    dead letters and ends are known already.
    """

    def __init__(
        self,
        topics: Topics,
        publisher: Publisher,
        stores: Edition,
        *,
        forwarder: Forwarder,
        previous: RunStore | None = None,
    ) -> None:
        self._topics = topics
        self._publisher = publisher
        self._pages = stores.pages
        self._runs = stores.runs
        self._values = stores.values
        self._forwarder = forwarder
        self._previous = previous
        self._unsaved = UnsavedRuns()
        self._has_to_forward = asyncio.Event()
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._mergeable: asyncio.Queue[ActiveRun] = asyncio.Queue()

    async def write(self, batch: Sequence[Folded]) -> list[ActiveRun]:
        """Writes what was folded; gives the runs where another worker was first, which must be
        loaded anew.
        """
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
        self._unsaved.add(folded)
        self._changed.set()

    def wants_merge(self, run: ActiveRun) -> bool:
        return run.small_pages >= MERGE_AT

    def merge_soon(self, run: ActiveRun) -> None:
        run.small_pages = 0
        self._mergeable.put_nowait(run)

    async def merge_pages(self) -> None:
        """Endless: merges the runs that were named, one after the other. It may meet the writing of
        the same run: what is appended meanwhile stays beside the merged page.
        """
        while True:
            await self.merge(await self._mergeable.get())

    async def merge(self, run: ActiveRun) -> None:
        run.small_pages = 0
        run.merge_from = await self._pages.merge(run.log_id, first_offset=run.merge_from)

    async def announce_ended(self, runs: Sequence[ActiveRun]) -> None:
        """Tells publishers, by the catalog, that these lives are over. Of one that was deleted that
        is the last word.
        """
        if runs:
            told = await self._told_of(runs)
            deleted = await self._runs.deleted_logs([run.run_id for run in runs])
            await self.announce(
                run.state().life
                for run in runs
                if run.log_id not in deleted and (run.run_id not in told or not told[run.run_id].ended)
            )

    async def announce(self, lives: Iterable[Life]) -> None:
        acks = [
            await self._publisher.send(
                self._topics.catalog, life_record(life), partition=partition_of(life.run_id)
            )
            for life in lives
        ]
        for ack in acks:
            await self._publisher.wait(ack)

    async def announce_deleted(self, lives: Sequence[Life]) -> None:
        told = await self._previous.deleted([life.run_id for life in lives]) if self._previous else {}
        await self.announce(
            life.model_copy(update={"deleted": True})
            for life in lives
            if told.get(life.run_id) != life.log_id
        )

    async def share(self, forward: Forward) -> None:
        """Publishes an event to the topic that decides it."""
        await self._forwarder.publish([forward])

    async def save_states(self) -> None:
        """Endless: saves states as they change."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            await self.flush()
            await asyncio.sleep(_pause_after(time.monotonic() - began))

    async def flush(self) -> None:
        """Saves what has changed: values, and each state that waits for nothing that is to be
        forwarded.
        """
        async with self._saving:
            # Taken at one moment: a state is never saved before the values that its events set.
            unsaved = self._unsaved.all()
            values = [
                Entry(own_scope(one.state.log_id), key, value)
                for one in unsaved
                for key, value in one.values.items()
            ]
            states = [(one, state) for one in unsaved if (state := one.to_save) is not None]
            written = [one.state.run_id for one in unsaved if one.is_new]
            for one in unsaved:
                one.values, one.is_new = {}, False
            await self._values.save(values)
            await self._clear_up(written)
            await self._runs.save(state for _, state in states)
            for one, state in states:
                self._unsaved.saved(one, state)
        if self._unsaved.has_waiting:
            self._has_to_forward.set()

    async def forward_changes(self) -> None:
        """Endless: forwards what changes shared state. A run's state is saved after it, so a crash
        forgets none of it.
        """
        while True:
            await self._has_to_forward.wait()
            self._has_to_forward.clear()
            waiting = self._unsaved.waiting()
            undecided = await self._forwarder.forward(
                [forward for part in waiting for forward in part.forwards]
            )
            done = [part for part in waiting if part.one.state.run_id not in undecided]
            self._unsaved.forwarded(done)
            await self._fold_again()
            if done:
                self._changed.set()
            if undecided:
                await asyncio.sleep(_UNDECIDED_PAUSE_SECONDS)
                self._has_to_forward.set()

    async def _fold_again(self) -> None:
        """Takes up, from the pages, what there was no room for."""
        for one in self._unsaved.to_fold_again():
            state = one.state
            topic = self._topics.run(state.run_id, state.log_id)
            run = await load(self._pages, state, topic, bytes_max=FORWARDS_BYTES_MAX // 4)
            if one.state is state and run.next_offset > state.record.next_offset:
                self._unsaved.go_on(one, run.folded())
                self._changed.set()

    async def forget(self, log_ids: Sequence[str]) -> None:
        """Leaves of deleted runs nothing to be saved, and removes the state that their logs
        decided.
        """
        async with self._saving:
            self._unsaved.forget(log_ids)
            await self._forget_values(log_ids)

    async def _forget_values(self, log_ids: Iterable[str]) -> None:
        await self._values.delete([own_scope(log_id) for log_id in log_ids])

    async def _clear_up(self, run_ids: Sequence[str]) -> None:
        """Removes what was written of runs that had been deleted before: whoever cleared up behind
        them may have done so already, and nobody would look for it again.
        """
        if run_ids and (log_ids := await self._runs.deleted_logs(run_ids)):
            await self._pages.delete_logs(log_ids)
            await self._forget_values(log_ids)
            self._unsaved.forget(log_ids)

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
        """The runs as the edition before has them."""
        if self._previous is None or not runs:
            return {}
        return await self._previous.get_many([run.run_id for run in runs])


def _pause_after(seconds: float) -> float:
    """After a saving that took so long."""
    return min(max(_SAVE_PAUSE_SECONDS, seconds * (1 / _SAVE_SHARE - 1)), _SAVE_PAUSE_MAX_SECONDS)


def dead_letter(origin: str, admitted: Admitted) -> Outgoing:
    """The record as it was, keyed by its origin: one that is buried again after a crash has the
    same key.

    One that came compressed may be too large to be sent as it is: it is cut, and its origin has all
    of it.
    """
    record = admitted.record
    told = [
        ("runfold-origin-topic", origin.encode()),
        ("runfold-origin-offset", str(record.offset).encode()),
        ("runfold-reason", admitted.reason.encode()),
    ]
    key = f"{origin}:{record.offset}".encode()
    whole = Outgoing(key=key, value=record.value, headers=[*record.headers, *told])
    if record_size(whole) <= DEAD_LETTER_BYTES_MAX:
        return whole
    value = (record.value or b"")[:RECORD_BYTES_MAX]
    return Outgoing(key=key, value=value, headers=[*told, ("runfold-cut", b"true")])
