"""A session as it is read, the readers of sessions, and the verbs of sessions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, Unpack

from runfold.client.appender import Position
from runfold.client.envelope import Envelope
from runfold.client.prefixes import AsOfOptions
from runfold_projections.as_of import AsOf
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_schemas.data import Data
from runfold_schemas.errors import SessionNotFoundError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ABOUT_THE_RUN, ENDINGS
from runfold_schemas.sessions import app_scope, parted, user_scope
from runfold_schemas.topics import check_session_id


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Selects events of a session. A field that is None or empty does not restrict.

    Of the events that match, the last `newest` are taken, and of those the first `limit`. Events
    about the run itself (its opening, status, phase, labels) are only included if `types` names
    them.
    """

    types: frozenset[str] = frozenset()
    first_offset: int = 0
    end_offset: int | None = None
    """Exclusive."""
    since: datetime | None = None
    """Compared with the events' own timestamps, which are their producers' clocks."""
    newest: int | None = None
    limit: int | None = None


class RecordedEvent(NamedTuple):
    """An event as it is in the log. `log_time` is the broker's append time, in milliseconds since
    1970; `outcome` is "accepted" or "late"; `value` is the event as JSON.
    """

    offset: int
    log_time: int
    outcome: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """A session as it was at one moment, with everything before `next_offset` of its log."""

    record: SessionRecord
    run: RunRecord
    next_offset: int
    last_offset: int
    """The offset of the last event that counts: pass it as `expected_offset` to append only if
    nothing else was appended since.
    """
    state: Mapping[str, Any]
    """The session's own keys, and the shared keys with their prefixes `app:` and `user:`. As of an
    earlier moment, the own keys alone.
    """
    events: Sequence[RecordedEvent] = field(default=(), repr=False)

    @property
    def session_id(self) -> str:
        return self.record.session_id

    @property
    def ended(self) -> bool:
        return self.run.status in ENDINGS.values()

    @property
    def updated_at(self) -> datetime:
        """The time of its last event, or of the last change of its labels, name or expiry if that
        is later.
        """
        last_event_at = self.run.updated_at or self.record.created_at
        changed_at = self.record.changed_at
        return max(last_event_at, changed_at) if changed_at > self.record.created_at else last_event_at


NOW: Final = AsOf()
"""A session with all that its log has."""


class SessionReader(Protocol):
    """Reads sessions. Each answer includes everything that was acknowledged before the call."""

    async def find(self, session_id: str) -> SessionRecord | None:
        """The session's record, also if the session has expired."""

    async def view(
        self, record: SessionRecord, selection: EventSelection | None, moment: AsOf = NOW
    ) -> Session:
        """The session with its state. With its events, unless `selection` is None. Raises
        `InvalidEventError` for a moment that its log does not have.
        """

    async def values(self, scopes: Sequence[str]) -> dict[str, Any]:
        """The values of these scopes, by key."""

    async def list(
        self,
        *,
        app: str | None,
        user: str | None,
        labels: Mapping[str, str],
        limit: int,
        cursor: str | None,
        with_state: bool,
    ) -> tuple[list[Session], str | None]:
        """A page of sessions, the newest first, and the cursor of the next page. Without
        `with_state`, their state is empty.
        """


async def existing(reader: SessionReader, session_id: str) -> SessionRecord:
    """Raises `SessionNotFoundError`, also if the session has expired, and `InvalidIdError`."""
    record = await reader.find(check_session_id(session_id))
    if record is None or has_expired(record, datetime.now(UTC)):
        raise SessionNotFoundError(session_id)
    return record


def has_expired(record: SessionRecord, now: datetime) -> bool:
    return record.expires_at is not None and record.expires_at <= now


def shared_scopes(record: SessionRecord) -> list[str]:
    """The scopes whose state the session shares with others."""
    return [app_scope(record.app), user_scope(record.app, record.user)]


def user_of_scopes(scopes: Iterable[str]) -> str:
    """The user of the scope of a user among these; empty if there is none."""
    ids = (scope.removeprefix("user:") for scope in scopes if scope.startswith("user:"))
    return next((parted(id_)[-1] for id_ in ids), "")


def is_selected(offset: int, event: AnyEvent, selection: EventSelection) -> bool:
    """Whether the event matches, `newest` and `limit` aside."""
    return (
        offset >= selection.first_offset
        and (selection.end_offset is None or offset < selection.end_offset)
        and is_shown(event.type, selection.types)
        and (selection.since is None or event.timestamp >= selection.since)
    )


def is_shown(kind: str, types: frozenset[str]) -> bool:
    """Whether events of this kind are included. `types` is that of `EventSelection`."""
    return kind in types if types else kind not in ABOUT_THE_RUN


class SessionVerbs(Protocol):
    """The verbs of sessions. `Sessions` has them in this process and documents each; `HttpSessions`
    has them over HTTP.
    """

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
    ) -> Session: ...

    async def view(
        self,
        session_id: str,
        selection: EventSelection | None = None,
        **options: Unpack[AsOfOptions],
    ) -> Session: ...

    async def app_state(self, app: str) -> dict[str, Any]: ...

    async def user_state(self, app: str, user: str) -> dict[str, Any]: ...

    async def delete_app_state(self, app: str, keys: Iterable[str] | None = None) -> None: ...

    async def delete_user_state(self, app: str, user: str, keys: Iterable[str] | None = None) -> None: ...

    async def append(
        self, session_id: str, data: Data | AnyEvent, **envelope: Unpack[Envelope]
    ) -> Position: ...

    async def append_batch(self, session_id: str, batch: Iterable[Data | AnyEvent]) -> Sequence[Position]: ...

    async def update(
        self,
        session_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> Session: ...

    async def end(self, session_id: str) -> Session: ...

    async def delete(self, session_id: str) -> None: ...

    async def list(
        self,
        *,
        app: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        with_state: bool = True,
    ) -> tuple[Sequence[Session], str | None]: ...
