"""Agent Engine's messages for sessions and events, and their conversion to Runfold's.

The session `S` of an engine `E` is the Runfold session whose id is made of both, with `E` as its
app.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from runfold.client.session import Session
from runfold.vertex.filters import Path
from runfold.vertex.messages import PACKAGE, Duration, Fields, Message, Timestamp
from runfold.vertex.names import Name
from runfold_schemas.data import DisplayName, Labels, UserId
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.sessions import joined, parted

SESSIONS: Final = "sessions"

_TTL: Final = timedelta(days=365)
_TTL_MIN: Final = timedelta(hours=24)


class SessionMessage(Message):
    """A session."""

    proto: ClassVar[str] = f"{PACKAGE}.Session"

    name: str
    user_id: str
    display_name: str | None = None
    session_state: dict[str, Any]
    labels: dict[str, str] | None = None
    create_time: Timestamp
    update_time: Timestamp
    expire_time: Timestamp | None = None

    @classmethod
    def of(cls, session: Session, name: Name) -> "SessionMessage":
        """`name` is the name of the engine, or of the session."""
        record = session.record
        return cls(
            name=str(name.engine.child(SESSIONS, engine_session_id(session))),
            user_id=record.user,
            display_name=record.display_name or None,
            session_state=dict(session.state),
            labels=record.labels or None,
            create_time=record.created_at,
            # An event has its writer's time, which may be before the creation of the session.
            update_time=max(session.updated_at, record.created_at),
            expire_time=record.expires_at,
        )


class _WithExpiry(Message):
    one_of = (("ttl", "expire_time"),)

    ttl: Duration | None = None
    expire_time: Timestamp | None = None

    def expires_at(self, now: datetime) -> datetime | None:
        """When the session is to expire, if the request says so. Raises `InvalidEventError` if that
        is too soon.
        """
        if self.ttl is None and self.expire_time is None:
            return None
        at = self.expire_time if self.ttl is None else now + self.ttl
        if at is None or at - now < _TTL_MIN:
            field = "expireTime" if self.ttl is None else "ttl"
            raise InvalidEventError(f"{field}: a session lasts at least 24 hours", field=field)
        return at


class CreateSession(_WithExpiry):
    """A session to create. It needs a user, because sessions without a user share their state."""

    user_id: Annotated[UserId, Field(min_length=1)]
    display_name: DisplayName | None = None
    session_state: dict[str, Any] | None = None
    labels: Labels | None = None

    def lasts_until(self, now: datetime) -> datetime:
        """When the session expires. Raises the errors of `expires_at`."""
        return self.expires_at(now) or now + _TTL


class UpdateSession(_WithExpiry):
    """The fields of a session that change."""

    user_id: str | None = None
    display_name: DisplayName | None = None
    session_state: dict[str, Any] | None = None
    labels: Labels | None = None


class AppendEvent(Message):
    """An event to append. All its fields are stored as they come."""

    author: str
    invocation_id: str = ""
    timestamp: Timestamp
    content: Fields | None = None
    actions: Fields | None = None
    error_code: str | None = None
    error_message: str | None = None
    event_metadata: Fields | None = None
    raw_event: dict[str, Any] | None = None


def runfold_id(name: Name) -> str:
    """The id of the session in Runfold."""
    return joined(name.engine_id, name.id_in(SESSIONS) or "")


def engine_session_id(session: Session) -> str:
    """The id of the session in its engine."""
    return parted(session.session_id)[-1]


def belongs(session: Session, engine: Name) -> bool:
    """Whether the session belongs to the engine. An app with the engine's id may have other
    sessions, created through Runfold's own API.
    """
    parts = parted(session.session_id)
    return len(parts) == len(("engine", "session")) and parts[0] == engine.engine_id


def filter_value(session: Session, path: Path) -> Any:
    """The value of a field for a filter."""
    record = session.record
    match path:
        case ("user_id",):
            return record.user
        case ("display_name",):
            return record.display_name
        case ("labels",):
            return record.labels
        case ("labels", key):
            return record.labels.get(key)
        case ("create_time",):
            return record.created_at
        case ("update_time",):
            return max(session.updated_at, record.created_at)
        case _:
            return record.expires_at
