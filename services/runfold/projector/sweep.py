"""The sweep: what nobody announced, found by looking at the topics themselves."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from runfold.log.ends import LogEnds
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.projector.writer import Writer
from runfold.store.runs import RunStore
from runfold_schemas.catalog import Life
from runfold_schemas.codec import decode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import RunOpened
from runfold_schemas.topics import RunTopic

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    grown: list[str]
    """Runs that are parked and have records beyond what is stored."""
    deleted: list[RunTopic]
    """Whoever was to clear up behind these has died."""
    unknown: dict[str, RunTopic]
    """By topic: runs that MongoDB has nothing of."""


class Sweep:
    def __init__(self, settings: LogSettings, ends: LogEnds, runs: RunStore, writer: Writer) -> None:
        self._settings = settings
        self._ends = ends
        self._runs = runs
        self._writer = writer
        self._unannounced: set[str] = set()

    async def look(self, topics: Mapping[str, RunTopic], stored: Mapping[str, tuple[str, int]]) -> Found:
        """What is to be done about `topics`, which are not tailed, given life and position of each run that is stored."""
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

    async def announce(self, topics: Mapping[str, RunTopic]) -> None:
        """Announces runs whose opener did not: it crashed, or does not know the catalog."""
        known = await self._runs.get_many([run.run_id for run in topics.values()])
        unknown = {name for name, run in topics.items() if run.run_id not in known}
        ends = await self._ends.ends(unknown & self._unannounced)
        for name in sorted(ends):
            if ends[name] > 0:  # an opener may have died before it wrote anything
                await self._announce_from_log(name, topics[name])
        # An opener may be between its topic and its announcement: what is unknown is looked at in the next sweep.
        self._unannounced = unknown

    async def _announce_from_log(self, topic: str, run: RunTopic) -> None:
        async for records in read(self._settings, topic, end=1):
            for record in records:
                try:
                    opened = decode(record.value).data
                except UndecodableError:
                    opened = None
                named = opened if isinstance(opened, RunOpened) else None
                await self._writer.announce(
                    Life(
                        run_id=run.run_id,
                        log_id=run.log_id,
                        agent_id=named.agent_id if named else "",
                        session_id=named.session_id if named else None,
                    )
                )
                _log.info("run %s was not announced; done now", run.run_id)
