"""The kinds of events that create, change and delete sessions, and helpers for their ids.

The topic `{prefix}.sessions` orders these events. The conversation of a session is in the log of
the session's run.
"""

from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from runfold_schemas.data import (
    Data,
    DisplayName,
    Id,
    Items,
    Labels,
    LaterFlag,
    LaterSubject,
    LogId,
    SessionId,
    StateKey,
    Time,
    UserId,
)

Framework = Literal["adk", "openai-agents", "vertex"]
"""An agent framework whose events are stored unchanged."""


class FrameworkEvent(Data):
    """A whole event of an agent framework, in the framework's own form. The ledger contains its
    messages.
    """

    framework: Framework
    body: dict[str, Any]
    unset: Items[str] = ()
    """Paths in `body` of values that are the framework's defaults, if the framework tells:
    `actions`, `content/parts/0/thought`.
    """
    files_by_id: LaterFlag = None
    """Whether the ledger has the files that `body` names by ids of OpenAI. Earlier versions left
    such files out, and the ledgers of their events stay the same.
    """


class StateChanged(Data):
    """Only the state changed. `state_delta` has the changes."""


class StateDeleted(Data):
    """Values that were set before are deleted. The record's key names their scope."""

    keys: Items[StateKey] | None = None
    """The keys of the values. None: all keys of the scope."""
    erased: LaterSubject = None
    """The user whose erasure deleted them."""


class RunDeleted(Data):
    """The event's run is deleted with its log. It has no effect on the own run of a session."""

    log_id: str
    erased: LaterSubject = None
    """The user whose erasure deleted the run."""


class SessionCreated(Data):
    """The session exists from this event on. It has no effect if a session with this id exists.

    The session's events are in the log of the event's run; the opening of that run holds the first
    state. The id of the run is `log_id` as a UUID, so no creator can claim the run of another.
    """

    session_id: SessionId
    app: Id
    user: UserId = ""
    log_id: LogId
    labels: Labels = Field(default_factory=dict)
    display_name: DisplayName | None = None
    expires_at: Time | None = None


class SessionUpdated(Data):
    """The fields that are not null change. Labels are merged over the labels of the session."""

    session_id: SessionId
    labels: Labels = Field(default_factory=dict)
    display_name: DisplayName | None = None
    expires_at: Time | None = None


class SessionDeleted(Data):
    """The session and its runs are deleted. The id can be used again; this event has no effect on
    the next session with the id.
    """

    session_id: SessionId
    expires_at: Time | None = None
    """If present, the session is deleted only if it still expires at this time. A client may have
    prolonged it meanwhile.
    """
    erased: LaterSubject = None
    """The user whose erasure deleted the session. Then nothing keeps the session's id, also if the
    session was deleted before.
    """


def joined(*parts: str) -> str:
    """One id that joins `parts` with `/`: `a/b` for `a` and `b`. `%` and `/` in a part are escaped,
    so different parts never give the same id.
    """
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def parted(id_: str) -> tuple[str, ...]:
    """The parts of an id that `joined` made."""
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in id_.split("/"))


def session_run_id(log_id: str) -> str:
    """The id of a session's own run, given the id of its log."""
    return str(UUID(log_id))


def is_session_run(run_id: str, log_id: str) -> bool:
    """Whether the run is a session's own run, which holds the session's events."""
    return run_id.replace("-", "") == log_id


def session_key(session_id: str) -> str:
    """The key of a session's events in `{prefix}.sessions`."""
    return f"session:{session_id}"


def run_key(run_id: str) -> str:
    """The key of a run's deletion in `{prefix}.sessions`."""
    return f"run:{run_id}"


def app_scope(app: str) -> str:
    """The scope of the state that all users of an app share: its name in MongoDB, and the key of
    its changes in `{prefix}.sessions`.
    """
    return f"app:{app}"


def user_scope(app: str, user: str) -> str:
    """The scope of the state that all sessions of a user of an app share."""
    return f"user:{joined(app, user)}"
