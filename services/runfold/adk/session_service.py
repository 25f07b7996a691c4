"""ADK's session service on Runfold's sessions.

A session of ADK is a session of Runfold whose id joins the app, the user and ADK's own id. Each of
its events is one record of the session's log. That log decides whether a caller's session is stale:
the session's marker names the last event that the caller has seen, and the log accepts an event
only if no other event follows that one.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.errors.session_not_found_error import SessionNotFoundError as AdkSessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session as AdkSession
from pydantic_core import PydanticSerializationError, to_json

from runfold.access.locks import NamedLocks
from runfold.access.sessions import session_connection
from runfold.adk.events import adk_errors, events_of, framework_event, json_form, state_delta, time_of
from runfold.client.session import EventSelection, Session, SessionVerbs
from runfold.client.sessions import Sessions
from runfold_projections.state import without_temporary
from runfold_schemas.codec import decode, new_event
from runfold_schemas.cursors import PAGE_MAX
from runfold_schemas.data import TEMP_PREFIX, TURN_ID_LENGTH_MAX, USER_PREFIX
from runfold_schemas.errors import (
    InvalidEventError,
    RejectedError,
    SessionConflictError,
    SessionNotFoundError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.sessions import FrameworkEvent, joined, parted
from runfold_schemas.whole_texts import whole_value

_TYPES: Final = frozenset({"framework_event"})

_REDELIVERED_WITHIN: Final = 20
"""How many of the newest events of the caller's session are compared with an event to append. The
log recognizes a repeated event wherever it is; this comparison only keeps it out of the caller's
list.
"""

_CLOCK_ERROR: Final = timedelta(milliseconds=1)
"""Runfold's times are exact to the microsecond, and ADK's are floats. Events within this range are
read, and then compared by the float.
"""


class RunfoldSessionService(BaseSessionService):
    """`BaseSessionService` over Runfold's HTTP API, or on Kafka and MongoDB directly.

        RunfoldSessionService("http://127.0.0.1:8080")
        RunfoldSessionService(kafka="127.0.0.1:9092", mongo="mongodb://127.0.0.1:27017/?replicaSet=rs0")

    Without arguments it reads `RUNFOLD_KAFKA`, `RUNFOLD_MONGO` and all other settings from the
    environment. It connects with the first call and works in any event loop and thread; nobody has
    to close it. On Kafka and MongoDB directly, an `async with` block holds a connection of the
    block's own loop, which makes calls from that loop a little cheaper.

    Appending to a session that has changed since it was loaded raises `StaleSessionError`.
    Appending to a session that has ended raises `SessionEndedError`. `UnavailableError` means that
    Kafka, MongoDB or the API is unavailable. After it the same call is safe to repeat, except
    `create_session`: the session may exist, so repeating the call raises `AlreadyExistsError`, or
    creates a second session if no id was given.
    """

    def __init__(self, url: str | None = None, *, api_key: str | None = None, **settings: Any) -> None:
        """`settings` are fields of `runfold.settings.Settings`, for use without the HTTP API.

        Args:
            url: the address of Runfold's API.
            api_key: an API key or a token for the API; by default, the variable `RUNFOLD_API_KEY`.
        """
        self._connection = session_connection(url, settings, api_key=api_key)
        # Concurrent appends of one session object follow each other, so that none makes another
        # stale.
        self._appending = NamedLocks()

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._connection.__aexit__(*exc_info)

    async def close(self) -> None:
        """Closes the connections as soon as no call uses them any more, from any loop. A later call
        connects again. The connection of an `async with` block closes when the block is left.
        """
        await self._connection.close()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        """Raises `AlreadyExistsError`, and `InputValidationError` with the key of a value that JSON
        cannot carry.
        """
        own_id = (session_id or "").strip() or str(uuid.uuid4())
        full_id = joined(app_name, user_id, own_id)
        try:
            with adk_errors():
                stored = json_form(without_temporary(state or {}), field="state")
                created = await self._connection.run(
                    lambda sessions: sessions.create(
                        app=app_name, user=user_id, session_id=full_id, state=stored
                    )
                )
        except SessionConflictError as error:
            raise AlreadyExistsError(f"Session with id {own_id} already exists.") from error
        return _adk_session(created, [])

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> AdkSession | None:
        """The session, or None if there is none. With both limits in `config`, the newest of the
        events after the timestamp.
        """
        after = config.after_timestamp if config else None
        newest = config.num_recent_events if config else None
        selection = EventSelection(
            types=_TYPES,
            since=datetime.fromtimestamp(after, UTC) - _CLOCK_ERROR if after is not None else None,
            # At least one event, because it has the exact time of the session's last update.
            newest=max(newest, 1) if newest is not None and after is None else None,
        )
        full_id = joined(app_name, user_id, session_id.strip())
        try:
            stored = await self._connection.run(lambda sessions: sessions.view(full_id, selection))
        except SessionNotFoundError:
            return None
        events = events_of(stored.events)
        session = _adk_session(stored, events)
        if after is not None:
            events = [event for event in events if event.timestamp >= after]
        session.events = events if newest is None else events[len(events) - min(newest, len(events)) :]
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """All sessions with their state and without events, the one that was updated last at the
        end.
        """
        stored = await self._connection.run(lambda sessions: _all_sessions(sessions, app_name, user_id))
        listed = [
            _adk_session(session, [])
            for session in stored
            if len(parted(session.session_id)) == len(_Key._fields)
        ]
        listed.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=listed)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        full_id = joined(app_name, user_id, session_id.strip())
        try:
            await self._connection.run(lambda sessions: sessions.delete(full_id))
        except SessionNotFoundError:
            return

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        state = await self._connection.run(lambda sessions: sessions.user_state(app_name, user_id))
        return {key.removeprefix(USER_PREFIX): value for key, value in state.items()}

    async def append_event(self, session: AdkSession, event: Event) -> Event:
        """Appends the event and brings `session` up to date with it. If that fails, neither
        changes.

        Raises ADK's `SessionNotFoundError` and `StaleSessionError`, and `InputValidationError` with
        the name of a value that JSON cannot carry. An event that the session already has is not
        appended again. An event that the log has from a call whose answer was lost is added to
        `session`, unless other events follow it.
        """
        if event.partial:
            return event
        session_id = joined(session.app_name, session.user_id, session.id)
        with adk_errors():
            delta = state_delta(event)
            new = _NewEvent(event, framework_event(event, delta), delta)
        async with self._appending.of(session_id):
            if event in [newest for newest in session.events[-_REDELIVERED_WITHIN:] if newest.id == event.id]:
                return event
            before, after = await self._connection.run(
                lambda sessions: _append(sessions, session, session_id, new)
            )
            if after != before:
                _apply(session, event, delta)
                session._storage_update_marker = str(after)  # noqa: SLF001  # ADK's place for the marker
        return event


async def _all_sessions(sessions: SessionVerbs, app: str, user: str | None) -> list[Session]:
    page, cursor = await sessions.list(app=app, user=user, limit=PAGE_MAX)
    stored = list(page)
    while cursor is not None:
        page, cursor = await sessions.list(app=app, user=user, limit=PAGE_MAX, cursor=cursor)
        stored += page
    return stored


class _NewEvent(NamedTuple):
    """An event to append."""

    event: Event
    stored: FrameworkEvent
    delta: dict[str, Any]
    """Its change of the stored state."""


async def _append(
    sessions: SessionVerbs, session: AdkSession, session_id: str, new: _NewEvent
) -> tuple["_Marker", "_Marker"]:
    """The session's marker before and after. Both are equal if the session has the event
    already.
    """
    try:
        marker = _marker(session) or await _current_marker(sessions, session, session_id)
        logged = await _logged(sessions, session, session_id, new, marker)
        position = await sessions.append(session_id, logged)
        if position.is_duplicate:
            return marker, await _marker_after_repeat(sessions, session, session_id, logged, marker)
    except SessionNotFoundError as error:
        raise AdkSessionNotFoundError(f"Session {session.id} not found.") from error
    except RejectedError as error:
        raise _stale(session) from error
    except InvalidEventError as error:
        raise InputValidationError(str(error)) from error
    return marker, marker._replace(offset=position.offset)


def _stale(session: AdkSession) -> StaleSessionError:
    return StaleSessionError(
        f"Session {session.id} has changed since it was loaded: load it again with get_session before"
        " you append to it."
    )


class _Key(NamedTuple):
    app: str
    user: str
    session_id: str


class _Marker(NamedTuple):
    """The last event of a run's log that a caller's session includes."""

    run_id: str
    offset: int

    def __str__(self) -> str:
        return f"{self.run_id}:{self.offset}"


def _marker(session: AdkSession) -> _Marker | None:
    run_id, colon, offset = (session._storage_update_marker or "").rpartition(":")  # noqa: SLF001
    return _Marker(run_id, int(offset)) if colon and offset.isdecimal() else None


async def _current_marker(sessions: SessionVerbs, session: AdkSession, session_id: str) -> _Marker:
    """The marker of a session that has none, because it was built by hand or went through JSON. The
    session counts as current if nothing was appended since its last update, or if its last event is
    the log's last event. Raises `StaleSessionError`.
    """
    stored = await sessions.view(session_id, EventSelection(types=_TYPES, newest=1))
    newest = events_of(stored.events)
    if newest and _updated_at(stored, newest) > session.last_update_time:
        ids = [event.id for event in session.events[-1:]]
        if ids != [newest[-1].id]:
            raise _stale(session)
    marker = _Marker(stored.record.run_id, stored.last_offset)
    # If this call is repeated, the log may already have its event, and the comparison would take
    # that event for somebody else's.
    session._storage_update_marker = str(marker)  # noqa: SLF001
    return marker


async def _marker_after_repeat(
    sessions: SessionVerbs, session: AdkSession, session_id: str, logged: AnyEvent, marker: _Marker
) -> _Marker:
    """The marker after an event that the log already has. Raises `StaleSessionError` if other
    events were appended too.
    """
    stored = await sessions.view(session_id, EventSelection(types=_TYPES, newest=1))
    if stored.record.run_id != marker.run_id:
        raise _stale(session)
    if stored.last_offset <= marker.offset:
        return marker
    last = next(iter(stored.events), None)
    if last is None or last.offset != stored.last_offset or not _follows(decode(last.value), logged, marker):
        raise _stale(session)
    return marker._replace(offset=last.offset)


def _follows(event: AnyEvent, logged: AnyEvent, marker: _Marker) -> bool:
    """Whether the log's event is `logged` and directly follows what the caller has seen."""
    # The log accepted the event, so nothing lies between it and the offset that it expected.
    expected = event.expected_offset
    return event.event_id == logged.event_id and expected is not None and expected <= marker.offset


def _json_of(body: Mapping[str, Any]) -> bytes:
    """The body as JSON, in which halves of surrogate pairs are U+FFFD, as the log stores it."""
    try:
        return to_json(body)
    except PydanticSerializationError:
        return to_json(whole_value(body))


async def _logged(
    sessions: SessionVerbs, session: AdkSession, session_id: str, new: _NewEvent, marker: _Marker
) -> AnyEvent:
    # The id is made of the content. So the log counts a repeated event once, and does not confuse
    # it with another event of the same ADK id.
    name = marker.run_id.encode() + _json_of(new.stored.body)
    keyed_id = None
    if isinstance(sessions, Sessions):  # over HTTP, an agent has no key
        keyed_id = await sessions.content_id(name, session_id=session_id, user=session.user_id)
    invocation = new.event.invocation_id
    return new_event(
        new.stored,
        event_id=keyed_id or str(uuid.UUID(bytes=blake2b(name, digest_size=16).digest())),
        run_id=marker.run_id,
        timestamp=time_of(new.event),
        turn_id=invocation if 0 < len(invocation) <= TURN_ID_LENGTH_MAX else None,
        expected_offset=marker.offset,
        **({"state_delta": new.delta} if new.delta else {}),
    )


def _apply(session: AdkSession, event: Event, delta: dict[str, Any]) -> None:
    """Changes the caller's session as ADK's own services do."""
    changes = event.actions.state_delta
    session.state.update({key: value for key, value in changes.items() if key.startswith(TEMP_PREFIX)})
    if len(delta) != len(changes):
        event.actions.state_delta = {key: value for key, value in changes.items() if key in delta}
    session.state.update(event.actions.state_delta)
    session.events.append(event)
    session.last_update_time = event.timestamp


def _adk_session(stored: Session, events: list[Event]) -> AdkSession:
    key = _Key(*parted(stored.session_id))
    session = AdkSession(
        app_name=key.app,
        user_id=key.user,
        id=key.session_id,
        state=dict(stored.state),
        last_update_time=_updated_at(stored, events),
    )
    # The constructor would validate each event once more.
    session.events = events
    session._storage_update_marker = str(_Marker(stored.record.run_id, stored.last_offset))  # noqa: SLF001
    return session


def _updated_at(stored: Session, events: list[Event]) -> float:
    """The time of the session's last update, in seconds. Runfold's time is exact to the
    microsecond; the float of ADK's event is exact to its last bit.
    """
    updated = stored.updated_at.timestamp()
    return events[-1].timestamp if events and time_of(events[-1]) == stored.updated_at else updated
