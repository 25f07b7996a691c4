"""Sessions and their events as messages of Agent Engine's, and how they stand for ours.

A session `S` of an engine `E` is our session of the id made of both, and `E` is its app.
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
        """`name` is that of the engine, or of the session."""
        record = session.record
        return cls(
            name=str(name.engine.child(SESSIONS, engine_session_id(session))),
            user_id=record.user,
            display_name=record.display_name or None,
            session_state=dict(session.state),
            labels=record.labels or None,
            create_time=record.created_at,
            # An event has its writer's time, which may be one before there was a session.
            update_time=max(session.updated_at, record.created_at),
            expire_time=record.expires_at,
        )


class _WithExpiry(Message):
    one_of = (("ttl", "expire_time"),)

    ttl: Duration | None = None
    expire_time: Timestamp | None = None

    def expires_at(self, now: datetime) -> datetime | None:
        """When it is to expire, if that is said. Raises `InvalidEventError` if that is too soon."""
        if self.ttl is None and self.expire_time is None:
            return None
        at = self.expire_time if self.ttl is None else now + self.ttl
        if at is None or at - now < _TTL_MIN:
            field = "expireTime" if self.ttl is None else "ttl"
            raise InvalidEventError(f"{field}: a session lasts for 24 hours at the least", field=field)
        return at


class CreateSession(_WithExpiry):
    """A session to create. Unlike ours it has a user: those without one would share their state."""

    user_id: Annotated[UserId, Field(min_length=1)]
    display_name: DisplayName | None = None
    session_state: dict[str, Any] | None = None
    labels: Labels | None = None

    def lasts_until(self, now: datetime) -> datetime:
        """Raises as `expires_at`."""
        return self.expires_at(now) or now + _TTL


class UpdateSession(_WithExpiry):
    """What changes of a session."""

    user_id: str | None = None
    display_name: DisplayName | None = None
    session_state: dict[str, Any] | None = None
    labels: Labels | None = None


class AppendEvent(Message):
    """An event to append. What it holds is kept as it comes."""

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
    """Our id of the session."""
    return joined(name.engine_id, name.id_in(SESSIONS) or "")


def engine_session_id(session: Session) -> str:
    """Its id in the engine."""
    return parted(session.session_id)[-1]


def belongs(session: Session, engine: Name) -> bool:
    """Whether it is a session of the engine: an app of the same name may have others of ours."""
    parts = parted(session.session_id)
    return len(parts) == len(("engine", "session")) and parts[0] == engine.engine_id


def filter_value(session: Session, path: Path) -> Any:
    """What a filter asks for."""
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
