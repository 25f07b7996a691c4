"""The sweep: finds records and runs that were not announced by looking at the topics themselves."""

import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from runfold.log.archived_logs import NoArchiveError
from runfold.log.ends import LogEnds
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.log.shared import deciding
from runfold.projector.quarantine import defect
from runfold.projector.stored_ends import Findings, StoredEnds
from runfold.projector.writer import Writer
from runfold.store.edition import Edition
from runfold.store.quarantine import key_id_of
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.catalog import Life
from runfold_schemas.codec import decode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.runs import RunOpened
from runfold_schemas.sessions import is_session_run, session_key
from runfold_schemas.topics import RunTopic

_ORPHAN_SWEEPS = 3

_ORPHAN_TIMEOUTS = 3
"""The number of publish timeouts after which the creator of a session or a fork counts as dead."""

_LIST_SECONDS = 3600.0
"""How often the stored runs are searched for those that an earlier version has written."""

_log = logging.getLogger(__name__)


class Sweep:
    """Looks for unannounced records and runs, and remembers the runs between two sweeps."""

    def __init__(self, settings: LogSettings, ends: LogEnds, stores: Edition, writer: Writer) -> None:
        self._settings = settings
        self._ends = ends
        self._stored_ends = StoredEnds(ends, stores.runs)
        self._runs = stores.runs
        self._sessions = stores.sessions
        self._positions = stores.shared_positions
        self._quarantine = stores.quarantine
        self._writer = writer
        self._unannounced: dict[str, _Unannounced] = {}
        self._listed_at: float | None = None

    def forget(self) -> None:
        """Compares all runs with MongoDB again, because their owner has changed."""
        self._stored_ends.forget()
        self._listed_at = None

    async def look(self, topics: Mapping[str, RunTopic], *, partitions: Collection[int] = ()) -> Findings:
        """The findings about `topics`, which are not tailed. Lists get all fields of the runs of
        these partitions of the catalog that an earlier version has written.
        """
        await self._list_anew(partitions)
        return await self._stored_ends.compare(topics)

    async def _list_anew(self, partitions: Collection[int]) -> None:
        if self._listed_at is not None and time.monotonic() - self._listed_at < _LIST_SECONDS:
            return
        if partitions:
            await self._runs.list_anew(partitions)
        self._listed_at = time.monotonic()

    @property
    def has_unannounced(self) -> bool:
        """Whether runs wait for being announced, or for being given up."""
        return bool(self._unannounced)

    async def announce(self, topics: Mapping[str, RunTopic]) -> list[str]:
        """Announces runs that their opener did not announce, because it crashed or does not know
        the catalog. Returns orphans: topics whose opener lost their session to another opener, or
        died before the session existed or the fork was complete.
        """
        run_ids = [run.run_id for run in topics.values()]
        stored = {*await self._runs.get_many(run_ids), *await self._runs.deleted(run_ids)}
        unknown = {name for name, run in topics.items() if run.run_id not in stored}
        before, now = self._unannounced, time.monotonic()
        self._unannounced = {
            name: before[name]._replace(sweeps=before[name].sweeps + 1)
            if name in before
            else _Unannounced(now)
            for name in unknown
        }
        # An opener may be about to announce its run, so a topic waits at least until the second
        # sweep that finds it.
        ends = await self._ends.ends(unknown & before.keys())
        orphans = []
        for name in sorted(ends):
            if ends[name] > 0:  # an opener may have died before its first record
                try:
                    run, opened = topics[name], await self._opening(name)
                except (NoArchiveError, ArchiveDamagedError) as error:
                    _log.warning("topic %s is not announced: %s", name, error)
                    continue
                if _is_incomplete_fork(opened, end=ends[name]):
                    if self._is_abandoned(name, end=ends[name], now=now):
                        _log.info("topic %s is a fork that was never completed; deleted", name)
                        orphans.append(name)
                    continue
                session_id = opened.session_id if opened and is_session_run(*run) else None
                if session_id is None or await self._has_won(run, session_id):
                    await self._announce(run, opened)
                elif self._is_given_up(self._unannounced[name], now) and await self._has_lost(
                    run, session_id
                ):
                    _log.info(
                        "topic %s belongs to no session, because its opener lost or died; deleted", name
                    )
                    orphans.append(name)
        return orphans

    async def _opening(self, topic: str) -> RunOpened | None:
        async with contextlib.aclosing(read(self._settings, topic, end=1)) as fetches:
            async for records in fetches:
                for record in records:
                    try:
                        opened = decode(record.value).data
                    except UndecodableError:
                        continue
                    except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                        defect(error)  # the fold of the announced run meets the record again
                        return None
                    return opened if isinstance(opened, RunOpened) else None
        return None

    async def _has_won(self, run: RunTopic, session_id: str) -> bool:
        session = (await self._sessions.get([session_id])).get(session_id)
        return session is not None and session.run_id == run.run_id

    async def _has_lost(self, run: RunTopic, session_id: str) -> bool:
        """Whether the session belongs to another run, or to none, by all events so far."""
        at = deciding(self._settings.topics, session_key(session_id))
        end = (await self._ends.ends_of([at]))[at]
        folded = (await self._positions.positions()).get(at, 0)
        if await self._quarantine.existing([key_id_of(session_key(session_id))]):
            return False  # the creation of the session may be held back
        return folded >= end and not await self._has_won(run, session_id)

    async def _announce(self, run: RunTopic, opened: RunOpened | None) -> None:
        life = Life(
            run_id=run.run_id,
            log_id=run.log_id,
            agent_id=opened.agent_id if opened else "",
            session_id=opened.session_id if opened else None,
            user_id=opened.user_id if opened else None,
        )
        await self._writer.announce([life])
        _log.info("run %s was not announced by its opener; announced it", run.run_id)

    def _is_abandoned(self, name: str, *, end: int, now: float) -> bool:
        """Whether nobody goes on with a fork. The time begins anew when its log grows."""
        if self._unannounced[name].end != end:
            self._unannounced[name] = _Unannounced(now, end=end)
        return self._is_given_up(self._unannounced[name], now)

    def _is_given_up(self, run: "_Unannounced", now: float) -> bool:
        """Whether the creator of the session, or of the fork, must have an answer by now."""
        waited = now - run.since
        return (
            run.sweeps >= _ORPHAN_SWEEPS
            and waited > _ORPHAN_TIMEOUTS * self._settings.publish_timeout_seconds
        )


def _is_incomplete_fork(opened: RunOpened | None, *, end: int) -> bool:
    """Whether the log lacks copies. The client announces a fork after them."""
    return opened is not None and opened.forked_from is not None and end <= opened.forked_from.events


class _Unannounced(NamedTuple):
    since: float
    sweeps: int = 1
    end: int = 0
    """The end of the log of a fork."""
