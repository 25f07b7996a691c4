"""The sweep: finds records and runs that were not announced by looking at the topics themselves."""

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import NamedTuple

from runfold.log.ends import LogEnds
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.log.shared import deciding
from runfold.projector.writer import Writer
from runfold.store.edition import Edition
from runfold_schemas.catalog import Life
from runfold_schemas.codec import decode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.runs import RunOpened
from runfold_schemas.sessions import is_session_run, session_key
from runfold_schemas.topics import RunTopic, Topics

_ORPHAN_SWEEPS = 3

_ORPHAN_TIMEOUTS = 3
"""The number of publish timeouts after which the creator of a session is taken for dead."""

_log = logging.getLogger(__name__)


class Findings(NamedTuple):
    """The results of one look at the topics."""

    grown: list[str]
    """Parked runs with records beyond the stored state."""
    deleted: list[RunTopic]
    """Deleted runs whose topic still exists, because the worker that was deleting it died."""
    unknown: dict[str, RunTopic]
    """Runs that are not stored, by topic."""


class Sweep:
    """Looks for unannounced records and runs, and remembers the runs between two sweeps."""

    def __init__(self, settings: LogSettings, ends: LogEnds, stores: Edition, writer: Writer) -> None:
        self._settings = settings
        self._ends = ends
        self._runs = stores.runs
        self._sessions = stores.sessions
        self._positions = stores.shared_positions
        self._writer = writer
        self._unannounced: dict[str, _Unannounced] = {}

    async def look(self, topics: Mapping[str, RunTopic], stored: Mapping[str, tuple[str, int]]) -> Findings:
        """The findings about `topics`, which are not tailed. `stored` has the log id and the
        position of each stored run, -1 for a deleted run.
        """
        stored_positions = {
            name: stored[run.run_id][1]
            for name, run in topics.items()
            if stored.get(run.run_id, ("",))[0] == run.log_id
        }
        positions = {name: position for name, position in stored_positions.items() if position >= 0}
        ends = await self._ends.ends(positions)
        return Findings(
            [topics[name].run_id for name, position in positions.items() if ends[name] > position],
            [topics[name] for name in stored_positions.keys() - positions.keys()],
            {name: run for name, run in topics.items() if run.run_id not in stored},
        )

    async def announce(self, topics: Mapping[str, RunTopic]) -> list[str]:
        """Announces runs that their opener did not announce, because it crashed or does not know
        the catalog. Returns orphans: topics whose opener lost their session to another opener, or
        died before the session existed.
        """
        run_ids = [run.run_id for run in topics.values()]
        stored = {*await self._runs.get_many(run_ids), *await self._runs.deleted(run_ids)}
        unknown = {name for name, run in topics.items() if run.run_id not in stored}
        before, now = self._unannounced, time.monotonic()
        self._unannounced = {
            name: _Unannounced(before[name].since, before[name].sweeps + 1)
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
                run, opened = topics[name], await self._opening(name)
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
                    with contextlib.suppress(UndecodableError):
                        opened = decode(record.value).data
                        return opened if isinstance(opened, RunOpened) else None
        return None

    async def _has_won(self, run: RunTopic, session_id: str) -> bool:
        session = (await self._sessions.get([session_id])).get(session_id)
        return session is not None and session.run_id == run.run_id

    async def _has_lost(self, run: RunTopic, session_id: str) -> bool:
        """Whether the session belongs to another run, or to none, by all events so far."""
        at = deciding(Topics(self._settings.prefix), session_key(session_id))
        end = (await self._ends.ends_of([at]))[at]
        folded = (await self._positions.positions()).get(at, 0)
        return folded >= end and not await self._has_won(run, session_id)

    async def _announce(self, run: RunTopic, opened: RunOpened | None) -> None:
        life = Life(
            run_id=run.run_id,
            log_id=run.log_id,
            agent_id=opened.agent_id if opened else "",
            session_id=opened.session_id if opened else None,
        )
        await self._writer.announce([life])
        _log.info("run %s was not announced by its opener; announced it", run.run_id)

    def _is_given_up(self, run: "_Unannounced", now: float) -> bool:
        """Whether the creator of the session must have had an answer or an error by now."""
        waited = now - run.since
        return (
            run.sweeps >= _ORPHAN_SWEEPS
            and waited > _ORPHAN_TIMEOUTS * self._settings.publish_timeout_seconds
        )


class _Unannounced(NamedTuple):
    since: float
    sweeps: int = 1
