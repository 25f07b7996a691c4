"""The sweep: what nobody announced, found by looking at the topics themselves."""

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
"""Publish timeouts from when a session's log was found, in which its creator must have gone on."""

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    grown: list[str]
    """Runs that are parked and have records beyond what is stored."""
    deleted: list[RunTopic]
    """Whoever was to clear up behind these has died."""
    unknown: dict[str, RunTopic]
    """By topic: runs that MongoDB has nothing of."""


class Sweep:
    def __init__(self, settings: LogSettings, ends: LogEnds, stores: Edition, writer: Writer) -> None:
        self._settings = settings
        self._ends = ends
        self._runs = stores.runs
        self._sessions = stores.sessions
        self._decided = stores.shared_positions
        self._writer = writer
        self._unannounced: dict[str, _Unannounced] = {}

    async def look(self, topics: Mapping[str, RunTopic], stored: Mapping[str, tuple[str, int]]) -> Found:
        """What is to be done about `topics`, which are not tailed, given life and position of each
        run that is stored.
        """
        known = {
            name: stored[run.run_id][1]
            for name, run in topics.items()
            if stored.get(run.run_id, ("",))[0] == run.log_id
        }
        positions = {name: position for name, position in known.items() if position >= 0}
        ends = await self._ends.ends(positions)
        return Found(
            [topics[name].run_id for name, position in positions.items() if ends[name] > position],
            [topics[name] for name in known.keys() - positions.keys()],
            {name: run for name, run in topics.items() if run.run_id not in stored},
        )

    async def announce(self, topics: Mapping[str, RunTopic]) -> list[str]:
        """Announces runs whose opener did not: it crashed, or does not know the catalog. Gives the
        topics that belong to nobody: their opener lost the session that they were made for, or died
        before it was there.
        """
        run_ids = [run.run_id for run in topics.values()]
        known = {*await self._runs.get_many(run_ids), *await self._runs.deleted(run_ids)}
        unknown = {name for name, run in topics.items() if run.run_id not in known}
        before, now = self._unannounced, time.monotonic()
        self._unannounced = {
            name: _Unannounced(before[name].since, before[name].sweeps + 1)
            if name in before
            else _Unannounced(now)
            for name in unknown
        }
        # An opener may be between its topic and its announcement: what is unknown is looked at in
        # the next sweep.
        ends = await self._ends.ends(unknown & before.keys())
        orphans = []
        for name in sorted(ends):
            if ends[name] > 0:  # an opener may have died before it wrote anything
                run, opened = topics[name], await self._opening(name)
                session_id = opened.session_id if opened and is_session_run(*run) else None
                if session_id is None or await self._has_won(run, session_id):
                    await self._announce(run, opened)
                elif self._is_given_up(self._unannounced[name], now) and await self._has_lost(
                    run, session_id
                ):
                    _log.info("%s was made for a session that it is not the log of; deleted now", name)
                    orphans.append(name)
        return orphans

    async def _opening(self, topic: str) -> RunOpened | None:
        async for records in read(self._settings, topic, end=1):
            for record in records:
                with contextlib.suppress(UndecodableError):
                    opened = decode(record.value).data
                    return opened if isinstance(opened, RunOpened) else None
        return None

    async def _has_won(self, run: RunTopic, session_id: str) -> bool:
        session = (await self._sessions.get([session_id])).get(session_id)
        return session is not None and session.run_id == run.run_id

    async def _has_lost(self, run: RunTopic, session_id: str) -> bool:
        """Whether the session is not this run's, by all that has been said of it so far."""
        at = deciding(Topics(self._settings.prefix), session_key(session_id))
        end = (await self._ends.ends_of([at]))[at]
        folded = (await self._decided.positions()).get(at, 0)
        return folded >= end and not await self._has_won(run, session_id)

    async def _announce(self, run: RunTopic, opened: RunOpened | None) -> None:
        life = Life(
            run_id=run.run_id,
            log_id=run.log_id,
            agent_id=opened.agent_id if opened else "",
            session_id=opened.session_id if opened else None,
        )
        await self._writer.announce([life])
        _log.info("run %s was not announced; done now", run.run_id)

    def _is_given_up(self, one: "_Unannounced", now: float) -> bool:
        """Whether whoever is creating a session would have had an answer by now, or an error."""
        waited = now - one.since
        return (
            one.sweeps >= _ORPHAN_SWEEPS
            and waited > _ORPHAN_TIMEOUTS * self._settings.publish_timeout_seconds
        )


class _Unannounced(NamedTuple):
    since: float
    sweeps: int = 1
