"""What happens to sessions. Their own facts stand in `{prefix}.sessions`, whose order decides them;
what is said and done in a session stands in the log of its run.
"""

from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from runfold_schemas.data import Data, DisplayName, Id, Labels, LogId, SessionId, Time, UserId

Framework = Literal["adk", "openai-agents", "vertex"]
"""An agent framework whose events are kept as they are."""


class FrameworkEvent(Data):
    """An event of an agent framework, whole and in the framework's own form. The ledger has what it
    says.
    """

    framework: Framework
    body: dict[str, Any]
    unset: tuple[str, ...] = ()
    """Paths in `body` (`actions`, `content/parts/0/thought`) of what the framework filled in by
    itself, where it tells.
    """


class StateChanged(Data):
    """Nothing but the state changed: `state_delta` says how."""


class SessionCreated(Data):
    """A session is there from here on, unless one of that id is already. Its own log is that of the
    event's run, whose opening holds the first state; the run's id is the log's as a UUID, so that
    nobody can name another's run.
    """

    session_id: SessionId
    app: Id
    user: UserId = ""
    log_id: LogId
    labels: Labels = Field(default_factory=dict)
    display_name: DisplayName | None = None
    expires_at: Time | None = None


class SessionUpdated(Data):
    """What is given changes: labels are merged over those there are, an expiry is set."""

    session_id: SessionId
    labels: Labels = Field(default_factory=dict)
    display_name: DisplayName | None = None
    expires_at: Time | None = None


class SessionDeleted(Data):
    """The session is gone, with its runs. Its id may be taken again; this says nothing of the next
    session of that id.
    """

    session_id: SessionId
    expires_at: Time | None = None
    """Only if this is when the session expires: somebody may have given it more time meanwhile."""


def joined(*parts: str) -> str:
    """One id made of several, so that no two lists of parts make the same: `a/b` of `a` and `b`,
    with `%` and `/` escaped.
    """
    return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


def parted(id_: str) -> tuple[str, ...]:
    """The parts of an id that `joined` made."""
    return tuple(part.replace("%2F", "/").replace("%25", "%") for part in id_.split("/"))


def session_run_id(log_id: str) -> str:
    """The id of the run whose log is a session's own."""
    return str(UUID(log_id))


def is_session_run(run_id: str, log_id: str) -> bool:
    """Whether the run was opened with a session, to hold what is said in it."""
    return run_id.replace("-", "") == log_id


def session_key(session_id: str) -> str:
    """The key of a session's own facts in `{prefix}.sessions`."""
    return f"session:{session_id}"


def app_scope(app: str) -> str:
    """The state that all users of an app share: its name in MongoDB, and the key of its changes in
    `{prefix}.sessions`.
    """
    return f"app:{app}"


def user_scope(app: str, user: str) -> str:
    """The state that all sessions of a user of an app share; a name and key likewise."""
    return f"user:{joined(app, user)}"
