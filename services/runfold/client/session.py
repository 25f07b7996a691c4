"""A session as it is read, what reads it, and what can be done with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from runfold.client.appender import Position
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS


@dataclass(frozen=True, slots=True)
class EventsWanted:
    """Which of a session's events to read: of these kinds, within these offsets, at this time or
    later, only the last `newest` of them, and of those the first `limit`. What is None or empty
    does not restrict. What happened to the run itself is only among them where its kind is named.
    """

    types: frozenset[str] = frozenset()
    first_offset: int = 0
    end_offset: int | None = None
    since: datetime | None = None
    """By the events' own timestamps, which are their producers' clocks."""
    newest: int | None = None
    limit: int | None = None


class Logged(NamedTuple):
    """An event as it is in the log; `log_time` is the broker's, in milliseconds since 1970."""

    offset: int
    log_time: int
    outcome: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """A session as it was at one moment: everything before `next_offset` of its log is in it."""

    record: SessionRecord
    run: RunRecord
    next_offset: int
    last_offset: int
    """Of the last event that counts: what `expected_offset` is for who has seen the session so."""
    state: Mapping[str, Any]
    """With the beginnings of its keys."""
    events: Sequence[Logged] = field(default=(), repr=False)

    @property
    def session_id(self) -> str:
        return self.record.session_id

    @property
    def ended(self) -> bool:
        return self.run.status in ENDINGS.values()

    @property
    def updated_at(self) -> datetime:
        """When its last event happened, or when its own facts were changed after that."""
        said = self.run.updated_at or self.record.created_at
        changed = self.record.changed_at
        return max(said, changed) if changed > self.record.created_at else said


class SessionReader(Protocol):
    """Where sessions are read. Each answer has everything that was acknowledged before it was asked
    for.
    """

    async def find(self, session_id: str) -> SessionRecord | None:
        """The session's own facts, also if it has expired."""

    async def view(self, record: SessionRecord, wanted: EventsWanted | None) -> Session:
        """The session with its state, and with its events if they are wanted."""

    async def values(self, scopes: Sequence[str]) -> dict[str, Any]:
        """What these scopes hold, by key."""

    async def list(
        self,
        *,
        app: str | None,
        user: str | None,
        labels: Mapping[str, str],
        limit: int,
        cursor: str | None,
    ) -> tuple[list[Session], str | None]:
        """A page of sessions, the newest first, and the cursor of the next page."""


def has_expired(record: SessionRecord, now: datetime) -> bool:
    return record.expires_at is not None and record.expires_at <= now


class SessionVerbs(Protocol):
    """What can be done with sessions, in this process or over HTTP. `Sessions` says what each of
    them raises.
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
    ) -> Session: ...

    async def view(self, session_id: str, wanted: EventsWanted | None = None) -> Session: ...

    async def app_state(self, app: str) -> dict[str, Any]: ...

    async def user_state(self, app: str, user: str) -> dict[str, Any]: ...

    async def append(self, session_id: str, data: Data | AnyEvent, **envelope: Any) -> Position: ...

    async def append_batch(self, session_id: str, batch: Iterable[Data | AnyEvent]) -> Sequence[Position]: ...

    async def update(
        self,
        session_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
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
    ) -> tuple[Sequence[Session], str | None]: ...
