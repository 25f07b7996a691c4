"""A worker: tails the active runs of its catalog partitions, folds their records, and writes the
results.

    catalog --bell, life--> active runs --tail--> fold --> pages, states
                 ^                                  |
                 +---- ended lives <----------------+

A quiet run is parked and costs nothing; a bell or the sweep wakes it. Every error of Kafka or
MongoDB ends the worker. The service then starts a new worker, which loads everything from MongoDB.
There is no other recovery. Any other error concerns one run, one key or one record: see
`quarantine`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from runfold.blobs.store import BlobStore
from runfold.log.admin import LogAdmin
from runfold.log.catalog import partition_of
from runfold.log.ends import LogEnds
from runfold.log.tail import Tail
from runfold.log.verdicts import Verdicts
from runfold.projector.absent_shared_topics import AbsentSharedTopics
from runfold.projector.active import ActiveRun, Folded
from runfold.projector.awaited_logs import AwaitedLogs
from runfold.projector.backlog import Backlog
from runfold.projector.catalog import CatalogFold
from runfold.projector.clearing import Clearing
from runfold.projector.ended import EndedRuns
from runfold.projector.examination import Examination
from runfold.projector.fetched import fold_fetched
from runfold.projector.folded_events import FoldedEvents
from runfold.projector.holding import large
from runfold.projector.intake import Entry, Intake
from runfold.projector.mending import Mending
from runfold.projector.parking import Parking
from runfold.projector.progress import WorkerProgress
from runfold.projector.quarantine import defect
from runfold.projector.repeating import repeated
from runfold.projector.requests import Requests
from runfold.projector.safeguards import Safeguards
from runfold.projector.segments import RunSegments
from runfold.projector.sessions import SessionsTopic
from runfold.projector.shared import SharedTopics
from runfold.projector.suspects import Suspect
from runfold.projector.sweep import Sweep
from runfold.projector.watches import WorkerSteps, watches_of
from runfold.projector.whole_catalog import FollowCatalog
from runfold.projector.writer import Writer
from runfold.projector.writes import Writes
from runfold.settings import Settings
from runfold.store.edition import Edition
from runfold.store.quarantine import run_id_of
from runfold.store.runs import RunState
from runfold_schemas.catalog import Bell, Life, Segments, Skip
from runfold_schemas.topics import Partition, RunTopic, Topics

_LOADING_MAX = 16


class Worker:
    """One worker of one edition. `work` runs it."""

    def __init__(
        self,
        settings: Settings,
        *,
        admin: LogAdmin,
        tail: Tail,
        ends: LogEnds,
        writer: Writer,
        shared: SharedTopics,
        sessions: SessionsTopic,
        segments: RunSegments,
        stores: Edition,
        safeguards: Safeguards,
        examination: Examination,
        catalog: FollowCatalog,
        verdicts: Verdicts,
        blobs: BlobStore | None,
    ) -> None:
        self._settings = settings
        self._follow_catalog = catalog
        self._log_settings = settings.log("runfold/projector")
        self._topics = self._log_settings.topics
        self._admin = admin
        self._tail = tail
        self.ends = ends
        self._writer = writer
        self._shared = shared
        self._sessions = sessions
        self._segments = segments
        self._runs = stores.runs
        self._skips = safeguards.skips
        self._holding = safeguards.holding
        self._suspects = safeguards.suspects
        self._examination = examination
        self.quarantine = safeguards.quarantine
        settle = partial(verdicts.settle, leaders=ends.leaders)
        self._intake = Intake(self._log_settings, self.take_entries, safeguards=safeguards, settle=settle)
        self._requests = Requests(
            self._topics,
            stores,
            safeguards=safeguards,
            shared=shared,
            intake=self._intake,
            partitions=lambda: self._partitions,
        )
        self._writes = Writes(self._write)
        self._partitions: set[int] = set()
        self.is_assigned = False  # until the consumer group has said which partitions these are
        self._active: dict[str, ActiveRun] = {}
        self._by_topic: dict[str, ActiveRun] = {}
        awaited = AwaitedLogs(ends, segments, found=self._follow, rest=self._rest, set_aside=self._set_aside)
        self._backlog = Backlog(tail, awaited, set_aside=self._set_aside, park_seconds=settings.park_seconds)
        self._ended = EndedRuns(self._backlog, ends)
        self._sweep = Sweep(self._log_settings, ends, stores, writer)
        self._catalog = CatalogFold(self._topics, stores.runs, writer)
        self._mending = Mending(
            stores, self._log_settings, writer, segments.book, safeguards=safeguards, taken=self._take_mended
        )
        self.steps = WorkerSteps()
        self._clearing = Clearing(
            self._topics, admin, tail, writer, stores=stores, blobs=blobs, steps=self.steps.clearing
        )
        # Runs are activated and parked under this lock: no bell finds a run that is half parked.
        self._membership = asyncio.Lock()
        self._parking = Parking(
            settings,
            tail,
            ends,
            writer,
            stores.runs,
            ended=self._ended,
            membership=self._membership,
            steps=self.steps.parking,
            is_active=self._is_active,
            drop=self._drop,
            wake=self._wake,
        )
        self._tasks: asyncio.TaskGroup
        self._absent_topics = AbsentSharedTopics(shared.tail, ends, partitions=lambda: self._partitions)
        self.progress = WorkerProgress(self._active, self._backlog, shared, self._intake, stores.name)
        self.watches = watches_of(
            self.steps,
            writing=self._writes.waiting,
            tail=tail,
            shared=shared,
            absent_topics=self._absent_topics,
            writer=writer,
            backlog=self._backlog,
            suspects=self._suspects,
            requests=self._requests.doing,
            mending=self._mending.mending,
            progress=self.progress,
        )
        self.events, self.folded_events = 0, FoldedEvents()
        """The number of records folded and stored so far."""

    @property
    def partitions(self) -> set[int]:
        return self._partitions

    @property
    def active_runs(self) -> int:
        return len(self._active)

    @property
    def topics(self) -> Topics:
        """The topics of the worker, with their number of partitions."""
        return self._topics

    @property
    def is_busy(self) -> bool:
        """Whether it has loaded runs or any work to do, or has no partition yet."""
        busy = self._active or self._sweep.has_unannounced or any(watch.has_work for watch in self.watches)
        return bool(busy) or not self._partitions

    def tails(self, run_id: str) -> bool:
        """Whether the run is active here."""
        return run_id in self._active

    @property
    def backlog_runs(self) -> int:
        """Active runs that are not yet at the end of their log."""
        return len(self._backlog)

    async def work(self) -> None:
        """Endless. Raises `UnavailableError` (in a group) when Kafka or MongoDB fails."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._project())
            tasks.create_task(
                repeated("the search for logs", partial(self._backlog.find_logs, self._by_topic))
            )
            tasks.create_task(repeated("the look at ended runs", self._ended.look))
            tasks.create_task(self._shared.work())
            tasks.create_task(repeated("the look for shared topics", self._absent_topics.work))
            tasks.create_task(self._writer.save_states())
            tasks.create_task(self._writer.merge_pages())
            tasks.create_task(self._writer.forward_changes())
            tasks.create_task(repeated("parking", partial(self._parking.work, self._active.values())))
            tasks.create_task(repeated("the sweep", self._sweep_repeatedly))
            tasks.create_task(self._clearing.work())
            tasks.create_task(self._mending.work())
            tasks.create_task(self._suspects.examine(self._examine))
            tasks.create_task(self._requests.work())
            tasks.create_task(self._holding.tidy())
            async with self._follow_catalog(
                self.own,
                lambda *batch: self.steps.taking.run(self._intake.take(*batch)),
                self.progress.note_catalog,
            ) as failed:
                await failed

    # The catalog: which runs this worker owns, and which of them are active.

    async def own(self, partitions: set[int]) -> None:
        """The consumer group gives this worker these partitions of the catalog, and no others."""
        self._partitions, self.is_assigned = partitions, True
        self.progress.expect(self._topics.catalog, partitions)
        # Not awaited, because a rebalance must not wait until thousands of runs are loaded.
        changing = repeated("the change of partitions", self._change_ownership)
        self._intake.after = self._tasks.create_task(self.steps.taking.run(changing))

    async def _change_ownership(self) -> None:
        async with self._membership:
            # Another worker may have owned a partition meanwhile. It may have activated runs there
            # and deleted others.
            deleted = await self._runs.deleted(self._active)
            for run in list(self._active.values()):
                if run.catalog_partition not in self._partitions or deleted.get(run.run_id) == run.log_id:
                    self._drop(run)
            self._sweep.forget()
            await self.quarantine.load(self._partitions)
            await self._skips.load()
            inherited = await self._examination.inherit(self._partitions)
            self._intake.suspects = inherited
            suspects = await self._examination.suspects(inherited)
            self._suspects.add_all(each for each in suspects if each.run_id not in self._active)
            await self._shared.follow(self._partitions, inherited)
            await self._activate(await self._runs.active(self._partitions, except_for=self._active))

    async def take_entries(self, entries: Sequence[Entry]) -> None:
        lives = [(life, time) for life, time in entries if isinstance(life, Life)]
        async with self._membership:
            await self._requests.take_skips([skip for skip, _ in entries if isinstance(skip, Skip)])
            await self._take_segments([entry for entry, _ in entries if isinstance(entry, Segments)])
            taken = await self._catalog.take(lives)
            # A run that was added just now has no stored pages, so there is nothing to load.
            for state in taken.added:
                if self._is_free(state.run_id):
                    at = Partition(self._topics.run(state.run_id, state.log_id), 0)
                    keys, skipped = self._log_settings.effect_keys, self._skips.of(at)
                    self._follow(ActiveRun(state, at.topic, skipped=skipped, effect_keys=keys))
            await self._take_deleted(taken.deleted)
            await self._take_bells([entry.run_id for entry, _ in entries if isinstance(entry, Bell)])

    async def _take_segments(self, entries: Sequence[Segments]) -> None:
        late = await self._segments.take(entries)
        self._suspects.add_all(each for each in late if self._is_free(each.run_id))
        # A catalog of many runs may be read for longer than a topic may be missing.
        logs = {self._topics.run(entry.run_id, entry.log_id) for entry in entries}
        await self._wake(await self.quarantine.take_back(logs))

    def _is_free(self, run_id: str) -> bool:
        """Whether the run is neither in quarantine nor suspected."""
        return run_id not in self._suspects and not self.quarantine.has_run(run_id)

    async def _take_deleted(self, lives: Sequence[Life]) -> None:
        """Drops the runs with these lives and queues their data for deletion."""
        topics = self._topics
        for life in await self._runs.delete((life, partition_of(topics, life.run_id)) for life in lives):
            active = self._active.get(life.run_id)
            if active is not None and active.log_id == life.log_id:
                self._drop(active)
            if self.quarantine.has_run(life.run_id):
                await self.quarantine.release([run_id_of(life.run_id)], "the run was deleted")
            self._clearing.add(RunTopic(life.run_id, life.log_id))

    def _owns(self, run_id: str) -> bool:
        return partition_of(self._topics, run_id) in self._partitions

    async def _take_bells(self, run_ids: Iterable[str]) -> None:
        parked = set()
        for run_id in run_ids:
            if (run := self._active.get(run_id)) is not None:
                run.ring()
                self._ended.follow_again(run)
                self._tail.expect(run.at)
            else:
                parked.add(run_id)
        await self._wake(sorted(parked))

    async def _wake(self, run_ids: Sequence[str]) -> None:
        free = [run_id for run_id in run_ids if self._is_free(run_id)]
        if not free:
            return
        states = await self._runs.get_many(free)
        await self._runs.set_active(list(states), active=True)
        await self._activate(list(states.values()), rung=True)

    async def _activate(self, states: Sequence[RunState], *, rung: bool = False) -> None:
        slots = asyncio.Semaphore(_LOADING_MAX)

        async def activate(state: RunState) -> None:
            try:
                async with slots:
                    run = await self._mending.load(state)
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                self._suspects.add(Suspect(state.run_id, state.log_id, defect(error)))
                return
            if run is None:
                return
            if rung:
                run.ring()
            self._follow(run)

        await asyncio.gather(*(activate(state) for state in states if self._is_free(state.run_id)))

    def _follow(self, run: ActiveRun) -> None:
        if run.catalog_partition not in self._partitions:
            return  # another worker owns the run by now, and finds it in MongoDB or in a sweep
        if run.next_offset < self._segments.archived_end(run):
            self._drop(run)
            self._suspects.add(Suspect(run.run_id, run.log_id))
            return
        self._active[run.run_id] = self._by_topic[run.topic] = run
        self._backlog.add(run)

    async def _set_aside(self, run: ActiveRun, reason: str) -> None:
        async with self._membership:
            if self._is_active(run):
                offsets = range(run.next_offset, run.next_offset)
                await self.quarantine.set_aside_run(
                    run.run_id, run.at, offsets, reason, owner=run.catalog_partition
                )
                self._drop(run)

    async def _rest(self, run: ActiveRun) -> None:
        """Parks an archived run. If it has no topic, neither a bell nor a record can be missed."""
        await self._writer.flush()
        async with self._membership:
            if self._is_active(run):
                await self._runs.set_active([run.run_id], active=False)
                self._drop(run)

    def _is_active(self, run: ActiveRun) -> bool:
        return self._active.get(run.run_id) is run

    def _drop(self, run: ActiveRun) -> None:
        if self._is_active(run):
            self._backlog.remove(run)
            self._ended.remove(run)
            del self._active[run.run_id], self._by_topic[run.topic]

    # The runs' topics: fold and write.

    async def _project(self) -> None:
        """Endless. While batches are written, the next is fetched and folded."""
        async for fetch in self._tail.fetches():
            held = large(fetch)
            await self._holding.take(held)
            batch = await fold_fetched(
                fetch, self._by_topic, went_back=self._backlog.suspect, failed=self._suspect
            )
            await self._writes.begin(self._tasks, batch, done=partial(self._holding.let_go, held))
            self._backlog.find_caught_up()

    def _suspect(self, run: ActiveRun, error: Exception) -> None:
        self._drop(run)
        self._suspects.add(Suspect(run.run_id, run.log_id, defect(error)))

    async def _write(self, batch: Sequence[Folded]) -> None:
        current = [folded for folded in batch if self._is_active(folded.run)]
        beaten = await self._writer.write(current)
        self.events += self.folded_events.add(current, beaten=beaten, suspects=self._suspects)
        for folded in current:
            if folded.run.run_id in self._suspects:
                self._drop(folded.run)
            elif folded.run not in beaten:
                folded.run.stored_offset = folded.state.record.next_offset
                if folded.ended and self._is_active(folded.run):
                    self._ended.add(folded.run)
        for run in beaten:
            try:
                await self._reload(run)
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                self._suspect(run, error)
        for folded in current:
            if self._writer.wants_merge(folded.run, is_quiet=folded.ended):
                self._writer.merge_soon(folded.run)

    async def _examine(self, suspect: Suspect) -> None:
        run_id = suspect.run_id
        async with self._membership:
            if (active := self._active.get(run_id)) is not None:
                self._drop(active)
        await self._writes.settle()
        await self._writer.discard(suspect.log_id)
        goes_on = await self._examination.examine(suspect)
        async with self._membership:
            if goes_on and (suspect.is_requested or self.quarantine.has_run(run_id)):
                await self.quarantine.release([run_id_of(run_id)], "its records were folded")
            self._suspects.remove(run_id, goes_on=goes_on)
            await self._runs.set_active([run_id], active=goes_on)
            await self._activate(list((await self._runs.get_many([run_id])).values()))

    async def _reload(self, run: ActiveRun) -> None:
        """Loads a run again for which another worker was first. The pages of that worker hold the
        records of the log, so this worker goes on after them.
        """
        async with self._membership:
            if not self._is_active(run):
                return
            states = await self._runs.get_many([run.run_id])
            self._drop(run)
            await self._activate(list(states.values()))

    async def _take_mended(self, run_id: str) -> None:
        async with self._membership:
            if (run := self._active.get(run_id)) is not None:
                self._drop(run)
            await self._wake([run_id])

    # The sweep for records and runs that were not announced.

    async def _sweep_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            await self.steps.sweeping.run(self._sweep_once())

    async def _sweep_once(self) -> None:
        await self._sessions.delete_expired(self._partitions)
        topics = await self.ends.run_topics()
        own = {name: run for name, run in topics.items() if self._owns(run.run_id)}
        self.progress.run_topics = len(own)
        quiet = [name for name in own if name not in self._by_topic and self._is_free(own[name].run_id)]
        # Bells and new lives do not wait for this, so runs may be activated or parked meanwhile.
        findings = await self._sweep.look({name: own[name] for name in quiet}, partitions=self._partitions)
        async with self._membership:
            changed = [run_id for run_id in findings.changed if run_id not in self._active]
            await self._wake([*changed, *await self.quarantine.take_back(topics)])
        orphans = await self._sweep.announce(
            {name: run for name, run in findings.unknown.items() if run.run_id not in self._active}
        )
        for run in (*findings.deleted, *(findings.unknown[name] for name in orphans)):
            self._clearing.add(run)
        await self._admin.forbid_compression(own)
