"""Taking changes of shared state to the topic that decides them, where their publisher has not done so.

Who publishes through us forwards at once, so nearly always the change has come already by the time that it is looked for
here. It is looked for in what is folded of `{prefix}.sessions`: after a rebuild from nothing that must first have reached
what was there when this worker began, or all that ever was would be forwarded once more.
"""

import asyncio
from collections.abc import Sequence

from runfold.log.ends import LogEnds
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings
from runfold.log.shared import send_shared, shared_partitions
from runfold.store.sessions import SessionStore
from runfold_projections.state import Forward
from runfold_schemas.topics import Topics

_LOOK_SECONDS = 0.1


class Forwarder:
    def __init__(
        self, settings: LogSettings, publisher: Publisher, ends: LogEnds, sessions: SessionStore
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._ends = ends
        self._sessions = sessions
        self._caught_up = False

    async def forward(self, forwards: Sequence[Forward]) -> None:
        """Returns when each of them is durable in the topic that decides it."""
        if not self._caught_up:
            await self._catch_up()
        known = await self._sessions.first_offsets((one.key, one.event.event_id) for one in forwards)
        missing = [one for one in forwards if (one.key, one.event.event_id) not in known]
        lost = await self._lost_sessions(missing)
        await self.publish([one for one in missing if one.event.run_id not in lost])

    async def publish(self, forwards: Sequence[Forward]) -> None:
        acks = [await send_shared(self._publisher, self._settings, one) for one in forwards]
        for ack in acks:
            await self._publisher.wait(ack)

    async def _lost_sessions(self, forwards: Sequence[Forward]) -> set[str]:
        """The runs that were opened for a session which is not theirs."""
        opened = {one.event.run_id: one.session_id for one in forwards if one.session_id is not None}
        sessions = await self._sessions.get(list(opened.values()))
        return {
            run_id
            for run_id, session_id in opened.items()
            if session_id not in sessions or sessions[session_id].run_id != run_id
        }

    async def _catch_up(self) -> None:
        ends = await self._ends.ends_of(shared_partitions(Topics(self._settings.prefix)))
        while True:
            reached = await self._sessions.positions()
            if all(reached.get(at.partition, 0) >= end for at, end in ends.items()):
                self._caught_up = True
                return
            await asyncio.sleep(_LOOK_SECONDS)
