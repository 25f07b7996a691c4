"""Sessions over HTTP: the verbs of `Sessions`, for clients that reach Runfold's API and not Kafka.

    async with HttpSessions("http://127.0.0.1:8080") as sessions:
        session = await sessions.create(app="shop", user="u-1")
        await sessions.append(session.session_id, UserMessage(message="Hello"))

The errors are those of `Sessions`, with the same attributes. No request is sent a second time by
itself. After an `UnavailableError`, an append or a create that is repeated with the same `event_id`
counts once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Unpack

from runfold.client.appender import Position
from runfold.client.envelope import Envelope, event_of, naming_index
from runfold.client.prefixes import AsOfOptions, as_of
from runfold.client.records import stored_json
from runfold.client.session import EventSelection, Session, SessionVerbs
from runfold.client.session_state import check_state, naming_state_key
from runfold.client.sessions import Sessions
from runfold.documents.sessions import session_of, session_of_lines, sessions_of
from runfold.remote.api_client import HttpVerbs, pairs, quoted, texts_of
from runfold_projections.state import without_temporary
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import check_id, check_session_id

_LINES: Final = {"Accept": "application/x-ndjson"}
_ANY_RUN: Final = "-"
"""The run of an event before it is sent without one: the server knows the run of the session."""


class HttpSessions(HttpVerbs):
    """The verbs of sessions over HTTP. `HttpVerbs` has the parameters."""

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
        """As `Sessions.create`."""
        check_id(app, name="app")
        if session_id is not None:
            check_session_id(session_id)
        request = {
            "app": app,
            "user": user,
            "session_id": session_id,
            "state": without_temporary(state or {}),
            "labels": dict(labels or {}),
            **({"event_id": event_id} if event_id is not None else {}),
            **_changes(display_name, ttl, expires_at),
        }
        return session_of(await self._client.call("POST", "sessions", json=_dumped(request)))

    async def view(
        self,
        session_id: str,
        selection: EventSelection | None = None,
        **options: Unpack[AsOfOptions],
    ) -> Session:
        """As `Sessions.view`. An event's bytes are those of the log, but for line breaks between
        its tokens.
        """
        as_of(options)  # which refuses two of them
        parameters = {"include": "events", **_parameters(selection)} if selection is not None else {}
        parameters |= texts_of(options)
        body = await self._client.call("GET", _path(session_id), params=parameters, headers=_LINES)
        return session_of_lines(body)

    async def app_state(self, app: str) -> dict[str, Any]:
        """As `Sessions.app_state`."""
        return _state(await self._client.call("GET", f"apps/{quoted(check_id(app, name='app'))}/state"))

    async def user_state(self, app: str, user: str) -> dict[str, Any]:
        """As `Sessions.user_state`."""
        path = f"apps/{quoted(check_id(app, name='app'))}/users/{quoted(user)}/state"
        return _state(await self._client.call("GET", path))

    async def delete_app_state(self, app: str, keys: Iterable[str] | None = None) -> None:
        """As `Sessions.delete_app_state`."""
        path = f"apps/{quoted(check_id(app, name='app'))}/state"
        await self._delete_state(path, keys)

    async def delete_user_state(self, app: str, user: str, keys: Iterable[str] | None = None) -> None:
        """As `Sessions.delete_user_state`."""
        path = f"apps/{quoted(check_id(app, name='app'))}/users/{quoted(user)}/state"
        await self._delete_state(path, keys)

    async def _delete_state(self, path: str, keys: Iterable[str] | None) -> None:
        names = None if keys is None else list(keys)
        if names != []:  # without a key, the parameters mean all of them
            await self._client.call("DELETE", path, params={} if names is None else {"key": names})

    async def append(self, session_id: str, data: Data | AnyEvent, **envelope: Unpack[Envelope]) -> Position:
        """As `Sessions.append`."""
        content = _event_json(data, **envelope)
        answer = json.loads(await self._client.call("POST", f"{_path(session_id)}/events", json=content))
        return _position(answer, answer)

    async def append_batch(self, session_id: str, batch: Iterable[Data | AnyEvent]) -> Sequence[Position]:
        """As `Sessions.append_batch`."""
        content = b"[%b]" % b",".join(_at(index, data) for index, data in enumerate(batch))
        if content == b"[]":
            await self.view(session_id)
            return []
        answer = json.loads(await self._client.call("POST", f"{_path(session_id)}/events", json=content))
        return [_position(answer, position) for position in answer["positions"]]

    async def update(
        self,
        session_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> Session:
        """As `Sessions.update`."""
        changes = {**({"labels": dict(labels)} if labels else {}), **_changes(display_name, ttl, expires_at)}
        return session_of(await self._client.call("PATCH", _path(session_id), json=_dumped(changes)))

    async def end(self, session_id: str) -> Session:
        """As `Sessions.end`."""
        return session_of(await self._client.call("POST", f"{_path(session_id)}/end"))

    async def delete(self, session_id: str) -> None:
        """As `Sessions.delete`."""
        await self._client.call("DELETE", _path(session_id))

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
        """As `Sessions.list`, with a `limit` up to 1,000. A page of large sessions holds fewer than
        `limit`. The key of a label must not contain a colon.
        """
        filters = {"app": app, "user": user, "cursor": cursor, "limit": limit}
        if not with_state:
            filters["with_state"] = False
        parameters = {name: value for name, value in filters.items() if value is not None}
        labeled = {**parameters, "label": pairs(labels or {}, field="label")}
        return sessions_of(await self._client.call("GET", "sessions", params=labeled))


def _event_json(data: Data | AnyEvent, **envelope: Unpack[Envelope]) -> bytes:
    """The event as JSON, encoded and checked once. Without a run, if it was made here."""
    event = event_of(data, _ANY_RUN, **envelope)
    if event.state_delta:
        event = event.model_copy(update={"state_delta": without_temporary(event.state_delta)})
    with naming_state_key([event.state_delta]):
        value = stored_json(event)
    if isinstance(data, Data):
        # The first two fields of every event are its id, which is a UUID, and its run.
        head, run, rest = value.partition(b',"run_id":"%b"' % _ANY_RUN.encode())
        assert run
        value = head + rest
    return value


def _at(index: int, data: Data | AnyEvent) -> bytes:
    with naming_index(index):
        return _event_json(data)


def _position(answer: Mapping[str, Any], position: Mapping[str, Any]) -> Position:
    return Position(answer["run_id"], position["offset"], position.get("is_duplicate", False))


def _changes(display_name: str | None, ttl: timedelta | None, expires_at: datetime | None) -> dict[str, Any]:
    changes: dict[str, Any] = {"display_name": display_name} if display_name is not None else {}
    if ttl is not None:
        return {**changes, "ttl_seconds": ttl.total_seconds()}
    return {**changes, "expires_at": expires_at.isoformat()} if expires_at is not None else changes


def _parameters(selection: EventSelection) -> dict[str, Any]:
    parameters = {
        "type": sorted(selection.types),
        "first_offset": selection.first_offset or None,
        "end_offset": selection.end_offset,
        "since": selection.since.isoformat() if selection.since else None,
        "newest": selection.newest,
        "limit": selection.limit,
    }
    return {name: value for name, value in parameters.items() if value not in (None, [])}


def _state(body: bytes) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(body)["state"]
    return state


def _path(session_id: str) -> str:
    return f"sessions/{quoted(check_session_id(session_id))}"


def _dumped(request: Mapping[str, Any]) -> bytes:
    """The request as JSON. Raises `InvalidEventError` naming the key of `state` whose value JSON
    cannot carry exactly.
    """
    try:
        text = json.dumps(request, allow_nan=False)
        survives = json.loads(text) == request
    except (TypeError, ValueError, RecursionError):
        survives = False
    if not survives:
        check_state(request.get("state", {}), field="state")
    return (text if survives else json.dumps(request)).encode()


if TYPE_CHECKING:

    def _either(direct: Sessions, over_http: HttpSessions) -> tuple[SessionVerbs, SessionVerbs]:
        """Both can do the same: what mypy checks here."""
        return direct, over_http
