"""Sessions over HTTP: the verbs of `Sessions`, for whoever speaks to Runfold's API and not to
Kafka.

    async with HttpSessions("http://127.0.0.1:8080") as sessions:
        session = await sessions.create(app="shop", user="u-1")
        await sessions.append(session.session_id, UserMessage(message="Hello"))

Errors are those of `Sessions`, with their facts. Nothing is sent a second time by itself: an append
that ended in an `UnavailableError` may be repeated with the same `event_id`, and counts once.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from runfold.client.appender import Position
from runfold.client.session import EventsWanted, Session, SessionVerbs
from runfold.client.sessions import Sessions, checked_state
from runfold.documents.sessions import session_of, session_of_lines, sessions_of
from runfold.ids import new_event_id
from runfold.remote.api_client import HttpClient, pairs, quoted
from runfold_schemas.codec import encode, new_event
from runfold_schemas.data import Data
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import check_id, check_session_id

_LINES: Final = {"Accept": "application/x-ndjson"}
_ANY_RUN: Final = "-"
"""The server knows the session's run; an event of ours is only checked with this one."""


class HttpSessions:
    """It connects with the first call. Leave its `async with` block, or call `close`, when it is
    not needed any more.

    Args:
        url: where Runfold's API is, with the path that a gateway may put before it.
        timeout_seconds: how long to wait for the server at any step of a call.
        headers: sent with every request, for a gateway's authorization.
    """

    def __init__(
        self, url: str, *, timeout_seconds: float = 30.0, headers: Mapping[str, str] | None = None
    ) -> None:
        self._client = HttpClient(url, timeout_seconds=timeout_seconds, headers=headers)
        self.url = self._client.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a later call makes new ones."""
        await self._client.close()

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
    ) -> Session:
        """As `Sessions.create`."""
        check_id(app, name="app")
        if session_id is not None:
            check_session_id(session_id)
        asked = {
            "app": app,
            "user": user,
            "session_id": session_id,
            "state": checked_state(state or {}, field="state"),
            "labels": dict(labels or {}),
            **_said(display_name, ttl),
        }
        return session_of(await self._client.call("POST", "sessions", json=_dumped(asked)))

    async def view(self, session_id: str, wanted: EventsWanted | None = None) -> Session:
        """As `Sessions.view`. An event's bytes are those of the log, but for line breaks between
        its tokens.
        """
        parameters = {"include": "events", **_parameters(wanted)} if wanted is not None else {}
        body = await self._client.call("GET", _path(session_id), params=parameters, headers=_LINES)
        return session_of_lines(body)

    async def app_state(self, app: str) -> dict[str, Any]:
        """As `Sessions.app_state`."""
        return _state(await self._client.call("GET", f"apps/{quoted(check_id(app, name='app'))}/state"))

    async def user_state(self, app: str, user: str) -> dict[str, Any]:
        """As `Sessions.user_state`."""
        path = f"apps/{quoted(check_id(app, name='app'))}/users/{quoted(user)}/state"
        return _state(await self._client.call("GET", path))

    async def append(self, session_id: str, data: Data | AnyEvent, **envelope: Any) -> Position:
        """As `Sessions.append`."""
        content = _event_json(data, **envelope)
        said = json.loads(await self._client.call("POST", f"{_path(session_id)}/events", json=content))
        return _position(said, said)

    async def append_batch(self, session_id: str, batch: Iterable[Data | AnyEvent]) -> list[Position]:
        """As `Sessions.append_batch`."""
        content = b"[%b]" % b",".join(_at(index, data) for index, data in enumerate(batch))
        if content == b"[]":
            await self.view(session_id)
            return []
        said = json.loads(await self._client.call("POST", f"{_path(session_id)}/events", json=content))
        return [_position(said, one) for one in said["positions"]]

    async def update(
        self,
        session_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
    ) -> Session:
        """As `Sessions.update`."""
        asked = {**({"labels": dict(labels)} if labels else {}), **_said(display_name, ttl)}
        return session_of(await self._client.call("PATCH", _path(session_id), json=_dumped(asked)))

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
    ) -> tuple[list[Session], str | None]:
        """As `Sessions.list`, up to 1,000 at a time, and fewer than `limit` of large ones. A
        label's key must be without a colon.
        """
        asked = {"app": app, "user": user, "cursor": cursor, "limit": limit}
        parameters = {name: value for name, value in asked.items() if value is not None}
        labeled = {**parameters, "label": pairs(labels or {}, field="label")}
        return sessions_of(await self._client.call("GET", "sessions", params=labeled))


def _event_json(data: Data | AnyEvent, **envelope: Any) -> bytes:
    if not isinstance(data, Data):
        encode(event := _stored(data))
        return event.model_dump_json(exclude_unset=True).encode()
    given = {name: value for name, value in envelope.items() if value is not None}
    filled = {"event_id": new_event_id(), "timestamp": datetime.now(UTC), "run_id": _ANY_RUN}
    encode(event := _stored(new_event(data, **{**filled, **given})))
    return event.model_dump_json(exclude_unset=True, exclude={"run_id"}).encode()


def _stored(event: AnyEvent) -> AnyEvent:
    if not event.state_delta:
        return event
    return event.model_copy(update={"state_delta": checked_state(event.state_delta)})


def _at(index: int, data: Data | AnyEvent) -> bytes:
    try:
        return _event_json(data)
    except InvalidEventError as error:
        raise InvalidEventError(error.args[0], field=error.field, index=index) from error


def _position(said: Mapping[str, Any], one: Mapping[str, Any]) -> Position:
    return Position(said["run_id"], one["offset"], one.get("is_duplicate", False))


def _said(display_name: str | None, ttl: timedelta | None) -> dict[str, Any]:
    said: dict[str, Any] = {"display_name": display_name} if display_name is not None else {}
    return {**said, "ttl_seconds": ttl.total_seconds()} if ttl is not None else said


def _parameters(wanted: EventsWanted) -> dict[str, Any]:
    given = {
        "type": sorted(wanted.types),
        "first_offset": wanted.first_offset or None,
        "end_offset": wanted.end_offset,
        "since": wanted.since.isoformat() if wanted.since else None,
        "newest": wanted.newest,
        "limit": wanted.limit,
    }
    return {name: value for name, value in given.items() if value not in (None, [])}


def _state(body: bytes) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(body)["state"]
    return state


def _path(session_id: str) -> str:
    return f"sessions/{quoted(check_session_id(session_id))}"


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


if TYPE_CHECKING:

    def _either(direct: Sessions, over_http: HttpSessions) -> tuple[SessionVerbs, SessionVerbs]:
        """Both can do the same: what mypy checks here."""
        return direct, over_http
