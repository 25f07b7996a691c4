"""The verbs of sessions for the principal of a request."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Protocol, Unpack

from runfold.client.appender import Position
from runfold.client.envelope import Envelope, event_of
from runfold.client.prefixes import AsOfOptions, as_of
from runfold.client.session import NOW, EventSelection, Session, SessionVerbs
from runfold.client.sessions import Sessions
from runfold.permissions.limits import only_choice, reaches_agent, reaches_user, require_agent, require_user
from runfold.permissions.permissions import Permissions, PermissionsOfRequest
from runfold_projections.effects import (
    ActsAs,
    ChangesAppState,
    ChangesUserState,
    Effect,
    effects_of_state,
)
from runfold_projections.session import SessionRecord
from runfold_schemas.catalog import Life
from runfold_schemas.data import Data
from runfold_schemas.errors import RunfoldError, SessionConflictError
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import check_session_id

RunsOfSession = Callable[[str], Awaitable[Sequence[Life]]]
"""Returns the lives of the runs that name a session, as far as they are stored."""


class ServedSessions(SessionVerbs, Protocol):
    """The verbs that routes use."""

    async def open_record(self, session_id: str) -> SessionRecord:
        """The session, to append to it. Raises `SessionNotFoundError`, `SessionEndedError`."""


class PermittedSessions:
    """`ServedSessions` that checks the limits of a principal, and the effects of its events."""

    def __init__(self, verbs: Sessions, permissions: Permissions, runs_of: RunsOfSession) -> None:
        self._verbs = verbs
        self._permissions = permissions
        self._runs_of = runs_of
        self._principal = permissions.principal

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
        effects: list[Effect] = [ActsAs(app, user), *effects_of_state(state or {}, app=app, user=user)]
        await self._permissions.check_effects(effects, action="a new session")
        if (chosen_id := session_id if session_id is not None else event_id) is not None:
            await self._check_id(chosen_id)
        session = await self._verbs.create(
            app=app,
            user=user,
            session_id=session_id,
            state=state,
            labels=labels,
            display_name=display_name,
            ttl=ttl,
            expires_at=expires_at,
            event_id=event_id,
        )
        if not self._permissions.reaches_session(session.record):
            # The id and the event's id are those of a session that exists.
            raise SessionConflictError(session.session_id)
        return session

    async def _check_id(self, session_id: str) -> None:
        """Raises `SessionConflictError` if the id belongs to a session of others, or if runs of
        others name it already: the owner of a session reads its runs, and deletes them with it.
        """
        if not self._permissions.is_limited:
            return
        record = await self._permissions.owners.session(check_session_id(session_id))
        if record is not None:
            is_taken = not self._permissions.reaches_session(record)
        else:
            is_taken = not all(
                reaches_agent(self._principal, life.agent_id) and reaches_user(self._principal, life.user_id)
                for life in await self._runs_of(session_id)
            )
        if is_taken:
            raise SessionConflictError(session_id)

    async def view(
        self,
        session_id: str,
        selection: EventSelection | None = None,
        **options: Unpack[AsOfOptions],
    ) -> Session:
        # Before the events of others are read, or folded as of an earlier moment.
        if selection is not None or as_of(options) != NOW:
            await self._permissions.check_session(session_id)
        async with self._hiding_others(session_id):
            session = await self._verbs.view(session_id, selection, **options)
        self._permissions.check_record(session_id, session.record)
        return session

    async def app_state(self, app: str) -> dict[str, Any]:
        require_agent(self._principal, app, action="the state of an app")
        return await self._verbs.app_state(app)

    async def user_state(self, app: str, user: str) -> dict[str, Any]:
        require_agent(self._principal, app, action="the state of a user")
        require_user(self._principal, user, action="the state of a user")
        return await self._verbs.user_state(app, user)

    async def delete_app_state(self, app: str, keys: Iterable[str] | None = None) -> None:
        await self._permissions.check_effects([ChangesAppState(app)], action="the deletion of state")
        await self._verbs.delete_app_state(app, keys)

    async def delete_user_state(self, app: str, user: str, keys: Iterable[str] | None = None) -> None:
        await self._permissions.check_effects([ChangesUserState(app, user)], action="the deletion of state")
        await self._verbs.delete_user_state(app, user, keys)

    async def open_record(self, session_id: str) -> SessionRecord:
        async with self._hiding_others(session_id):
            record = await self._verbs.open_record(session_id)
        self._permissions.check_record(session_id, record)
        return record

    async def append(self, session_id: str, data: Data | AnyEvent, **envelope: Unpack[Envelope]) -> Position:
        record = await self.open_record(session_id)
        event = event_of(data, record.run_id, **envelope)
        await self._permissions.check_events([event], app=record.app, user=record.user)
        return await self._verbs.append(session_id, data, **envelope)

    async def append_batch(self, session_id: str, batch: Iterable[Data | AnyEvent]) -> Sequence[Position]:
        record, batch = await self.open_record(session_id), list(batch)
        events = [event_of(data, record.run_id) for data in batch]
        await self._permissions.check_events(events, app=record.app, user=record.user)
        return await self._verbs.append_batch(session_id, batch)

    async def update(
        self,
        session_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> Session:
        await self._permissions.check_session(session_id)
        return await self._verbs.update(
            session_id, labels=labels, display_name=display_name, ttl=ttl, expires_at=expires_at
        )

    async def end(self, session_id: str) -> Session:
        await self._permissions.check_session(session_id)
        return await self._verbs.end(session_id)

    async def delete(self, session_id: str) -> None:
        await self._permissions.check_session(session_id)
        await self._verbs.delete(session_id)

    @asynccontextmanager
    async def _hiding_others(self, session_id: str) -> AsyncIterator[None]:
        """An error inside becomes `SessionNotFoundError` if the session belongs to others. So the
        owner is looked up after an error only.
        """
        try:
            yield
        except RunfoldError:
            await self._permissions.check_session(session_id)
            raise

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
        app = only_choice(self._principal.agents, app)
        user = only_choice(self._principal.users, user)
        require_agent(self._principal, app, action="a list of sessions")
        require_user(self._principal, user, action="a list of sessions")
        return await self._verbs.list(
            app=app, user=user, labels=labels, limit=limit, cursor=cursor, with_state=with_state
        )


def permitted_sessions(
    sessions: Callable[[], Sessions], permissions: PermissionsOfRequest, runs_of: RunsOfSession
) -> Callable[[], ServedSessions]:
    """The verbs for the principal of the current request."""

    def served() -> ServedSessions:
        allowed = permissions()
        return sessions() if allowed.is_complete else PermittedSessions(sessions(), allowed, runs_of)

    return served
