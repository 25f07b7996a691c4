"""Forwards changes from runs' logs to the shared topics that decide them, if their publisher has
not done so.

Runfold's client forwards a shared change right after publishing it. So nearly always the forwarder
finds the change among the seen events, and has nothing to do. When a worker begins, the forwarder
first waits until the shared topics are folded up to their ends at that time. Otherwise a rebuild
from nothing would forward every change once more.
"""

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy

from runfold.log.ends import LogEnds
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings
from runfold.log.shared import deciding, send_shared, shared_partitions
from runfold.projector.refused_effects import RefusedEffects
from runfold.store.edition import Edition
from runfold.store.quarantine import key_id_of
from runfold_projections.state import Forward
from runfold_schemas.sessions import session_key
from runfold_schemas.topics import Partition

_LOOK_SECONDS = 0.1


class HeldBackError(Exception):
    """A run belongs to a session whose key is in quarantine."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"the changes of the run wait for {entry_id}, which is in quarantine")


class Forwarder:
    """Forwards the changes that were not seen in the shared topics."""

    def __init__(
        self,
        settings: LogSettings,
        publisher: Publisher,
        ends: LogEnds,
        stores: Edition,
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._ends = ends
        self._positions = stores.shared_positions
        self._sessions = stores.sessions
        self._quarantine = stores.quarantine
        self._topics = settings.topics
        self._caught_up = False
        self._refused = RefusedEffects()
        self._undecided: dict[str, tuple[Partition, int]] = {}
        """The runs whose session may belong to another run. When the partition is folded up to the
        offset, the owner of the session is known.
        """

    async def forward(self, forwards: Sequence[Forward]) -> set[str]:
        """Returns when the changes are durable in the topics that decide them. The returned set has
        the runs whose changes must wait, because the owner of their session is not known yet.
        Raises `HeldBackError` if the owner is not known because the session is in quarantine.
        """
        if not self._caught_up:
            await self._catch_up()
        seen = await self._positions.first_offsets((each.key, each.event.event_id) for each in forwards)
        missing = [each for each in forwards if (each.key, each.event.event_id) not in seen]
        missing = self._refused.without_refused(missing)
        lost = await self._lost_sessions(missing)
        withheld = lost | self._undecided.keys()
        await self.publish([each for each in missing if each.event.run_id not in withheld])
        return set(self._undecided)

    async def forward_all(self, forwards: Sequence[Forward]) -> None:
        """Returns when the changes are durable, and the owners of all sessions are known. Unlike
        `forward`, it serves several callers at a time.
        """
        if not self._caught_up:
            await self._catch_up()
        forwarder = copy(self)
        forwarder._undecided = {}  # noqa: SLF001 - of the same class
        while True:
            if not await forwarder.forward(forwards):
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def publish(self, forwards: Sequence[Forward]) -> None:
        """Publishes the events to the topics that decide them, and waits until they are durable."""
        acks = [await send_shared(self._publisher, self._settings, forward) for forward in forwards]
        for ack in acks:
            await self._publisher.wait(ack)

    async def _lost_sessions(self, forwards: Sequence[Forward]) -> set[str]:
        """The runs that were opened for a session of another run. Remembers the runs for which this
        is not known yet.
        """
        opened = {each.event.run_id: each.session_id for each in forwards if each.session_id is not None}
        if not opened:
            self._undecided = {}
            return set()
        # Sessions are read last. In another order, a session that is folded in between would count
        # as lost.
        reached = await self._positions.positions()
        held_back = await self._quarantine.existing(
            key_id_of(session_key(session_id)) for session_id in opened.values()
        )
        sessions = await self._sessions.get(list(opened.values()))
        await self._note_ends(
            {
                run_id: session_id
                for run_id, session_id in opened.items()
                if session_id not in sessions or sessions[session_id].run_id != run_id
            }
        )
        lost = {run_id for run_id, (at, end) in self._undecided.items() if reached.get(at, 0) >= end}
        for run_id in lost:
            if (entry_id := key_id_of(session_key(opened[run_id]))) in held_back:
                raise HeldBackError(entry_id)
            del self._undecided[run_id]
        return lost

    async def _note_ends(self, doubtful: Mapping[str, str]) -> None:
        """Remembers the ends of these sessions' partitions when the doubt first arose. The events
        before an end decide who owns the session.
        """
        partitions = {
            run_id: deciding(self._topics, session_key(session_id)) for run_id, session_id in doubtful.items()
        }
        new = {at for run_id, at in partitions.items() if run_id not in self._undecided}
        ends = await self._ends.ends_of(sorted(new))
        self._undecided = {
            run_id: self._undecided.get(run_id) or (at, ends[at]) for run_id, at in partitions.items()
        }

    async def _catch_up(self) -> None:
        ends = await self._ends.ends_of(shared_partitions(self._topics))
        while True:
            reached = await self._positions.positions()
            if all(reached.get(at, 0) >= end for at, end in ends.items()):
                self._caught_up = True
                return
            await asyncio.sleep(_LOOK_SECONDS)
