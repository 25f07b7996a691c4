"""A worker: tails the active runs of its catalog partitions, folds their records, and writes the
results.

    catalog --bell, life--> active runs --tail--> fold --> pages, states
                 ^                                  |
                 +---- ended lives <----------------+

A quiet run is parked and costs nothing; a bell or the sweep wakes it. Every error of Kafka or
MongoDB ends the worker. The service then starts a new worker, which loads everything from MongoDB.
There is no other recovery.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from runfold.log.admin import LogAdmin
from runfold.log.catalog import partition_of
from runfold.log.catalog_group import Entry, catalog_group
from runfold.log.ends import LogEnds
from runfold.log.publisher import Publisher
from runfold.log.tail import STEADY_FETCH_WAIT_MS, FetchedRecords, Tail
from runfold.projector.active import ActiveRun, Folded, load
from runfold.projector.catalog import CatalogFold
from runfold.projector.forwarding import Forwarder
from runfold.projector.memories import BanksTopic, MemoriesTopic
from runfold.projector.sessions import SessionsTopic
from runfold.projector.shared import SharedTopics, TopicFold
from runfold.projector.sweep import Sweep
from runfold.projector.writer import Writer
from runfold.settings import Settings
from runfold.store.database import Database
from runfold.store.edition import Edition
from runfold.store.runs import RunState
from runfold_schemas.catalog import Bell, Life
from runfold_schemas.topics import Partition, RunTopic, Topics

_CATCHING_UP_MAX = 200
"""The number of runs with a backlog that are tailed at once. Every fetch names all topics, so more
runs make each fetch slower.
"""

_UNBROKEN_MAX = 500
"""The number of records that are folded without a pause: about 10 ms. The records of one run in a
fetch are always folded without a pause.
"""

_CAUGHT_UP_LAG = 500
_LOADING_MAX = 16
_PARKING_MAX = 50
_CLEARING_MAX = 100
_PARK_LOOK_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Worker:
    """One worker of one edition. `work` runs it."""

    def __init__(
        self,
        settings: Settings,
        edition: str,
        *,
        admin: LogAdmin,
        tail: Tail,
        ends: LogEnds,
        writer: Writer,
        shared: SharedTopics,
        sessions: SessionsTopic,
        stores: Edition,
    ) -> None:
        self._settings = settings
        self._edition = edition
        self._log_settings = settings.log("runfold/projector")
        self._topics = Topics(settings.prefix)
        self._admin = admin
        self._tail = tail
        self._ends = ends
        self._writer = writer
        self._shared = shared
        self._sessions = sessions
        self._pages = stores.pages
        self._runs = stores.runs
        self._partitions: set[int] = set()
        self._active: dict[str, ActiveRun] = {}
        self._by_topic: dict[str, ActiveRun] = {}
        self._backlog: deque[ActiveRun] = deque()
        self._catching_up: set[str] = set()
        self._sweep = Sweep(self._log_settings, ends, stores, writer)
        self._catalog = CatalogFold(self._topics, stores.runs, writer)
        self._deleted: asyncio.Queue[RunTopic] = asyncio.Queue()
        # Runs are activated and parked under this lock, so that a bell never finds a run that is
        # half parked.
        self._membership = asyncio.Lock()
        self._tasks: asyncio.TaskGroup
        self.events = 0
        """The number of records folded and stored so far."""

    @property
    def partitions(self) -> set[int]:
        return self._partitions

    @property
    def active_runs(self) -> int:
        return len(self._active)

    def tails(self, run_id: str) -> bool:
        """Whether the run is active here."""
        return run_id in self._active

    @property
    def backlog_runs(self) -> int:
        """Active runs that are not yet at the end of their log."""
        return len(self._backlog) + len(self._catching_up)

    async def work(self) -> None:
        """Endless. Raises `UnavailableError` (in a group) when Kafka or MongoDB fails."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._project())
            tasks.create_task(self._shared.work())
            tasks.create_task(self._writer.save_states())
            tasks.create_task(self._writer.merge_pages())
            tasks.create_task(self._writer.forward_changes())
            tasks.create_task(self._park_quiet())
            tasks.create_task(self._sweep_repeatedly())
            tasks.create_task(self._clear_deleted())
            async with catalog_group(
                self._settings.log(),
                f"projector.{self._edition}",
                member_id=self._settings.worker_id,
                session_timeout_seconds=self._settings.session_timeout_seconds,
                on_assigned=self.own,
                on_entries=self._take_entries,
            ):
                await asyncio.Event().wait()

    # The catalog: which runs this worker owns, and which of them are active.

    async def own(self, partitions: set[int]) -> None:
        """The consumer group gives this worker these partitions of the catalog, and no others."""
        self._partitions = partitions
        # Not awaited, because a rebalance must not wait until thousands of runs are loaded.
        self._tasks.create_task(self._change_ownership())

    async def _change_ownership(self) -> None:
        async with self._membership:
            # Another worker may have owned a partition meanwhile. It may have activated runs there
            # and deleted others.
            deleted = await self._runs.deleted(self._active)
            for run in list(self._active.values()):
                if run.catalog_partition not in self._partitions or deleted.get(run.run_id) == run.log_id:
                    self._drop(run)
            await self._shared.follow(self._partitions)
            await self._activate(await self._runs.active(self._partitions, except_for=self._active))

    async def _take_entries(self, entries: Sequence[Entry]) -> None:
        lives = [(life, time) for life, time in entries if isinstance(life, Life)]
        async with self._membership:
            taken = await self._catalog.take(lives)
            # A run that was added just now has no stored pages, so there is nothing to load.
            for state in taken.added:
                self._follow(ActiveRun(state, self._topics.run(state.run_id, state.log_id)))
            await self._take_deleted(taken.deleted)
            await self._take_bells([entry.run_id for entry, _ in entries if isinstance(entry, Bell)])

    async def _take_deleted(self, lives: Sequence[Life]) -> None:
        """Drops the runs with these lives and queues their data for deletion."""
        for life in await self._runs.delete((life, partition_of(life.run_id)) for life in lives):
            active = self._active.get(life.run_id)
            if active is not None and active.log_id == life.log_id:
                self._drop(active)
            self._deleted.put_nowait(RunTopic(life.run_id, life.log_id))

    async def _take_bells(self, run_ids: Iterable[str]) -> None:
        parked = set()
        for run_id in run_ids:
            if run_id in self._active:
                self._active[run_id].ring()
            else:
                parked.add(run_id)
        await self._wake(sorted(parked))

    async def _wake(self, run_ids: Sequence[str]) -> None:
        if not run_ids:
            return
        states = await self._runs.get_many(run_ids)
        await self._runs.set_active(list(states), active=True)
        await self._activate(list(states.values()), rung=True)

    async def _activate(self, states: Sequence[RunState], *, rung: bool = False) -> None:
        slots = asyncio.Semaphore(_LOADING_MAX)

        async def activate(state: RunState) -> None:
            async with slots:
                run = await self._load(state)
            if rung:
                run.ring()
            self._follow(run)

        await asyncio.gather(*(activate(state) for state in states))

    async def _load(self, state: RunState) -> ActiveRun:
        run = await load(self._pages, state, self._topics.run(state.run_id, state.log_id))
        if run.next_offset > state.record.next_offset:
            # The last worker died after the pages and before the state. The run may get no further
            # event that would save it.
            self._writer.save_soon(run.folded())
        if run.admission.ended and not state.ended:
            await self._writer.announce_ended([run])
        return run

    def _follow(self, run: ActiveRun) -> None:
        if run.catalog_partition not in self._partitions:
            return  # another worker owns the run by now, and finds it in MongoDB or in a sweep
        self._active[run.run_id] = self._by_topic[run.topic] = run
        self._backlog.append(run)
        self._feed_tail()

    def _drop(self, run: ActiveRun) -> None:
        if self._active.get(run.run_id) is run:
            self._tail.unfollow(run.at)
            self._catching_up.discard(run.run_id)
            del self._active[run.run_id], self._by_topic[run.topic]

    def _feed_tail(self) -> None:
        room = _CATCHING_UP_MAX - len(self._catching_up)
        if room < min(len(self._backlog), _CATCHING_UP_MAX // 2):
            # Following further partitions discards the fetch under way, so a long backlog is
            # followed in large portions.
            return
        while self._backlog and len(self._catching_up) < _CATCHING_UP_MAX:
            run = self._backlog.popleft()
            if self._active.get(run.run_id) is run:
                self._catching_up.add(run.run_id)
                self._tail.follow(run.at, run.next_offset)

    # The runs' topics: fold and write.

    async def _project(self) -> None:
        """Endless. While one batch is written, the next is fetched and folded."""
        writing: asyncio.Task[None] | None = None
        async for fetch in self._tail.fetches():
            batch = await self._fold(fetch)
            if writing is not None:
                await writing
            writing = self._tasks.create_task(self._write(batch)) if batch else None
            await self._find_caught_up()

    async def _fold(self, fetch: Sequence[FetchedRecords]) -> list[Folded]:
        # The runs of the records are looked up before the first pause. A run that is loaded again
        # during a pause begins at another offset.
        parts = [(part, self._by_topic.get(part.partition.topic)) for part in fetch]
        batch = []
        unbroken = 0
        for part, run in parts:
            if run is not None and part.next_offset > run.next_offset:
                position = run.next_offset
                records = [record for record in part.records if record.offset >= position]
                batch.append(run.take(records, next_offset=part.next_offset))
                unbroken += len(records)
                if unbroken >= _UNBROKEN_MAX:
                    # Other tasks, for example the next fetch, get a turn.
                    await asyncio.sleep(0)
                    unbroken = 0
        return batch

    async def _write(self, batch: Sequence[Folded]) -> None:
        current = [folded for folded in batch if self._active.get(folded.run.run_id) is folded.run]
        beaten = await self._writer.write(current)
        for folded in current:
            if folded.run not in beaten:
                folded.run.stored_offset = folded.state.record.next_offset
                self.events += sum(page.count for page in folded.pages)
        for run in beaten:
            await self._reload(run)
        for folded in current:
            if self._writer.wants_merge(folded.run) or (folded.ended and folded.run.small_pages > 1):
                self._writer.merge_soon(folded.run)

    async def _reload(self, run: ActiveRun) -> None:
        """Loads a run again for which another worker was first. The pages of that worker hold the
        records of the log, so this worker goes on after them.
        """
        async with self._membership:
            if self._active.get(run.run_id) is not run:
                return
            states = await self._runs.get_many([run.run_id])
            self._drop(run)
            await self._activate(list(states.values()))

    async def _find_caught_up(self) -> None:
        for run_id in list(self._catching_up):
            run = self._active[run_id]
            end = self._tail.end(run.at)
            if end is None or end - run.next_offset > (_CAUGHT_UP_LAG if run.max_time else 0):
                continue
            self._catching_up.discard(run_id)
            if not run.bells and time.time() - run.max_time / 1000 > self._settings.park_seconds:
                run.quiet_since = float("-inf")
        self._feed_tail()

    # Parking, and the sweep for records and runs that were not announced.

    async def _park_quiet(self) -> None:
        while True:
            await asyncio.sleep(min(_PARK_LOOK_SECONDS, self._settings.park_seconds / 4))
            before = time.monotonic() - self._settings.park_seconds
            quiet = [
                run for run in self._active.values() if run.quiet_since < before and self._is_stored(run)
            ]
            # A few at a time, so that what a bell wakes or the catalog brings does not wait for all
            # of them.
            for begin in range(0, len(quiet), _PARKING_MAX):
                group = quiet[begin : begin + _PARKING_MAX]
                await self._writer.flush()
                async with self._membership:
                    await self._park(
                        [
                            run
                            for run in group
                            if self._active.get(run.run_id) is run and run.quiet_since < before
                        ]
                    )

    def _is_stored(self, run: ActiveRun) -> bool:
        end = self._tail.end(run.at)
        return end is not None and end <= run.stored_offset

    async def _park(self, runs: Sequence[ActiveRun]) -> None:
        """Parks the runs, and takes back those whose log went on in the meantime. No bell comes in
        between.
        """
        positions = {run.topic: run.next_offset for run in runs}
        for run in runs:
            if run.small_pages > 1:
                self._writer.merge_soon(run)
        await self._writer.flush()
        await self._runs.set_active([run.run_id for run in runs], active=False)
        for run in runs:
            self._drop(run)
        ends = await self._ends.ends(positions)
        await self._wake([run.run_id for run in runs if ends[run.topic] > positions[run.topic]])

    async def _clear_deleted(self) -> None:
        """Endless: deletes the data of deleted runs. Their topics are last, so that the sweep finds
        the runs again if this worker dies.
        """
        while True:
            runs = [await self._deleted.get()]
            while not self._deleted.empty() and len(runs) < _CLEARING_MAX:
                runs.append(self._deleted.get_nowait())
            topics = [self._topics.run(*run) for run in runs]
            for topic in topics:  # the tail must not ask for a topic that is deleted
                await self._tail.let_go(Partition(topic, 0))
            # The writer forgets the runs first. It deletes again what it is writing just now.
            await self._writer.forget([run.log_id for run in runs])
            await self._pages.delete_logs([run.log_id for run in runs])
            await self._admin.delete_topics(topics)

    async def _sweep_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_seconds)
            await self._sessions.delete_expired(self._partitions)
            topics = await self._ends.run_topics()
            async with self._membership:
                ours = {
                    name: run
                    for name, run in topics.items()
                    if name not in self._by_topic and partition_of(run.run_id) in self._partitions
                }
                findings = await self._sweep.look(ours, await self._runs.ends(self._partitions))
                await self._wake(findings.grown)
            for run in findings.deleted:
                self._deleted.put_nowait(run)
            orphans = await self._sweep.announce(
                {name: run for name, run in findings.unknown.items() if run.run_id not in self._active}
            )
            await self._admin.delete_topics(orphans)


@asynccontextmanager
async def connect_worker(
    settings: Settings, database: Database, edition: str, *, rebuilt_from: str | None = None
) -> AsyncIterator[Worker]:
    """A worker of one edition with its connections, open for the length of the block. Its `work`
    starts it.

    `rebuilt_from` is the edition before, in a rebuild. The worker does not publish again the dead
    letters and ends that the owners of that edition have published.
    """
    log = settings.log("runfold/projector")
    topics, stores = Topics(settings.prefix), Edition.of(database, edition)
    previous = Edition.of(database, rebuilt_from) if rebuilt_from else None
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(LogAdmin.connect(log))
        await admin.check_broker()
        await admin.create_shared_topics()
        await stores.create_indexes()
        publisher = await stack.enter_async_context(Publisher.connect(log))
        tail = await stack.enter_async_context(Tail.connect(log))
        steady = await stack.enter_async_context(Tail.connect(log, fetch_wait_ms=STEADY_FETCH_WAIT_MS))
        ends = await stack.enter_async_context(LogEnds.connect(log))
        writer = Writer(
            topics,
            publisher,
            stores,
            forwarder=Forwarder(log, publisher, ends, stores),
            previous=previous.runs if previous else None,
        )
        sessions = SessionsTopic(writer, stores)
        folds: dict[str, TopicFold] = {
            topics.sessions: sessions,
            topics.memories: MemoriesTopic(stores),
            topics.banks: BanksTopic(stores),
        }
        shared = SharedTopics(
            steady,
            writer,
            stores.shared_positions,
            folds,
            previous=previous.shared_positions if previous else None,
        )
        yield Worker(
            settings,
            edition,
            admin=admin,
            tail=tail,
            ends=ends,
            writer=writer,
            shared=shared,
            sessions=sessions,
            stores=stores,
        )
