"""Sessions: conversations with their state, over any number of processes. The events of a session
are in the log of its run.

    sessions = runfold.sessions
    session = await sessions.create(app="shop", user="u-1", state={"user:language": "en"})
    await sessions.append(session.session_id, UserMessage(message="Hello"), state_delta={"step": 1})
    (await sessions.view(session.session_id)).state

State keys are scoped by prefix: `app:` keys are shared by all users of an app, `user:` keys by all
sessions of a user, `temp:` keys are never stored, and every other key belongs to the session.
Writing needs Kafka. Reading is done by a `SessionReader`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Unpack

from runfold.client.appender import Position
from runfold.client.connection import LogConnection
from runfold.client.envelope import Envelope
from runfold.client.pages import check_limit
from runfold.client.prefixes import AsOfOptions, as_of
from runfold.client.run_deletion import seal
from runfold.client.session import (
    EventSelection,
    Session,
    SessionReader,
    existing,
    has_expired,
    shared_scopes,
)
from runfold.client.session_appender import SessionAppender, forwarding
from runfold.client.session_state import checked_state_key, naming_state_key
from runfold.encryption.subjects import subject_of_session
from runfold.ids import new_event_id, new_log_id, uuid7
from runfold.log.shared import deliver, shared_record
from runfold_projections.admission import Admitted
from runfold_projections.run import RunRecord, fold
from runfold_projections.session import SessionRecord, life_of
from runfold_projections.state import Forward, own_keys, without_temporary
from runfold_schemas.codec import Record, decode, new_data, new_event
from runfold_schemas.data import APP_PREFIX, USER_PREFIX, Data
from runfold_schemas.errors import (
    SessionConflictError,
    SessionEndedError,
    SessionNotFoundError,
    UnavailableError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import NO_RUN
from runfold_schemas.runs import RunOpened
from runfold_schemas.sessions import (
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateDeleted,
    app_scope,
    session_key,
    session_run_id,
    user_scope,
)
from runfold_schemas.topics import check_id, check_session_id


class Sessions:
    """The verbs of sessions. Every verb may raise `UnavailableError`, `InvalidIdError` and
    `InvalidEventError`.
    """

    def __init__(self, connection: LogConnection, reader: SessionReader) -> None:
        self._connection = connection
        self.content_id: Final = partial(_content_id, connection)
        """Returns the id of an event of a session that is made of its content: the same in every
        process. None if encryption is off. Raises `UnavailableError`.
        """
        self._reader = reader
        self._appender = SessionAppender(connection, reader)

    async def create(
        self,
        *,
        app: str,
        user: str = "",
        session_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
        expires_at: datetime | None = None,
        event_id: str | None = None,
    ) -> Session:
        """Creates a session. Raises `SessionConflictError` if the id is taken.

        The session expires `ttl` from now, or else at `expires_at`; by default it never expires.

        `event_id` makes the call repeatable: after an `UnavailableError`, call again with the same
        `event_id`, and the session that the first call created is returned. It is a UUID in lower
        case. It is also the session's id, unless `session_id` names one. By default both ids are
        new.
        """
        now = datetime.now(UTC)
        created = new_data(
            SessionCreated,
            session_id=check_session_id(session_id if session_id is not None else event_id or str(uuid7())),
            app=check_id(app, name="app"),
            user=user,
            log_id=new_log_id(),
            labels=labels or {},
            display_name=display_name,
            expires_at=_expiry(ttl, expires_at, now),
        )
        if record := await self._unexpired(created.session_id, now):
            return await self._created_before(record, event_id)
        opening = _opening(created, without_temporary(state or {}), event_id=event_id, now=now)
        with naming_state_key([opening.state_delta], field="state"):
            stored = await self._connection.sealed(opening, subject_of_session(created.session_id, user))
            # Encoded before anything is written, because shared state may be too large.
            shared = forwarding(self._connection.settings, [stored], app=app, user=user)
            record = await self._reserve(created, stored)
        if record.run_id != opening.run_id:
            return await self._created_before(record, event_id)
        await self._connection.announce(life_of(record))
        await deliver(self._connection.publisher, shared)
        return await self._keep(record, opening)

    async def view(
        self,
        session_id: str,
        selection: EventSelection | None = None,
        **options: Unpack[AsOfOptions],
    ) -> Session:
        """The session with its state. With `selection`, also with the events that match it.

        With one of `options`, as its log was at an earlier moment: its events, its status and its
        own state. Keys that it shares with others are left out. Its labels, name and expiry are
        those of now.

        Raises `SessionNotFoundError`, and `InvalidEventError` for a moment that its log does not
        have.
        """
        moment = as_of(options)
        record = await existing(self._reader, session_id)
        try:
            return await self._reader.view(record, selection, moment)
        except UnavailableError:
            # The reader fails if the log was deleted while it was read.
            current = await existing(self._reader, session_id)
            if current.run_id == record.run_id:
                raise
            return await self._reader.view(current, selection, moment)

    async def app_state(self, app: str) -> dict[str, Any]:
        """The state that all users of an app share, by key."""
        return await self._reader.values([app_scope(check_id(app, name="app"))])

    async def user_state(self, app: str, user: str) -> dict[str, Any]:
        """The state that all sessions of a user of an app share, by key."""
        return await self._reader.values([user_scope(check_id(app, name="app"), user)])

    async def delete_app_state(self, app: str, keys: Iterable[str] | None = None) -> None:
        """Deletes the values of these keys that all users of an app share, or of all keys. The keys
        are those that `app_state` returns.
        """
        await self._delete_state(app_scope(check_id(app, name="app")), APP_PREFIX, keys)

    async def delete_user_state(self, app: str, user: str, keys: Iterable[str] | None = None) -> None:
        """Deletes the values of these keys that all sessions of a user of an app share, or of all
        keys. The keys are those that `user_state` returns.
        """
        await self._delete_state(user_scope(check_id(app, name="app"), user), USER_PREFIX, keys)

    async def append(self, session_id: str, data: Data | AnyEvent, **envelope: Unpack[Envelope]) -> Position:
        """Appends one event, and returns when the event and its changes of shared state are
        durable.

        `state_delta` changes the state. `expected_offset` makes the append conditional: with the
        `last_offset` of a session that was read, it fails if anything was appended since.

        Raises `SessionNotFoundError`, `SessionEndedError` and `EventTooLargeError`. Raises
        `RejectedError` if another event came before `expected_offset`. After `UnavailableError` it
        is safe to append the same event, or the same `event_id`, again.
        """
        [position] = await self._appender.append(session_id, [data], envelope)
        return position

    async def append_batch(self, session_id: str, batch: Iterable[Data | AnyEvent]) -> Sequence[Position]:
        """Appends several events as one record batch: all of them or none. Raises what `append`
        raises, except `RejectedError` for an `expected_offset`.
        """
        return await self._appender.append(session_id, list(batch), {})

    async def run_id(self, session_id: str) -> str:
        """The id of the run whose log has the session's events, to append to it. Raises
        `SessionNotFoundError`, `SessionEndedError`.
        """
        return (await self._appender.opened(session_id)).appender.run_id

    async def open_record(self, session_id: str) -> SessionRecord:
        """The session, to append to it. Raises `SessionNotFoundError`, `SessionEndedError`."""
        return (await self._appender.opened(session_id)).record

    async def update(
        self,
        session_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> Session:
        """Changes the session: labels are merged with the labels it has, and it expires `ttl` from
        now, or else at `expires_at`. An argument that is None leaves its field as it is.

        Raises `SessionNotFoundError`, `SessionEndedError`.
        """
        now = datetime.now(UTC)
        updated = new_data(
            SessionUpdated,
            session_id=session_id,
            labels=labels or {},
            display_name=display_name,
            expires_at=_expiry(ttl, expires_at, now),
        )
        record = await existing(self._reader, session_id)
        if (await self._reader.view(record, None)).ended:
            raise SessionEndedError(session_id)
        await self._change(updated, session_id, record.run_id, now, user=record.user)
        changed = await self._reader.find(session_id)
        if changed is None or changed.run_id != record.run_id:
            raise SessionNotFoundError(session_id)
        await self._appender.open_as(changed)
        return await self._reader.view(changed, None)

    async def end(self, session_id: str) -> Session:
        """Ends the session: it stays readable, and nothing can be appended any more. Raises
        `SessionNotFoundError`, `SessionEndedError`.
        """
        await self._appender.end(await existing(self._reader, session_id))
        return await self.view(session_id)

    async def delete(self, session_id: str) -> None:
        """Deletes the session with its events and its runs. Shared state stays. Raises
        `SessionNotFoundError`.
        """
        await self._delete(await existing(self._reader, session_id))

    async def list(
        self,
        *,
        app: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        with_state: bool = True,
    ) -> tuple[Sequence[Session], str | None]:
        """A page of sessions with their state, the newest first, and the cursor of the next page.

        The cursor names the last session of the page, so sessions that are created meanwhile shift
        nothing. It is None on the last page. With several filters a session matches all of them.
        Without `with_state`, the sessions come without their state, which takes less time.
        """
        return await self._reader.list(
            app=app,
            user=user,
            labels=labels or {},
            limit=check_limit(limit),
            cursor=cursor,
            with_state=with_state,
        )

    async def _unexpired(self, session_id: str, now: datetime) -> SessionRecord | None:
        """The session that has the id, if there is one. A session that has expired is deleted."""
        record = await self._reader.find(session_id)
        if record is not None and has_expired(record, now):
            await self._delete(record)
            return None
        return record

    async def _reserve(self, created: SessionCreated, opening: AnyEvent) -> SessionRecord:
        """Creates the log of the session and the session's record, and returns the record that has
        the id now. Raises `SessionConflictError` if that session was deleted at once.
        """
        topic = self._connection.topics.run(opening.run_id, created.log_id)
        await self._connection.open_topic(topic, opening)
        await self._change(created, created.session_id, opening.run_id, opening.timestamp, user=created.user)
        record = await self._reader.find(created.session_id)
        if record is None or record.run_id != opening.run_id:
            await self._connection.delete_topic(topic)
        if record is None:
            raise SessionConflictError(created.session_id)
        return record

    async def _keep(self, record: SessionRecord, opening: AnyEvent) -> Session:
        """The new session. It stays open for appending."""
        # From now on, the catalog notices when another client deletes the session.
        self._connection.catalog.follow(opening.run_id)
        self._appender.keep(record, self._connection.appender_of(life_of(record), is_new=True), 1)
        values = await self._reader.values(shared_scopes(record))
        return _new_session(record, opening, values)

    async def _created_before(self, record: SessionRecord, event_id: str | None) -> Session:
        """The session, if `event_id` has created it. Raises `SessionConflictError` if not.

        The first call may have failed halfway, so its remaining steps are done again.
        """
        if event_id is None:
            raise SessionConflictError(record.session_id)
        # The projector reads only runs that the catalog lists, and readers may wait for it.
        if await self._connection.catalog.lookup(record.run_id) is None:
            await self._connection.announce(life_of(record))
        selection = EventSelection(types=frozenset({"run_opened"}), end_offset=1)
        openings = [decode(logged.value) for logged in (await self._reader.view(record, selection)).events]
        if not openings or openings[0].event_id != event_id:
            raise SessionConflictError(record.session_id)
        # The same event_id counts once, so shared state that changed since stays as it is.
        subject = subject_of_session(record.session_id, record.user)
        stored = [await self._connection.sealed(opening, subject) for opening in openings]
        shared = forwarding(self._connection.settings, stored, app=record.app, user=record.user)
        await deliver(self._connection.publisher, shared)
        return await self._reader.view(record, None)

    async def _delete(self, record: SessionRecord) -> None:
        now = datetime.now(UTC)
        await seal(self._connection, life_of(record), reason="its session was deleted")
        deleted = new_data(SessionDeleted, session_id=record.session_id)
        await self._change(deleted, record.session_id, record.run_id, now, user=record.user)
        self._appender.close(record.session_id)
        await self._reader.find(record.session_id)  # which waits until no reader has it any more
        topic = self._connection.topics.run(record.run_id, record.log_id)
        await self._connection.publisher.forget(topic)

    async def _delete_state(self, scope: str, prefix: str, keys: Iterable[str] | None) -> None:
        names = None if keys is None else [checked_state_key(key, prefix) for key in keys]
        deleted = new_data(StateDeleted, keys=names)
        event = new_event(deleted, event_id=new_event_id(), run_id=NO_RUN, timestamp=datetime.now(UTC))
        await deliver(
            self._connection.publisher, [shared_record(self._connection.settings, Forward(scope, event))]
        )
        await self._reader.values([scope])  # which waits until no reader has them any more

    async def _change(self, data: Data, session_id: str, run_id: str, now: datetime, *, user: str) -> None:
        """Publishes a change of the session's record, and returns when it is durable."""
        event = new_event(data, event_id=new_event_id(), run_id=run_id, timestamp=now)
        subject = subject_of_session(session_id, user)
        event = await self._connection.sealed(event, subject, is_whole=False)
        record = shared_record(self._connection.settings, Forward(session_key(session_id), event))
        await deliver(self._connection.publisher, [record])


def _expiry(ttl: timedelta | None, expires_at: datetime | None, now: datetime) -> datetime | None:
    return now + ttl if ttl is not None else expires_at


def _opening(
    created: SessionCreated, state: Mapping[str, Any], *, event_id: str | None, now: datetime
) -> AnyEvent:
    opened = new_data(
        RunOpened,
        agent_id=created.app,
        log_id=created.log_id,
        session_id=created.session_id,
        user_id=created.user,
    )
    return new_event(
        opened,
        event_id=event_id or new_event_id(),
        run_id=session_run_id(created.log_id),
        timestamp=now,
        **({"state_delta": dict(state)} if state else {}),
    )


def _new_session(record: SessionRecord, opening: AnyEvent, shared: Mapping[str, Any]) -> Session:
    # The opening is its only event, so nothing has to be read.
    opened = Admitted(Record(0, 0, None, (), None), "accepted", opening)
    return Session(
        record,
        fold(RunRecord(run_id=record.run_id), [opened]),
        next_offset=1,
        last_offset=0,
        state={**own_keys(opening.state_delta), **shared},
    )


async def _content_id(connection: LogConnection, content: bytes, *, session_id: str, user: str) -> str | None:
    sealing = connection.sealing
    return await sealing.content_id(content, subject_of_session(session_id, user)) if sealing else None
