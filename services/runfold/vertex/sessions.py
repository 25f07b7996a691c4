"""Sessions of Agent Engine over HTTP, each of them one of ours.

    POST   {engine}/sessions              create one
    GET    {engine}/sessions              list them, by filter
    GET    {session}                      read one, with its state
    PATCH  {session}                      name, labels, state, expiry
    DELETE {session}                      gone, with its events
    POST   {session}:appendEvent          one event, which may change the state
    GET    {session}/events               its events, by time

Whoever appends through our own API, or reads a session's ledger there, has the same session before
him.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.session import Session
from runfold.client.sessions import Sessions
from runfold.vertex.app import RouteGroup
from runfold.vertex.errors import WireError
from runfold.vertex.filters import Filter, Kind, equalities, matches, parse_filter
from runfold.vertex.messages import Empty, Message, camel_name
from runfold.vertex.names import Name, checked_id, new_id
from runfold.vertex.operations import finished_operation
from runfold.vertex.paging import fetch_page, requested_page
from runfold.vertex.requests import json_response, name_of, query_parameter, read_message
from runfold.vertex.session_documents import (
    SESSIONS,
    CreateSession,
    SessionMessage,
    UpdateSession,
    belongs,
    filter_value,
    runfold_id,
)
from runfold.vertex.session_events import session_event_routes
from runfold_projections.session import SessionRecord
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.sessions import StateChanged

_FILTER_FIELDS: Final[Mapping[str, Kind]] = {
    "user_id": "text",
    "display_name": "text",
    "labels": "map",
    "create_time": "time",
    "update_time": "time",
    "expire_time": "time",
}

_ORDERS: Final = ("create_time desc", "createTime desc")

_FIELDS: Final = {"displayName", "labels", "sessionState", "ttl", "expireTime", "userId"}


class Engines(Protocol):
    """Which engines there are."""

    async def check(self, engine_id: str) -> None:
        """Raises that there is no such engine."""


def session_routes(sessions: Callable[[], Sessions], engines: Engines) -> RouteGroup:
    """`sessions` gives what the routes speak to, or raises while there is no connection."""
    handlers = _SessionHandlers(sessions, engines)
    one, many = "/reasoningEngines/{engine}/sessions/{session}", "/reasoningEngines/{engine}/sessions"
    routes = [
        *session_event_routes(sessions),
        Route(many, handlers.create, methods=["POST"]),
        Route(many, handlers.list, methods=["GET"]),
        Route(one, handlers.get, methods=["GET"]),
        Route(one, handlers.update, methods=["PATCH"]),
        Route(one, handlers.delete, methods=["DELETE"]),
    ]
    return RouteGroup(routes, {"createSession": handlers.created, "deleteSession": handlers.deleted})


class _SessionHandlers:
    """What the routes share, and what they do with it."""

    def __init__(self, sessions: Callable[[], Sessions], engines: Engines) -> None:
        self._sessions = sessions
        self._engines = engines

    async def create(self, request: Request) -> Response:
        """A new session, of a new id unless one is given: 409 where that is taken."""
        engine, asked = name_of(request), await read_message(request, CreateSession)
        given = query_parameter(request, "sessionId")
        name = engine.child(SESSIONS, checked_id(given, field="sessionId") if given else new_id())
        await self._engines.check(engine.engine_id)
        session = await self._sessions().create(
            app=engine.engine_id,
            user=asked.user_id,
            session_id=runfold_id(name),
            state=asked.session_state,
            labels=asked.labels,
            display_name=asked.display_name,
            expires_at=asked.lasts_until(datetime.now(UTC)),
        )
        return finished_operation(name, "createSession", SessionMessage.of(session, name))

    async def created(self, name: Name, _: Sequence[str]) -> Message:
        return await self._message(name)

    async def get(self, request: Request) -> Response:
        return json_response(await self._message(name_of(request)))

    async def list(self, request: Request) -> Response:
        """Sessions that the filter holds of, the newest first."""
        engine, asked = name_of(request), requested_page(request)
        wanted = parse_filter(query_parameter(request, "filter"), _FILTER_FIELDS)
        if (order := query_parameter(request, "orderBy")) and order not in _ORDERS:
            raise WireError("UNIMPLEMENTED", f"orderBy: sessions are sorted by {_ORDERS[0]} alone")
        await self._engines.check(engine.engine_id)
        sessions, named = self._sessions(), {"app": engine.engine_id, **_named(wanted)}

        async def fetch(limit: int, cursor: str | None) -> tuple[Sequence[Session], str | None]:
            return await sessions.list(**named, limit=limit, cursor=cursor)

        found, token = await fetch_page(fetch, partial(_is_wanted, wanted, engine), asked)
        shown = [SessionMessage.of(session, engine).json_form() for session in found]
        return json_response({"sessions": shown, **({"nextPageToken": token} if token else {})})

    async def update(self, request: Request) -> Response:
        """The session after the change. State is merged over what is there."""
        name, asked = name_of(request), await read_message(request, UpdateSession)
        asked = _masked(asked, query_parameter(request, "updateMask"))
        sessions, session_id = self._sessions(), runfold_id(name)
        _check_change((await sessions.view(session_id)).record, asked)
        expires_at = asked.expires_at(datetime.now(UTC))
        if expires_at is not None or asked.labels is not None or asked.display_name is not None:
            await sessions.update(
                session_id, labels=asked.labels, display_name=asked.display_name, expires_at=expires_at
            )
        if asked.session_state:
            await sessions.append(session_id, StateChanged(), state_delta=asked.session_state)
        return json_response(await self._message(name))

    async def delete(self, request: Request) -> Response:
        name = name_of(request)
        await self._sessions().delete(runfold_id(name))
        return finished_operation(name, "deleteSession", Empty())

    async def deleted(self, _: Name, __: Sequence[str]) -> Message:
        return Empty()

    async def _message(self, name: Name) -> SessionMessage:
        return SessionMessage.of(await self._sessions().view(runfold_id(name)), name)


def _named(wanted: Filter) -> dict[str, Any]:
    """What of the filter the verb can look for: the user and labels."""
    same = equalities(wanted)
    labels = {path[1]: str(value) for path, value in same.items() if path[0] == "labels" and len(path) > 1}
    user = same.get(("user_id",))
    return {"user": None if user is None else str(user), "labels": labels}


def _is_wanted(wanted: Filter, engine: Name, session: Session) -> bool:
    return belongs(session, engine) and matches(wanted, partial(filter_value, session))


def _check_change(record: SessionRecord, asked: UpdateSession) -> None:
    if asked.user_id is not None and asked.user_id != record.user:
        raise InvalidEventError("userId: a session stays with its user", field="userId")
    if asked.labels is not None and (missing := sorted(record.labels.keys() - asked.labels.keys())):
        # New labels stand in the place of the old ones, and our events merge them.
        raise WireError("UNIMPLEMENTED", f"labels: {missing[0]!r} cannot be taken away; give all there are")


def _masked(asked: UpdateSession, mask: str | None) -> UpdateSession:
    """What of the message the mask names; what it names and the message does not have is taken
    away, where that can be.
    """
    if mask is None or mask == "*":
        return asked
    named = {camel_name(name.strip()) for name in mask.split(",")}
    if unknown := sorted(named - _FIELDS):
        known = ", ".join(sorted(_FIELDS))
        raise InvalidEventError(f"updateMask: {unknown[0]!r} is not a field of {known}", field="updateMask")
    others: dict[str, None] = {
        name: None for name in UpdateSession.model_fields if camel_name(name) not in named
    }
    cleared: dict[str, Any] = {"display_name": "", "labels": {}}
    taken_away = {
        name: value
        for name, value in cleared.items()
        if camel_name(name) in named and getattr(asked, name) is None
    }
    return asked.model_copy(update={**others, **taken_away})
