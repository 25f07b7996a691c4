"""What a worker folds of `{prefix}.sessions`, and what follows from it.

    events --> values of app: and user: keys --> deleted runs --> sessions

A crash between any two repeats work and loses nothing, and so does another owner of the partition
that is still at work: everything is written over what is older only.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from runfold.ids import new_event_id
from runfold.log.catalog import partition_of
from runfold.log.shared import Keyed
from runfold.projector.writer import Writer
from runfold.store.edition import Edition
from runfold.store.state import Entry
from runfold_projections.memory import HeadAt
from runfold_projections.session import SessionRecord, SharedFold, life_of
from runfold_projections.state import Forward
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_data, new_event
from runfold_schemas.sessions import (
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    is_session_run,
    session_key,
)


class SessionsTopic:
    """The `TopicFold` of sessions, and of the state that runs share."""

    def __init__(self, writer: Writer, stores: Edition) -> None:
        self._writer = writer
        self._sessions = stores.sessions
        self._values = stores.values
        self._runs = stores.runs

    async def load(self, events: Sequence[Keyed]) -> Mapping[str, SessionRecord]:
        return await self._sessions.get(sorted(_session_ids(events)))

    async def take(
        self, events: Sequence[Keyed], stored: Mapping[str, SessionRecord]
    ) -> Mapping[str, HeadAt]:
        fold = SharedFold(stored)
        for one in events:
            fold.take(one.key, one.event, one.offset)
        times = {one.offset: one.log_time for one in events}
        await self._values.save(Entry(scope, key, value) for (scope, key), value in fold.values.items())
        for session, offset in fold.deleted:
            await self._delete_runs(session, times[offset])
        await self._sessions.save(fold.sessions, position=events[-1].offset + 1)
        return {}

    async def delete_expired(self, partitions: Collection[int]) -> None:
        """Deletes the sessions of these partitions whose time is over, by an event as anybody
        would.
        """
        now = datetime.now(UTC)
        async for session in self._sessions.expired(now):
            key = session_key(session.session_id)
            if partition_of(key) in partitions:
                deleted = new_data(
                    SessionDeleted, session_id=session.session_id, expires_at=session.expires_at
                )
                event = new_event(deleted, event_id=new_event_id(), run_id=session.run_id, timestamp=now)
                await self._writer.share(Forward(key, event))

    async def _delete_runs(self, session: SessionRecord, deleted_ms: int) -> None:
        own = life_of(session)
        gone = []
        if await self._is_own(own):
            # Before the others are looked for: who adds one that is not there yet looks for this
            # afterwards.
            gone = await self._runs.delete(
                [(own, partition_of(own.run_id))], with_session={own.run_id: deleted_ms}
            )
        # The id may have been taken again since, by which the catalog names runs of the next
        # session as well: in a rebuild they are all known before the deletion is read.
        named = await self._runs.of_session(session.session_id, announced_by_ms=deleted_ms)
        named = [life for life in named if not is_session_run(life.run_id, life.log_id)]
        # Told before they cannot be found by their session any more: a crash in between forgets
        # none of them.
        await self._writer.announce_deleted(gone + named)
        # Unreadable at once; the owner of each run, who is told by the catalog, clears up behind
        # it.
        await self._runs.delete((life, partition_of(life.run_id)) for life in named)

    async def _is_own(self, own: Life) -> bool:
        """Whether the run is the session's, as far as it is known: whoever creates a session could
        name any.
        """
        standing = (await self._runs.get_many([own.run_id])).get(own.run_id)
        return standing is None or (
            standing.log_id == own.log_id and standing.record.session_id == own.session_id
        )


def _session_ids(keyed: Sequence[Keyed]) -> set[str]:
    return {
        one.event.data.session_id
        for one in keyed
        if isinstance(one.event.data, SessionCreated | SessionUpdated | SessionDeleted)
    }
