"""The fold of `{prefix}.sessions` in a worker, and its consequences.

    events --> values of app: and user: keys --> deleted runs --> sessions

A crash between two steps repeats work and loses nothing, and so does a second owner of the
partition, because each write replaces only older data.
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
from runfold_schemas.topics import RunTopic, Topics


class SessionsTopic:
    """The `TopicFold` of sessions, and of the state that runs share."""

    def __init__(self, topics: Topics, writer: Writer, stores: Edition) -> None:
        self._topics = topics
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
        for each in events:
            fold.take(each.key, each.event, each.offset)
        times = {each.offset: each.log_time for each in events}
        await self._values.save(Entry(scope, key, value) for (scope, key), value in fold.values.items())
        for values in fold.deleted_values:
            await self._values.delete_before(values.scope, values.offset, values.keys)
        for session, offset in fold.deleted:
            await self._delete_runs(session, times[offset], is_erased=session.run_id in fold.erased)
        await self._delete_lives(fold.deleted_runs)
        await self._sessions.save(fold.sessions, position=events[-1].offset + 1)
        await self._forget(fold.erased)
        return {}

    async def reset(self, key: str) -> None:
        if key.startswith(session_key("")):
            await self._sessions.delete(key.removeprefix(session_key("")))
        else:
            await self._values.delete([key])

    async def delete_expired(self, partitions: Collection[int]) -> None:
        """Publishes the deletion of the expired sessions of these partitions, as a client would."""
        now = datetime.now(UTC)
        async for session in self._sessions.expired(now):
            key = session_key(session.session_id)
            if partition_of(self._topics, key) in partitions:
                deleted = new_data(
                    SessionDeleted, session_id=session.session_id, expires_at=session.expires_at
                )
                event = new_event(deleted, event_id=new_event_id(), run_id=session.run_id, timestamp=now)
                await self._writer.share(Forward(key, event))

    async def _delete_runs(self, session: SessionRecord, deleted_ms: int, *, is_erased: bool) -> None:
        own = life_of(session)
        deleted = []
        if await self._is_own(own):
            # The own run is deleted before the other runs are read. A worker that adds another run
            # of the session meanwhile looks for this deletion afterwards.
            deleted = await self._runs.delete(
                [(own, partition_of(self._topics, own.run_id))],
                with_session={own.run_id: deleted_ms},
                is_erased=is_erased,
            )
        # Runs that were announced after the deletion belong to a later session with the same id. In
        # a rebuild all of them are stored before the deletion is folded.
        lives = await self._runs.of_session(session.session_id, announced_by_ms=deleted_ms)
        others = [life for life in lives if not is_session_run(life.run_id, life.log_id)]
        # Announced first: after the deletion they could not be found by their session any more, so
        # a crash in between would forget them.
        await self._writer.announce_deleted(deleted)
        await self._delete_lives(others)

    async def _forget(self, erased: Mapping[str, str]) -> None:
        """Removes the ids of erased sessions, given by their runs, also of those that were deleted
        before.
        """
        for run_id, session_id in erased.items():
            await self._runs.forget_session(run_id, session_id)
        if erased:
            await self._sessions.forget(erased.values())

    async def _delete_lives(self, lives: Sequence[Life]) -> None:
        if not lives:
            return
        await self._writer.announce_deleted(lives)
        # Readers no longer see the runs from here on. The owners of the runs read the announcement
        # and remove the rest. A life that is not stored yet is left to them, because another life
        # with its run id may be earlier in the catalog.
        stored = await self._runs.with_logs([life.log_id for life in lives])
        await self._runs.delete(
            (life, partition_of(self._topics, life.run_id))
            for life in lives
            if RunTopic(life.run_id, life.log_id) in stored
        )

    async def _is_own(self, own: Life) -> bool:
        """Whether the stored run, if any, belongs to the session. The creator of a session could
        name the run of another session.
        """
        stored = (await self._runs.get_many([own.run_id])).get(own.run_id)
        return stored is None or (stored.log_id == own.log_id and stored.record.session_id == own.session_id)


def _session_ids(events: Sequence[Keyed]) -> set[str]:
    return {
        each.event.data.session_id
        for each in events
        if isinstance(each.event.data, SessionCreated | SessionUpdated | SessionDeleted)
    }
