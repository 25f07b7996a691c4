"""Taking changes of what runs share to the topic that decides them, where their publisher has not
done so.

Who publishes through us forwards at once, so nearly always the change has come already by the time
that it is looked for here. It is looked for in what is folded of the shared topics: after a rebuild
from nothing that must first have reached what was there when this worker began, or all that ever
was would be forwarded once more.
"""

import asyncio
from collections.abc import Mapping, Sequence

from runfold.log.ends import LogEnds
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings
from runfold.log.shared import deciding, send_shared, shared_partitions
from runfold.store.edition import Edition
from runfold_projections.state import Forward
from runfold_schemas.sessions import session_key
from runfold_schemas.topics import Partition, Topics

_LOOK_SECONDS = 0.1


class Forwarder:
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
        self._decided = stores.shared_positions
        self._sessions = stores.sessions
        self._topics = Topics(settings.prefix)
        self._caught_up = False
        self._decided_at: dict[str, tuple[Partition, int]] = {}
        """By run: how far its session's partition has to be folded until it is known whose the
        session is.
        """

    async def forward(self, forwards: Sequence[Forward]) -> set[str]:
        """Returns when each of them is durable in the topic that decides it; but for those of the
        runs that it gives, of which it cannot be told yet whether they won their session.
        """
        if not self._caught_up:
            await self._catch_up()
        known = await self._decided.first_offsets((one.key, one.event.event_id) for one in forwards)
        missing = [one for one in forwards if (one.key, one.event.event_id) not in known]
        lost = await self._lost_sessions(missing)
        withheld = lost | self._decided_at.keys()
        await self.publish([one for one in missing if one.event.run_id not in withheld])
        return set(self._decided_at)

    async def publish(self, forwards: Sequence[Forward]) -> None:
        acks = [await send_shared(self._publisher, self._settings, one) for one in forwards]
        for ack in acks:
            await self._publisher.wait(ack)

    async def _lost_sessions(self, forwards: Sequence[Forward]) -> set[str]:
        """The runs that were opened for a session which is not theirs. Notes those of which that
        cannot be told yet.
        """
        opened = {one.event.run_id: one.session_id for one in forwards if one.session_id is not None}
        if not opened:
            self._decided_at = {}
            return set()
        # Looked at before the sessions are, or one that is folded in between would be taken for
        # lost.
        reached = await self._decided.positions()
        sessions = await self._sessions.get(list(opened.values()))
        await self._note_ends(
            {
                run_id: session_id
                for run_id, session_id in opened.items()
                if session_id not in sessions or sessions[session_id].run_id != run_id
            }
        )
        lost = {run_id for run_id, (at, end) in self._decided_at.items() if reached.get(at, 0) >= end}
        for run_id in lost:
            del self._decided_at[run_id]
        return lost

    async def _note_ends(self, doubtful: Mapping[str, str]) -> None:
        """Where the partitions of these sessions ended when they were doubted first: by then each
        was won or lost.
        """
        partitions = {
            run_id: deciding(self._topics, session_key(session_id)) for run_id, session_id in doubtful.items()
        }
        new = {at for run_id, at in partitions.items() if run_id not in self._decided_at}
        ends = await self._ends.ends_of(sorted(new))
        self._decided_at = {
            run_id: self._decided_at.get(run_id) or (at, ends[at]) for run_id, at in partitions.items()
        }

    async def _catch_up(self) -> None:
        ends = await self._ends.ends_of(shared_partitions(self._topics))
        while True:
            reached = await self._decided.positions()
            if all(reached.get(at, 0) >= end for at, end in ends.items()):
                self._caught_up = True
                return
            await asyncio.sleep(_LOOK_SECONDS)
