"""ADK's session service on Runfold's sessions.

A session of ADK is one of ours, of an id made of app, user and ADK's own id; each event of it is
one record of its log. Whether a caller's session is stale is decided by that log: its marker says
which events the caller has seen, and an event is accepted only if no other came after those.
"""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self
from weakref import WeakValueDictionary

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
from pydantic_core import to_json

from runfold.access.sessions import session_connection
from runfold.adk.events import events_of, framework_event, json_form, state_delta, time_of, told_to_adk
from runfold.client.session import EventsWanted, Session, SessionVerbs
from runfold_projections.state import without_temporary
from runfold_schemas.codec import decode, new_event
from runfold_schemas.data import TEMP_PREFIX, TURN_ID_LENGTH_MAX, USER_PREFIX
from runfold_schemas.errors import (
    InvalidEventError,
    RejectedError,
    SessionConflictError,
    SessionNotFoundError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.sessions import FrameworkEvent, joined, parted

_TYPES: Final = frozenset({"framework_event"})
_PAGE: Final = 1000

_REDELIVERED_WITHIN: Final = 20
"""Events of the caller's session that are looked at for one that comes again. The log finds it
among all of them; only the caller's list would then have it twice.
"""


_CLOCK_ERROR: Final = timedelta(milliseconds=1)
"""Our times are exact to the microsecond, ADK's to the float: what is near enough is compared by
the float.
"""


class RunfoldSessionService(BaseSessionService):
    """`BaseSessionService` on Runfold: over its HTTP API, or on Kafka and MongoDB themselves.

        RunfoldSessionService("http://127.0.0.1:8080")
        RunfoldSessionService(kafka="127.0.0.1:9092", mongo="mongodb://127.0.0.1:27017/?replicaSet=rs0")

    Without arguments it takes `RUNFOLD_KAFKA`, `RUNFOLD_MONGO` and all other settings from the
    environment. It connects when it is first used. `close` it, or use it as an async context
    manager.

    A session that somebody else has appended to is stale: `StaleSessionError`. One that has ended
    takes nothing more: `SessionEndedError`. Kafka, MongoDB or the API away is `UnavailableError`,
    after which the same call is safe to repeat, but for `create_session`: that may have created the
    session, so its id is taken, or if none was given, there are two.
    """

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        """`settings` are those of `runfold.settings.Settings`, for use without the HTTP API."""
        self._connection = session_connection(url, settings)
        # Appends of one process to one session go one after the other, so that none of them makes
        # another one stale.
        self._appending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> Self:
        await self._connection.verbs()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._connection.close()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> AdkSession:
        """Raises `AlreadyExistsError`, and `InputValidationError` naming the key of a value that
        JSON cannot carry.
        """
        own_id = (session_id or "").strip() or str(uuid.uuid4())
        sessions = await self._connection.verbs()
        try:
            with told_to_adk():
                stored = json_form(without_temporary(state or {}), field="state")
                created = await sessions.create(
                    app=app_name, user=user_id, session_id=joined(app_name, user_id, own_id), state=stored
                )
        except SessionConflictError as error:
            raise AlreadyExistsError(f"Session with id {own_id} already exists.") from error
        return _session(created, [])

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> AdkSession | None:
        """None if there is no such session. With both limits, the newest of those that are late
        enough.
        """
        sessions = await self._connection.verbs()
        after = config.after_timestamp if config else None
        newest = config.num_recent_events if config else None
        wanted = EventsWanted(
            types=_TYPES,
            since=datetime.fromtimestamp(after, UTC) - _CLOCK_ERROR if after is not None else None,
            # One at the least, since it tells to the last bit when the session was updated.
            newest=max(newest, 1) if newest is not None and after is None else None,
        )
        try:
            found = await sessions.view(joined(app_name, user_id, session_id.strip()), wanted)
        except SessionNotFoundError:
            return None
        events = events_of(found.events)
        session = _session(found, events)
        if after is not None:
            events = [event for event in events if event.timestamp >= after]
        session.events = events if newest is None else events[len(events) - min(newest, len(events)) :]
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """All of them with their state, without events, the one that was updated last at the
        end.
        """
        sessions = await self._connection.verbs()
        found, cursor = await sessions.list(app=app_name, user=user_id, limit=_PAGE)
        while cursor is not None:
            more, cursor = await sessions.list(app=app_name, user=user_id, limit=_PAGE, cursor=cursor)
            found = [*found, *more]
        listed = [_session(one, []) for one in found if len(parted(one.session_id)) == len(_Key._fields)]
        listed.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=listed)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        sessions = await self._connection.verbs()
        try:
            await sessions.delete(joined(app_name, user_id, session_id.strip()))
        except SessionNotFoundError:
            return

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        sessions = await self._connection.verbs()
        state = await sessions.user_state(app_name, user_id)
        return {key.removeprefix(USER_PREFIX): value for key, value in state.items()}

    async def append_event(self, session: AdkSession, event: Event) -> Event:
        """Appends the event and brings `session` up to date with it; what fails changes neither.

        Raises ADK's `SessionNotFoundError` and `StaleSessionError`, and `InputValidationError`
        naming what JSON cannot carry. An event that the session has already is not appended again;
        one that the log has from a call whose answer was lost is taken, unless others came after
        it.
        """
        if event.partial:
            return event
        session_id = joined(session.app_name, session.user_id, session.id)
        with told_to_adk():
            delta = state_delta(event)
            said = framework_event(event, delta)
        async with self._appending.setdefault(session_id, asyncio.Lock()):
            if event in [one for one in session.events[-_REDELIVERED_WITHIN:] if one.id == event.id]:
                return event
            seen, marker = await self._publish(session, session_id, event, said, delta)
        if marker != seen:
            _take(session, event, delta)
            session._storage_update_marker = str(marker)  # noqa: SLF001  # ADK's place for it
        return event

    async def _publish(
        self, session: AdkSession, session_id: str, event: Event, said: FrameworkEvent, delta: dict[str, Any]
    ) -> tuple["_Marker", "_Marker"]:
        """The session's marker before and after; the same if the session has the event already."""
        sessions = await self._connection.verbs()
        try:
            seen = _marker(session) or await _compared(sessions, session, session_id)
            logged = _logged(event, said, delta, seen)
            position = await sessions.append(session_id, logged)
            if position.is_duplicate:
                return seen, await _repeated(sessions, session, session_id, logged, seen)
        except SessionNotFoundError as error:
            raise AdkSessionNotFoundError(f"Session {session.id} not found.") from error
        except RejectedError as error:
            raise _stale(session) from error
        except InvalidEventError as error:
            raise InputValidationError(str(error)) from error
        return seen, seen._replace(offset=position.offset)


def _stale(session: AdkSession) -> StaleSessionError:
    return StaleSessionError(
        f"Session {session.id} was appended to since it was loaded: load it again with get_session before appending to it."
    )


class _Key(NamedTuple):
    app: str
    user: str
    session_id: str


class _Marker(NamedTuple):
    """Up to where a caller's session has the log of which run."""

    run_id: str
    offset: int

    def __str__(self) -> str:
        return f"{self.run_id}:{self.offset}"


def _marker(session: AdkSession) -> _Marker | None:
    run_id, colon, offset = (session._storage_update_marker or "").rpartition(":")  # noqa: SLF001
    return _Marker(run_id, int(offset)) if colon and offset.isdecimal() else None


async def _compared(sessions: SessionVerbs, session: AdkSession, session_id: str) -> _Marker:
    """The marker of a session that has none, since it went through JSON or was made by hand. It is
    taken to be current if nothing was appended since its last update, or if its last event is the
    log's. Raises `StaleSessionError`.
    """
    found = await sessions.view(session_id, EventsWanted(types=_TYPES, newest=1))
    last = events_of(found.events)
    if last and _seconds(found, last) > session.last_update_time:
        ids = [event.id for event in session.events[-1:]]
        if ids != [last[-1].id]:
            raise _stale(session)
    marker = _Marker(found.record.run_id, found.last_offset)
    # For the same call again: the log may have its event by then, and the comparison would find
    # that one.
    session._storage_update_marker = str(marker)  # noqa: SLF001
    return marker


async def _repeated(
    sessions: SessionVerbs, session: AdkSession, session_id: str, logged: AnyEvent, seen: _Marker
) -> _Marker:
    """The marker after an event that the log has from before. Raises `StaleSessionError` if others
    were appended too.
    """
    found = await sessions.view(session_id, EventsWanted(types=_TYPES, newest=1))
    if found.record.run_id != seen.run_id:
        raise _stale(session)
    if found.last_offset <= seen.offset:
        return seen
    last = next(iter(found.events), None)
    if last is None or last.offset != found.last_offset or not _continues(decode(last.value), logged, seen):
        raise _stale(session)
    return seen._replace(offset=last.offset)


def _continues(event: AnyEvent, logged: AnyEvent, seen: _Marker) -> bool:
    """Whether the event that the log has is `logged`, and is the first that the caller has not
    seen.
    """
    # It was accepted since nothing came after what it expected itself.
    expected = event.expected_offset
    return event.event_id == logged.event_id and expected is not None and expected <= seen.offset


def _logged(event: Event, said: FrameworkEvent, delta: dict[str, Any], seen: _Marker) -> AnyEvent:
    # The same event again gives the same id, by which the log counts it once; another event of its
    # id does not.
    name = seen.run_id.encode() + to_json(said.body)
    invocation = event.invocation_id
    return new_event(
        said,
        event_id=str(uuid.UUID(bytes=blake2b(name, digest_size=16).digest())),
        run_id=seen.run_id,
        timestamp=time_of(event),
        turn_id=invocation if 0 < len(invocation) <= TURN_ID_LENGTH_MAX else None,
        expected_offset=seen.offset,
        **({"state_delta": delta} if delta else {}),
    )


def _take(session: AdkSession, event: Event, delta: dict[str, Any]) -> None:
    """Does to the caller's session what ADK's own services do."""
    given = event.actions.state_delta
    session.state.update({key: value for key, value in given.items() if key.startswith(TEMP_PREFIX)})
    if len(delta) != len(given):
        event.actions.state_delta = {key: value for key, value in given.items() if key in delta}
    session.state.update(event.actions.state_delta)
    session.events.append(event)
    session.last_update_time = event.timestamp


def _session(found: Session, events: list[Event]) -> AdkSession:
    key = _Key(*parted(found.session_id))
    session = AdkSession(
        app_name=key.app,
        user_id=key.user,
        id=key.session_id,
        state=dict(found.state),
        last_update_time=_seconds(found, events),
    )
    # Given to the constructor, each event would be validated once more.
    session.events = events
    session._storage_update_marker = str(_Marker(found.record.run_id, found.last_offset))  # noqa: SLF001
    return session


def _seconds(found: Session, events: list[Event]) -> float:
    """When the session was updated last: our times are exact to the microsecond, and ADK's event is
    to its last bit.
    """
    updated = found.updated_at.timestamp()
    return events[-1].timestamp if events and time_of(events[-1]) == found.updated_at else updated
