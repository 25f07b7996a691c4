"""The writes of a worker, in an order that makes a crash harmless: dead letters, pages, the ended
life, the state.

Pages of one run are inserted one after the other, so the stored pages never have a gap. Pages of
many runs are inserted together. Loops of their own save states and merge small pages, so new events
wait for neither.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from runfold.log.catalog import life_record, partition_of
from runfold.log.effect_keys import EffectKeys
from runfold.log.publisher import Publisher
from runfold.log.verdict_log import VerdictLog
from runfold.projector.active import ActiveRun, Folded, load
from runfold.projector.dead_letters import DeadLetterTopic, HasKeys
from runfold.projector.forwarding import Forwarder
from runfold.projector.quarantine import defect
from runfold.projector.safeguards import Safeguards
from runfold.projector.stuck import Steps
from runfold.projector.suspects import Suspect
from runfold.projector.unsaved import FORWARDS_BYTES_MAX, Forwarding, UnsavedRuns
from runfold.store.edition import Edition
from runfold.store.pages import MERGE_AT
from runfold.store.runs import RunState, RunStore
from runfold.store.state import Entry, own_scope
from runfold.telemetry.spans import work_span
from runfold_projections.admission import Admitted
from runfold_projections.state import Forward, Value
from runfold_schemas.catalog import Life
from runfold_schemas.errors import DamagedError
from runfold_schemas.topics import Partition, Topics

_QUIET_MERGE_AT = 8
"""A merge is three commands to MongoDB, which a short run with fewer pages is not worth."""

_SAVE_SHARE = 0.2
"""The share of the time that saving states takes under load. Reads fold the rest from the pages."""

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
    whose dead letters and ends are already published. `has_keys` says whether clients encrypt.
    """

    def __init__(
        self,
        topics: Topics,
        publisher: Publisher,
        stores: Edition,
        *,
        forwarder: Forwarder,
        safeguards: Safeguards,
        has_keys: HasKeys,
        effect_keys: EffectKeys | None = None,
        verdicts: VerdictLog | None = None,
        previous: RunStore | None = None,
    ) -> None:
        self._topics = topics
        self._publisher = publisher
        self._pages = stores.pages
        self._runs = stores.runs
        self._values = stores.values
        self._forwarder = forwarder
        self._suspects = safeguards.suspects
        self._skips = safeguards.skips
        self._effect_keys = effect_keys
        self._verdicts = verdicts
        self._previous = previous
        self._unsaved = UnsavedRuns()
        self._has_to_forward = asyncio.Event()
        self._changed = asyncio.Event()
        self._saving = asyncio.Lock()
        self._mergeable: asyncio.Queue[ActiveRun] = asyncio.Queue()
        self.saving, self.merging = Steps(), Steps()
        self._damaged: set[str] = set()
        self._dead_letters = DeadLetterTopic(topics, publisher, has_keys)

    async def write(self, batch: Sequence[Folded]) -> list[ActiveRun]:
        """Writes folded events. Returns the runs for which another worker was first; they must be
        loaded again. If an error arises, the runs that cause it are suspected.
        """
        try:
            return await self._write(batch)
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            defect(error)
        beaten: list[ActiveRun] = []
        for folded in batch:
            try:
                beaten += await self._write([folded])
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                self._suspect(folded.state, error)
        return beaten

    async def _write(self, batch: Sequence[Folded]) -> list[ActiveRun]:
        with work_span("write pages"):
            beaten = await self.write_pages(batch)
        for folded in batch:
            if folded.run.log_id not in beaten:
                self.save_soon(folded)
        return [folded.run for folded in batch if folded.run.log_id in beaten]

    async def write_pages(self, batch: Sequence[Folded]) -> set[str]:
        """Writes all of the folded events but states and values. Returns the logs for which another
        worker was first.
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
        await self.announce_ended(
            [folded.run for folded in batch if folded.ended and folded.run.log_id not in beaten]
        )
        return beaten

    async def save(self, folded: Folded) -> None:
        """Saves the values and the state of one run at once. Its forwards are durable already."""
        async with self._saving:
            await self._save([_Saved(folded.state, folded.values, folded.state)])

    def forwarding(self) -> dict[str, object]:
        """The runs whose changes wait to be forwarded: see `UnsavedRuns.forwarding`."""
        return self._unsaved.forwarding()

    def save_soon(self, folded: Folded) -> None:
        """Has the state saved by `save_states`. Not for a suspected run: unsaved data of its events
        before is forgotten, and the examination begins at the saved state.
        """
        if folded.state.run_id not in self._suspects:
            self._unsaved.add(folded)
            self._changed.set()

    def wants_merge(self, run: ActiveRun, *, is_quiet: bool = False) -> bool:
        """Whether the run has so many small pages that they should be merged. `is_quiet` says that
        no more are about to come.
        """
        return run.small_pages >= (_QUIET_MERGE_AT if is_quiet else MERGE_AT)

    def merge_soon(self, run: ActiveRun) -> None:
        """Has the pages merged by `merge_pages`."""
        run.small_pages = 0
        self._mergeable.put_nowait(run)

    async def merge_pages(self) -> None:
        """Endless: merges the pages of runs that `merge_soon` named, one run after the other. Pages
        that are inserted meanwhile stay beside the merged page.
        """
        while True:
            run = await self._mergeable.get()
            try:
                with self.merging.step():
                    await self.merge(run)
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                self._suspect(run.state(), error)

    async def merge(self, run: ActiveRun) -> None:
        run.small_pages = 0
        try:
            run.merge_from = await self._pages.merge(run.log_id, first_offset=run.merge_from)
        except DamagedError:
            # The pages stay as they are, and the worker folds the run anew.
            self._damaged.add(run.run_id)

    def take_damaged(self) -> set[str]:
        """The runs with damaged pages that a merge or a save met since the last call."""
        found, self._damaged = self._damaged, set()
        return found

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
                self._topics.catalog, life_record(life), partition=partition_of(self._topics, life.run_id)
            )
            for life in lives
        ]
        for ack in acks:
            await self._publisher.wait(ack)

    async def announce_deleted(self, lives: Sequence[Life]) -> None:
        """Publishes that these lives are deleted: the verdicts, and then to the catalog."""
        announced = await self._previous.deleted([life.run_id for life in lives]) if self._previous else {}
        new = [life for life in lives if announced.get(life.run_id) != life.log_id]
        if self._verdicts is not None:
            await self._verdicts.delete(new)
        # Compaction then removes the session and the user from the catalog.
        unnamed = {"deleted": True, "session_id": None, "user_id": None}
        await self.announce(life.model_copy(update=unnamed) for life in new)

    async def share(self, forward: Forward) -> None:
        """Publishes an event to the topic that decides it."""
        await self._forwarder.publish([forward])

    async def save_states(self) -> None:
        """Endless: saves states as they change."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            with self.saving.step(), work_span("save states"):
                await self.flush()
            await asyncio.sleep(_pause_after(time.monotonic() - began))

    async def flush(self) -> None:
        """Saves changed values, and each state without waiting forwards. A run that cannot be saved
        is suspected.
        """
        async with self._saving:
            # Values and states are taken at the same moment, so that no state is saved before the
            # values that its events set.
            unsaved = self._unsaved.all()
            saves = [_Saved(run.state, run.values, run.to_save, is_new=run.is_new) for run in unsaved]
            for run in unsaved:
                run.values, run.is_new = {}, False
            try:
                await self._save(saves)
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                defect(error)
                await self._save_each(saves)
            for run, saved in zip(unsaved, saves, strict=True):
                if saved.state is not None:
                    self._unsaved.mark_saved(run, saved.state)
        if self._unsaved.has_waiting:
            self._has_to_forward.set()

    async def _save(self, saves: Sequence["_Saved"]) -> None:
        await self._values.save(
            Entry(own_scope(saved.run.log_id), key, value)
            for saved in saves
            for key, value in saved.values.items()
        )
        await self._clear_up([saved.run.run_id for saved in saves if saved.is_new])
        await self._runs.save(saved.state for saved in saves if saved.state is not None)

    async def _save_each(self, saves: Sequence["_Saved"]) -> None:
        for saved in saves:
            try:
                await self._save([saved])
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                self._suspect(saved.run, error)

    def _suspect(self, state: RunState, error: Exception) -> None:
        """Has the run examined. Its unsaved data is folded again from its pages."""
        self._suspects.add(Suspect(state.run_id, state.log_id, defect(error)))
        self._unsaved.forget([state.log_id])

    async def discard(self, log_id: str) -> None:
        """Drops the unsaved data of a run, which is folded again from its pages."""
        async with self._saving:
            self._unsaved.forget([log_id])

    async def forward_changes(self) -> None:
        """Endless: forwards changes to the shared topics. A run's state is saved only afterwards,
        so a crash forgets no change.
        """
        while True:
            await self._has_to_forward.wait()
            self._has_to_forward.clear()
            waiting = self._unsaved.waiting()
            try:
                undecided = await self._forward(waiting)
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                defect(error)
                undecided = await self._forward_each(waiting)
            done = [forwarding for forwarding in waiting if forwarding.run.state.run_id not in undecided]
            self._unsaved.mark_forwarded(done)
            await self._fold_again()
            if done:
                self._changed.set()
            if undecided:
                await asyncio.sleep(_UNDECIDED_PAUSE_SECONDS)
                self._has_to_forward.set()

    async def _forward(self, waiting: Sequence[Forwarding]) -> set[str]:
        return await self._forwarder.forward(
            [forward for forwarding in waiting for forward in forwarding.forwards]
        )

    async def _forward_each(self, waiting: Sequence[Forwarding]) -> set[str]:
        """Forwards the changes of one run after the other. If this fails, the run is suspected."""
        undecided: set[str] = set()
        for forwarding in waiting:
            try:
                undecided |= await self._forward([forwarding])
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                state = forwarding.run.state
                self._suspect(state, error)
                undecided.add(state.run_id)
        return undecided

    async def _fold_again(self) -> None:
        """Folds again, from the pages, the events for whose forwards there was no room."""
        for unsaved in self._unsaved.to_fold_again():
            state = unsaved.state
            topic = self._topics.run(state.run_id, state.log_id)
            skipped = self._skips.of(Partition(topic, 0))
            try:
                run = await load(
                    self._pages,
                    state,
                    topic,
                    skipped=skipped,
                    effect_keys=self._effect_keys,
                    bytes_max=FORWARDS_BYTES_MAX // 4,
                )
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                self._suspect(state, error)
                continue
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
        if run_ids and (deleted := await self._runs.deleted_logs(run_ids)):
            shared = {run.log_id for run in await self._runs.with_logs(deleted)}
            log_ids = [log_id for log_id in deleted if log_id not in shared]
            await self._pages.delete_logs(log_ids)
            await self._forget_values(log_ids)
            self._unsaved.forget(log_ids)

    async def bury(self, undecodable: Sequence[tuple[str, Admitted]]) -> None:
        """Publishes dead letters for undecodable records, each with the name of its origin."""
        await self._dead_letters.bury(undecodable)

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


class _Saved(NamedTuple):
    """A part of a run that is saved together."""

    run: RunState
    values: Mapping[str, Value]
    state: RunState | None
    is_new: bool = True


def _pause_after(seconds: float) -> float:
    """The pause after a save that took `seconds`."""
    return min(max(_SAVE_PAUSE_SECONDS, seconds * (1 / _SAVE_SHARE - 1)), _SAVE_PAUSE_MAX_SECONDS)
