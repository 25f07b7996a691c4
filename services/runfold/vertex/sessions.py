"""The routes of sessions. A session is a Runfold session of the engine's app.

    POST   {engine}/sessions              create one
    GET    {engine}/sessions              list them, by filter
    GET    {session}                      read one, with its state
    PATCH  {session}                      change name, labels, state, expiry
    DELETE {session}                      delete it, with its events
    POST   {session}:appendEvent          append an event, which may change the state
    GET    {session}/events               list its events, by time

The same sessions can be read and written through Runfold's own API.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from runfold.client.session import Session, SessionVerbs
from runfold.http.audited_ids import note_ids
from runfold.vertex.app import RouteGroup, resource_routes
from runfold.vertex.errors import WireError
from runfold.vertex.filters import Filter, Kind, equalities, label_equalities, matches, parse_filter
from runfold.vertex.messages import Empty, Message, camel_name
from runfold.vertex.names import Name, checked_id, new_id
from runfold.vertex.operations import finished_operation
from runfold.vertex.paging import fetch_page, requested_page
from runfold.vertex.requests import (
    json_page,
    json_response,
    masked_fields,
    name_of,
    query_parameter,
    read_message,
)
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

_FIELDS: Final = ("displayName", "labels", "sessionState", "ttl", "expireTime", "userId")


class Engines(Protocol):
    """The engines that exist."""

    async def check(self, engine_id: str) -> None:
        """Raises an error if there is no such engine."""


def session_routes(sessions: Callable[[], SessionVerbs], engines: Engines) -> RouteGroup:
    """`sessions` returns the client that the routes use, or raises while there is no connection."""
    handlers = _SessionHandlers(sessions, engines)
    routes = [
        *session_event_routes(sessions),
        *resource_routes("/reasoningEngines/{engine}/sessions", "session", handlers),
    ]
    return RouteGroup(
        routes, {"createSession": handlers.read_session, "deleteSession": handlers.read_nothing}
    )


class _SessionHandlers:
    """The handlers of the routes."""

    def __init__(self, sessions: Callable[[], SessionVerbs], engines: Engines) -> None:
        self._sessions = sessions
        self._engines = engines

    async def create(self, request: Request) -> Response:
        """Creates a session, with a new id unless one is given. 409 if that exists already."""
        engine, message = name_of(request), await read_message(request, CreateSession)
        id_ = query_parameter(request, "sessionId")
        name = engine.child(SESSIONS, checked_id(id_, field="sessionId") if id_ else new_id())
        note_ids({"user": message.user_id})
        await self._engines.check(engine.engine_id)
        session = await self._sessions().create(
            app=engine.engine_id,
            user=message.user_id,
            session_id=runfold_id(name),
            state=message.session_state,
            labels=message.labels,
            display_name=message.display_name,
            expires_at=message.lasts_until(datetime.now(UTC)),
        )
        return finished_operation(name, "createSession", SessionMessage.of(session, name))

    async def read_session(self, name: Name, _: Sequence[str]) -> Message:
        return await self._message(name)

    async def get(self, request: Request) -> Response:
        return json_response(await self._message(name_of(request)))

    async def list(self, request: Request) -> Response:
        """Lists the sessions that the filter matches, the newest first."""
        engine, page = name_of(request), requested_page(request)
        filter_ = parse_filter(query_parameter(request, "filter"), _FILTER_FIELDS)
        if (order := query_parameter(request, "orderBy")) and order not in _ORDERS:
            raise WireError("UNIMPLEMENTED", f"orderBy: sessions can only be sorted by {_ORDERS[0]}")
        await self._engines.check(engine.engine_id)
        sessions, conditions = self._sessions(), {"app": engine.engine_id, **_conditions(filter_)}
        note_ids({"user": conditions["user"]})

        async def fetch(limit: int, cursor: str | None) -> tuple[Sequence[Session], str | None]:
            return await sessions.list(**conditions, limit=limit, cursor=cursor)

        matching, token = await fetch_page(fetch, partial(_matches, filter_, engine), page)
        items = [SessionMessage.of(session, engine).json_form() for session in matching]
        return json_page("sessions", items, token)

    async def update(self, request: Request) -> Response:
        """Changes a session. New state is merged into the old one."""
        name, message = name_of(request), await read_message(request, UpdateSession)
        update = _masked(message, query_parameter(request, "updateMask"))
        sessions, session_id = self._sessions(), runfold_id(name)
        _check_update((await sessions.view(session_id)).record, update)
        expires_at = update.expires_at(datetime.now(UTC))
        if expires_at is not None or update.labels is not None or update.display_name is not None:
            await sessions.update(
                session_id, labels=update.labels, display_name=update.display_name, expires_at=expires_at
            )
        if update.session_state:
            await sessions.append(session_id, StateChanged(), state_delta=update.session_state)
        return json_response(await self._message(name))

    async def delete(self, request: Request) -> Response:
        name = name_of(request)
        await self._sessions().delete(runfold_id(name))
        return finished_operation(name, "deleteSession", Empty())

    async def read_nothing(self, _: Name, __: Sequence[str]) -> Message:
        return Empty()

    async def _message(self, name: Name) -> SessionMessage:
        return SessionMessage.of(await self._sessions().view(runfold_id(name)), name)


def _conditions(filter_: Filter) -> dict[str, Any]:
    """The user and the labels that every match of the filter has, by which the list is read."""
    user = equalities(filter_).get(("user_id",))
    return {"user": None if user is None else str(user), "labels": label_equalities(filter_)}


def _matches(filter_: Filter, engine: Name, session: Session) -> bool:
    return belongs(session, engine) and matches(filter_, partial(filter_value, session))


def _check_update(record: SessionRecord, update: UpdateSession) -> None:
    if update.user_id is not None and update.user_id != record.user:
        raise InvalidEventError("userId: the user of a session cannot change", field="userId")
    if update.labels is not None and (missing := sorted(record.labels.keys() - update.labels.keys())):
        # In this protocol new labels replace the old ones, but Runfold's events merge them.
        raise WireError("UNIMPLEMENTED", f"labels: {missing[0]!r} cannot be removed: send all labels")


def _masked(message: UpdateSession, mask: str | None) -> UpdateSession:
    """The message with only the fields that the mask names. A field that the mask names, and that
    has no value in the message, is cleared if it can be.
    """
    if mask is None or mask == "*":
        return message
    fields = masked_fields(mask, known=_FIELDS)
    others: dict[str, None] = {
        name: None for name in UpdateSession.model_fields if camel_name(name) not in fields
    }
    empty: dict[str, Any] = {"display_name": "", "labels": {}}
    cleared = {
        name: value
        for name, value in empty.items()
        if camel_name(name) in fields and getattr(message, name) is None
    }
    return message.model_copy(update={**others, **cleared})
