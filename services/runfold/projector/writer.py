"""The writes of a worker, in an order that makes a crash harmless: dead letters, pages, the ended
life, the state.

Pages of one run are inserted one after the other, so the stored pages never have a gap. Pages of
many runs are inserted together. Loops of their own save states and merge small pages, so new events
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
"""The share of the time that saving states takes under load. Reads fold the rest from the pages."""

_BURIED = Counter(
    "runfold_dead_letters", "Records that this projector could not decode and kept as dead letters"
)

_SAVE_PAUSE_SECONDS = 0.25
"""The shortest pause between two saves, so that many events of a run become one update."""

_SAVE_PAUSE_MAX_SECONDS = 10.0
"""The longest pause between two saves. A save of a minute does not mean load: the process was
stopped, or MongoDB was away.
"""

_UNDECIDED_PAUSE_SECONDS = 0.1
"""The pause before changes are tried again whose session may belong to another run."""


class Writer:
    """Writes for one worker. In a rebuild, `previous` has the runs of the edition before this one,
    whose dead letters and ends are already published.
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
        """Writes folded events. Returns the runs for which another worker was first; they must be
        loaded again.
        """
        await self._bury_of_runs([(folded.run, bad) for folded in batch for bad in folded.undecodable])
        beaten: set[str] = set()
        for turn in range(max((len(folded.pages) for folded in batch), default=0)):
            pages = [
                folded.pages[turn]
                for folded in batch
                if turn < len(folded.pages) and folded.run.log_id not in beaten
            ]
            beaten |= await self._pages.insert(pages)
        written = [folded for folded in batch if folded.run.log_id not in beaten]
        await self.announce_ended([folded.run for folded in written if folded.ended])
        for folded in written:
            self.save_soon(folded)
        return [folded.run for folded in batch if folded.run.log_id in beaten]

    def save_soon(self, folded: Folded) -> None:
        """Has the state saved by `save_states`."""
        self._unsaved.add(folded)
        self._changed.set()

    def wants_merge(self, run: ActiveRun) -> bool:
        return run.small_pages >= MERGE_AT

    def merge_soon(self, run: ActiveRun) -> None:
        """Has the pages merged by `merge_pages`."""
        run.small_pages = 0
        self._mergeable.put_nowait(run)

    async def merge_pages(self) -> None:
        """Endless: merges the pages of runs that `merge_soon` named, one run after the other. Pages
        that are inserted meanwhile stay beside the merged page.
        """
        while True:
            await self.merge(await self._mergeable.get())

    async def merge(self, run: ActiveRun) -> None:
        run.small_pages = 0
        run.merge_from = await self._pages.merge(run.log_id, first_offset=run.merge_from)

    async def announce_ended(self, runs: Sequence[ActiveRun]) -> None:
        """Announces in the catalog that these runs have ended. Skips deleted runs, because their
        deletion is the last record of them.
        """
        if runs:
            previous = await self._previous_states(runs)
            deleted = await self._runs.deleted_logs([run.run_id for run in runs])
            await self.announce(
                run.state().life
                for run in runs
                if run.log_id not in deleted
                and (run.run_id not in previous or not previous[run.run_id].ended)
            )

    async def announce(self, lives: Iterable[Life]) -> None:
        """Publishes lives to the catalog."""
        acks = [
            await self._publisher.send(
                self._topics.catalog, life_record(life), partition=partition_of(life.run_id)
            )
            for life in lives
        ]
        for ack in acks:
            await self._publisher.wait(ack)

    async def announce_deleted(self, lives: Sequence[Life]) -> None:
        """Publishes to the catalog that these lives are deleted."""
        announced = await self._previous.deleted([life.run_id for life in lives]) if self._previous else {}
        await self.announce(
            life.model_copy(update={"deleted": True})
            for life in lives
            if announced.get(life.run_id) != life.log_id
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
        """Saves changed values, and each state without waiting forwards."""
        async with self._saving:
            # Values and states are taken at the same moment, so that no state is saved before the
            # values that its events set.
            unsaved = self._unsaved.all()
            values = [
                Entry(own_scope(run.state.log_id), key, value)
                for run in unsaved
                for key, value in run.values.items()
            ]
            states = [(run, state) for run in unsaved if (state := run.to_save) is not None]
            written = [run.state.run_id for run in unsaved if run.is_new]
            for run in unsaved:
                run.values, run.is_new = {}, False
            await self._values.save(values)
            await self._clear_up(written)
            await self._runs.save(state for _, state in states)
            for run, state in states:
                self._unsaved.mark_saved(run, state)
        if self._unsaved.has_waiting:
            self._has_to_forward.set()

    async def forward_changes(self) -> None:
        """Endless: forwards changes to the shared topics. A run's state is saved only afterwards,
        so a crash forgets no change.
        """
        while True:
            await self._has_to_forward.wait()
            self._has_to_forward.clear()
            waiting = self._unsaved.waiting()
            undecided = await self._forwarder.forward(
                [forward for forwarding in waiting for forward in forwarding.forwards]
            )
            done = [forwarding for forwarding in waiting if forwarding.run.state.run_id not in undecided]
            self._unsaved.mark_forwarded(done)
            await self._fold_again()
            if done:
                self._changed.set()
            if undecided:
                await asyncio.sleep(_UNDECIDED_PAUSE_SECONDS)
                self._has_to_forward.set()

    async def _fold_again(self) -> None:
        """Folds again, from the pages, the events for whose forwards there was no room."""
        for unsaved in self._unsaved.to_fold_again():
            state = unsaved.state
            topic = self._topics.run(state.run_id, state.log_id)
            run = await load(self._pages, state, topic, bytes_max=FORWARDS_BYTES_MAX // 4)
            if unsaved.state is state and run.next_offset > state.record.next_offset:
                self._unsaved.extend(unsaved, run.folded())
                self._changed.set()

    async def forget(self, log_ids: Sequence[str]) -> None:
        """Drops the unsaved data of deleted runs, and deletes their own state."""
        async with self._saving:
            self._unsaved.forget(log_ids)
            await self._forget_values(log_ids)

    async def _forget_values(self, log_ids: Iterable[str]) -> None:
        await self._values.delete([own_scope(log_id) for log_id in log_ids])

    async def _clear_up(self, run_ids: Sequence[str]) -> None:
        """Deletes the data that was just written for runs that were deleted before. The worker that
        deleted them may be done already, and no worker would find the data again.
        """
        if run_ids and (log_ids := await self._runs.deleted_logs(run_ids)):
            await self._pages.delete_logs(log_ids)
            await self._forget_values(log_ids)
            self._unsaved.forget(log_ids)

    async def bury(self, undecodable: Sequence[tuple[str, Admitted]]) -> None:
        """Publishes dead letters for undecodable records, each with the name of its origin."""
        acks = [
            await self._publisher.send(self._topics.dead_letters, dead_letter(origin, admitted))
            for origin, admitted in undecodable
        ]
        for ack in acks:
            await self._publisher.wait(ack)
        _BURIED.inc(len(acks))

    async def _bury_of_runs(self, undecodable: Sequence[tuple[ActiveRun, Admitted]]) -> None:
        previous = await self._previous_states([run for run, _ in undecodable])
        await self.bury(
            [
                (run.topic, admitted)
                for run, admitted in undecodable
                if run.run_id not in previous
                or previous[run.run_id].record.next_offset <= admitted.record.offset
            ]
        )

    async def _previous_states(self, runs: Sequence[ActiveRun]) -> Mapping[str, RunState]:
        """The states of the runs in the previous edition, by run id."""
        if self._previous is None or not runs:
            return {}
        return await self._previous.get_many([run.run_id for run in runs])


def _pause_after(seconds: float) -> float:
    """The pause after a save that took `seconds`."""
    return min(max(_SAVE_PAUSE_SECONDS, seconds * (1 / _SAVE_SHARE - 1)), _SAVE_PAUSE_MAX_SECONDS)


def dead_letter(origin: str, admitted: Admitted) -> Outgoing:
    """The dead letter of a record: the unchanged record with its origin as the key. So copies that
    are published after a crash have the same key.

    A record that was compressed may be too large to be sent again. Then its value is cut; the
    origin still has the whole record.
    """
    record = admitted.record
    own_headers = [
        ("runfold-origin-topic", origin.encode()),
        ("runfold-origin-offset", str(record.offset).encode()),
        ("runfold-reason", admitted.reason.encode()),
    ]
    key = f"{origin}:{record.offset}".encode()
    whole = Outgoing(key=key, value=record.value, headers=[*record.headers, *own_headers])
    if record_size(whole) <= DEAD_LETTER_BYTES_MAX:
        return whole
    value = (record.value or b"")[:RECORD_BYTES_MAX]
    return Outgoing(key=key, value=value, headers=[*own_headers, ("runfold-cut", b"true")])
