"""Erases all data of a user, step by step. Each step may be repeated. So a further call goes on
where the call before it was killed.

    keys --> sessions, runs, logs of generations --> shared state, memories --> dead letters
                                                                            --> archive

The events of each step are in the log first, and the projectors act on them. So a rebuild, and
another projector, erase the same.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from runfold.client.connection import LogConnection
from runfold.client.run_deletion import deletion_of, seal
from runfold.encryption.subjects import run_subject, session_subject, user_subject
from runfold.erasure.dead_letters import erase_dead_letters
from runfold.erasure.receipt import CATALOG_HOURS, Removed
from runfold.erasure.runs import UserRuns, find_runs, is_of_another_log
from runfold.erasure.traces import TracedMemory, TracedSession, Traces, find_traces, names_user
from runfold.ids import new_event_id
from runfold.log.ends import LogEnds
from runfold.log.shared import SharedRecord, deliver, shared_partitions, shared_record
from runfold.store.database import Database
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.state import own_scope
from runfold_projections.state import Forward
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_data, new_event
from runfold_schemas.data import Data
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.memories import NO_RUN, MemoryDeleted, is_generation_log
from runfold_schemas.sessions import SessionDeleted, StateDeleted, session_key
from runfold_schemas.topics import RunTopic

_LOOK_SECONDS: Final = 0.1
_LOOK_SECONDS_MAX: Final = 2.0

_PORTION: Final = 500

_ROUNDS: Final = 3
"""How often the user's data is looked for. What agents write meanwhile is found in a later round;
what they write afterwards is new.
"""

ItemT = TypeVar("ItemT")

Report = Callable[[str], None]
"""Takes what an erasure is doing, in a few words."""


class Eraser:
    """Erases one user, given by id. Every method may raise `UnavailableError`, and
    `ConfigurationError` if the tenant is dropped meanwhile.
    """

    def __init__(
        self,
        connection: LogConnection,
        database: Database,
        *,
        user: str,
        subject: str,
        report: Report = lambda _: None,
    ) -> None:
        self._connection = connection
        self._database = database
        self._editions = Editions(database)
        self._user = user
        self._subject = subject
        self._report = report
        self.traces = Traces()
        self.fork_topics = 0
        self.dead_letters = 0
        self.keys = 0
        self.is_archived = False
        """Whether an archiver had to remove runs meanwhile."""

    async def _find(self, ends: LogEnds) -> UserRuns:
        """Looks for what there is of the user, in the log."""
        self._report("reading the log")
        settings, catalog = self._connection.settings, self._connection.catalog
        self.traces = await find_traces(settings, catalog, user=self._user, subject=self._subject)
        stores = Edition.of(self._database, await self._editions.current_or_first())
        topics = (await ends.run_topics()).values()
        return await find_runs(self._connection, stores, self.traces, user=self._user, topics=topics)

    async def erase(self) -> None:
        """Returns when nothing of the user is left that can be deleted."""
        async with LogEnds.connect(self._connection.settings) as ends:
            for _ in range(_ROUNDS):
                runs = await self._find(ends)
                await self._take_unfolded()
                if not (self._has_any(runs) or await self._remaining(ends, self._awaited(runs))):
                    # A call before this one may have been killed just before it destroyed them.
                    await self._destroy_keys(runs)
                    break
                await self._compact_catalog()
                await self._delete_runs(ends, runs)
                await self._delete_shared(ends)
            await self._check_folded()
            await self._erase_dead_letters(ends)
            await self._check_tenant(ends)
            await self._wait_for_archiver(ends)

    def _has_any(self, runs: UserRuns) -> bool:
        traces = self.traces
        return bool(traces.sessions or traces.scopes or traces.memories or runs.all or runs.fork_topics)

    async def _delete_runs(self, ends: LogEnds, runs: UserRuns) -> None:
        """Deletes sessions and runs, and waits until their data is gone. So no run forwards a
        change of shared state or of a memory afterwards.
        """
        sessions, topics = list(self.traces.sessions.values()), await ends.run_topics()
        self._report(f"deleting {len(sessions)} sessions and {len(runs.all)} runs")
        existing = set(topics.values())
        lives = [*map(_life_of, sessions), *runs.all]
        for portion in _portions([life for life in lives if RunTopic(life.run_id, life.log_id) in existing]):
            await asyncio.gather(*(self._seal(life) for life in portion if not life.ended))
        await self._publish(map(self._deletion_of_session, sessions))
        await self._publish(
            deletion_of(self._connection.settings, life, erased=self._subject) for life in runs.all
        )
        await self._delete_fork_topics(runs.fork_topics)
        await self._destroy_keys(runs)
        await self._wait_for_fold(ends)
        awaited = self._awaited(runs)
        pause = _LOOK_SECONDS
        await self._clear_other_editions(awaited)
        while left := await self._remaining(ends, awaited):
            self._report(f"waiting for a projector to delete the data of {len(left)} runs")
            await asyncio.sleep(pause)
            await self._check_tenant(ends)
            await self._clear_other_editions(awaited)
            pause = min(1.5 * pause, _LOOK_SECONDS_MAX)
        for life in lives:
            await self._connection.publisher.forget(self._topic(RunTopic(life.run_id, life.log_id)))

    async def _delete_fork_topics(self, runs: Collection[RunTopic]) -> None:
        for run in runs:
            if self._connection.blobs is not None:
                await self._connection.blobs.delete_logs([run.log_id])
            await self._connection.delete_topic(self._topic(run))
        self.fork_topics += len(runs)

    async def _destroy_keys(self, runs: UserRuns) -> None:
        """Destroys the keys by which the contents are encrypted. The deletions are in the log by
        now, so a repeated call knows of logs that it cannot read any more.
        """
        if (sealing := self._connection.sealing) is None:
            return
        self._report("destroying keys")
        # The key of a run id whose life has another log seals the records of that life.
        own = [run for run in self._awaited(runs) if not await is_of_another_log(self._connection, run)]
        subjects = {
            user_subject(self._user),
            *self.traces.subjects,
            *map(session_subject, self.traces.own_session_ids(self._user)),
            *(run_subject(run.run_id) for run in own),
        }
        self.keys += await sealing.keys.destroy(*sorted(subjects))

    async def _compact_catalog(self) -> None:
        """Has Kafka compact the catalog within two days, so that the users of deleted runs go."""
        hours = CATALOG_HOURS * 3600 * 1000
        await self._connection.admin.alter(
            self._connection.topics.catalog, {"max.compaction.lag.ms": str(hours)}
        )

    def _awaited(self, runs: UserRuns) -> set[RunTopic]:
        return {
            *(RunTopic(session.run_id, session.log_id) for session in self.traces.all_sessions),
            *(RunTopic(*run) for run in self.traces.erased_runs),
            *(RunTopic(life.run_id, life.log_id) for life in runs.all),
        }

    async def _seal(self, life: Life) -> None:
        await seal(self._connection, life, reason="its user was erased")

    async def _delete_shared(self, ends: LogEnds) -> None:
        """Deletes the state and the memories of the user, and waits until this is folded."""
        settings, catalog = self._connection.settings, self._connection.catalog
        self.traces = await find_traces(settings, catalog, user=self._user, subject=self._subject)
        await self._take_unfolded()
        scopes, memories = sorted(self.traces.scopes), list(self.traces.memories.values())
        self._report(f"deleting the state of {len(scopes)} apps and {len(memories)} memories")
        await self._publish(map(self._deletion_of_state, scopes))
        await self._publish(map(self._deletion_of_memory, memories))
        await self._wait_for_fold(ends)

    async def _erase_dead_letters(self, ends: LogEnds) -> None:
        existing = set((await ends.run_topics()).values())
        deleted = self._awaited(UserRuns()) - existing
        self.dead_letters += await erase_dead_letters(
            self._connection, user=self._user, origins=[self._topic(run) for run in deleted]
        )

    async def _publish(self, records: Iterable[SharedRecord]) -> None:
        for portion in _portions(list(records)):
            await deliver(self._connection.publisher, portion)

    def _deletion_of_session(self, session: TracedSession) -> SharedRecord:
        data = new_data(SessionDeleted, session_id=session.session_id, erased=self._subject)
        return self._record(session_key(session.session_id), data, run_id=session.run_id)

    def _deletion_of_state(self, scope: str) -> SharedRecord:
        return self._record(scope, new_data(StateDeleted, erased=self._subject))

    def _deletion_of_memory(self, memory: TracedMemory) -> SharedRecord:
        data = new_data(
            MemoryDeleted,
            bank_id=memory.bank_id,
            memory_id=memory.memory_id,
            erased=self._subject,
            began=memory.began,
        )
        return self._record(memory.key, data)

    def _record(self, key: str, data: Data, *, run_id: str = NO_RUN) -> SharedRecord:
        event = new_event(data, event_id=new_event_id(), run_id=run_id, timestamp=datetime.now(UTC))
        return shared_record(self._connection.settings, Forward(key, event))

    async def _wait_for_fold(self, ends: LogEnds) -> None:
        """Returns when the editions that are written have folded the shared topics to their ends as
        they are now.
        """
        wanted = await ends.ends_of(shared_partitions(self._connection.topics))
        pause = _LOOK_SECONDS
        while True:
            pointer = await self._editions.pointer()
            stores = Edition.of(self._database, pointer.current) if pointer else None
            reached = await stores.shared_positions.positions() if stores else {}
            if all(reached.get(at, 0) >= end for at, end in wanted.items()):
                return
            self._report("waiting for a projector to fold the deletions")
            await asyncio.sleep(pause)
            await self._check_tenant(ends)
            pause = min(1.5 * pause, _LOOK_SECONDS_MAX)

    async def _check_tenant(self, ends: LogEnds) -> None:
        """Raises `ConfigurationError` if the tenant has no topics any more. Its projectors are gone
        too, and a receipt would bring one of the topics back.
        """
        partitions = shared_partitions(self._connection.topics)
        if len(await ends.ends_of(partitions)) < len(partitions):
            raise ConfigurationError(f"the tenant {self._connection.topics.prefix} was dropped meanwhile")

    async def _wait_for_archiver(self, ends: LogEnds) -> None:
        """Returns when an archiver has removed the runs of the user from the archive."""
        left = sorted({run.run_id for run in self._awaited(UserRuns())})
        pause = _LOOK_SECONDS
        while left := await self._connection.catalog.archived_among(left):
            self.is_archived = True
            self._report(f"waiting for an archiver to remove {len(left)} runs from the archive")
            await asyncio.sleep(pause)
            await self._check_tenant(ends)
            pause = min(1.5 * pause, _LOOK_SECONDS_MAX)

    async def _unfolded(self) -> set[str]:
        """The keys of state and memories that are stored although their deletion is in the log. It
        is not folded yet, a projector of an earlier version has passed it, or somebody skipped it.
        """
        pointer = await self._editions.pointer()
        if pointer is None:
            return set()
        stores, deletions = Edition.of(self._database, pointer.current), self.traces.deletions
        left = set()
        for portion in _portions(list(deletions)):
            offsets = {key: deletions[key].offset for key in portion}
            left |= await stores.values.scopes_before(offsets)
            left |= await stores.memories.before(offsets)
            left |= await stores.revisions.before(
                {key: offset for key, offset in offsets.items() if deletions[key].memory}
            )
        return left

    async def _take_unfolded(self) -> None:
        """Has what is stored against its deletion deleted once more."""
        for key in await self._unfolded():
            memory = self.traces.deletions[key].memory
            if memory is None:
                self.traces.scopes.add(key)
            else:
                self.traces.memories[key] = memory

    async def _check_folded(self) -> None:
        if left := await self._unfolded():
            raise UnavailableError(
                "The projector",
                reason=f"it has not deleted {len(left)} states and memories of the user: is it of an earlier"
                " version?",
            )

    async def _remaining(self, ends: LogEnds, runs: Collection[RunTopic]) -> set[RunTopic]:
        """Those of these runs that have a topic, or pages in any edition."""
        existing = set((await ends.run_topics()).values())
        remaining = {run for run in runs if run in existing}
        for name in await self._all_editions():
            pages = Edition.of(self._database, name).pages
            for portion in _portions(list(runs)):
                logs = await pages.with_pages([run.log_id for run in portion])
                remaining |= {run for run in portion if run.log_id in logs}
        return remaining

    async def _clear_other_editions(self, runs: Collection[RunTopic]) -> None:
        """Deletes the data of the user in all editions but the current one: of a rebuild, which may
        have died, and of the time before a rebuild. A rebuild that goes on folds the deletions too.
        """
        for name in await self._editions.others():
            stores = Edition.of(self._database, name)
            for portion in _portions(list(runs)):
                log_ids = [run.log_id for run in portion]
                await stores.pages.delete_logs(log_ids)
                await stores.values.delete(list(map(own_scope, log_ids)))
                existing = await stores.runs.with_logs(log_ids)
                await stores.runs.delete((_bare_life(run), 0) for run in portion if run in existing)
            await stores.values.delete([*self.traces.scopes, *self.traces.erased_scopes])
            for session_id in self.traces.own_session_ids(self._user):
                await stores.sessions.delete(session_id)
            for key in {*self.traces.memories, *self.traces.erased_memories}:
                head = self.traces.heads.get(key)
                if head is not None and not head.is_erased and not names_user(head.scope, self._user):
                    await stores.revisions.erase(key, head.began)
                    continue
                await stores.revisions.delete(key)
                await stores.memories.delete(key)
                await stores.shared_positions.delete_head(key)

    async def _all_editions(self) -> list[str]:
        return [await self._editions.current_or_first(), *await self._editions.others()]

    def _topic(self, run: RunTopic) -> str:
        return self._connection.topics.run(*run)

    def removed_since(self, time: datetime | None) -> Removed:
        """How much was erased after that time, by this call or by calls that were killed."""

        def count(times: Iterable[datetime]) -> int:
            return sum(time is None or at > time for at in times)

        runs = self.traces.erased_runs.items()
        return Removed(
            sessions=count(at for _, at in self.traces.erased_sessions.values()),
            runs=count(at for run, at in runs if not is_generation_log(run.run_id)) + self.fork_topics,
            generation_logs=count(at for run, at in runs if is_generation_log(run.run_id)),
            states=count(self.traces.erased_scopes.values()),
            memories=count(self.traces.erased_memories.values()),
            dead_letters=self.dead_letters,
            keys=self.keys,
        )


def _life_of(session: TracedSession) -> Life:
    return Life(
        run_id=session.run_id, log_id=session.log_id, agent_id=session.app, session_id=session.session_id
    )


def _bare_life(run: RunTopic) -> Life:
    return Life(run_id=run.run_id, log_id=run.log_id, agent_id="")


def _portions(items: Sequence[ItemT]) -> Iterable[Sequence[ItemT]]:
    return (items[begin : begin + _PORTION] for begin in range(0, len(items), _PORTION))
