"""Sessions, and the state that they share, folded from one partition of `{prefix}.sessions`.

The order of the partition decides: of two creations of one id the first stands, and a change says
by its run which life of the session it means. What contradicts that changes nothing. An event
counts once under its key, however often it comes: its publisher forwards it, and the projector in
any case.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from runfold_projections.run import merged_labels
from runfold_projections.state import Value
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record, decode_record
from runfold_schemas.data import APP_PREFIX, USER_PREFIX
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.sessions import (
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
    is_session_run,
    session_key,
)

_KEY_LENGTH_MAX: Final = 5_000
"""More than the key of any app and user that events can name."""

_SCOPES: Final = {"app": APP_PREFIX, "user": USER_PREFIX}
"""By the word that a scope's key begins with: what the keys begin with that it holds."""


class SessionRecord(BaseModel):
    """A session as its own facts have it. What is said in it stands in the log of its run."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    app: str
    user: str
    run_id: str
    log_id: str
    created_at: datetime
    changed_at: datetime
    labels: dict[str, str] = {}
    display_name: str | None = None
    expires_at: datetime | None = None


def apply(record: SessionRecord | None, event: AnyEvent) -> SessionRecord | None:
    """The session after one more of its own facts; None where there is none."""
    match event.data:
        case SessionCreated() as created:
            return record or _created(created, event)
        case SessionUpdated() as updated if record is not None and record.run_id == event.run_id:
            return record.model_copy(update={**_updates(record, updated), "changed_at": event.timestamp})
        case SessionDeleted() as deleted if record is not None and record.run_id == event.run_id:
            return None if deleted.expires_at in (None, record.expires_at) else record
        case _:
            return record


class SharedFold:
    """The fold of some records of one partition, in their order. It begins with the sessions that
    it is given, and has only what changed. Each event is given once.
    """

    def __init__(self, sessions: Mapping[str, SessionRecord]) -> None:
        self._before = sessions
        self.sessions: dict[str, SessionRecord | None] = {}
        self.deleted: list[tuple[SessionRecord, int]] = []
        """Each with the offset at which it was deleted."""
        self.values: dict[tuple[str, str], Value] = {}
        """By scope and key."""

    def take(self, key: str, event: AnyEvent, offset: int) -> None:
        match event.data:
            case SessionCreated() | SessionUpdated() | SessionDeleted() as fact:
                self._take_fact(fact.session_id, event, offset)
            case StateChanged():
                prefix = _SCOPES[key.partition(":")[0]]
                for name, value in (event.state_delta or {}).items():
                    if name.startswith(prefix):
                        self.values[key, name] = Value(value, offset)
            case _:
                pass

    def _take_fact(self, session_id: str, event: AnyEvent, offset: int) -> None:
        before = self.sessions[session_id] if session_id in self.sessions else self._before.get(session_id)
        after = apply(before, event)
        if after is not before:
            self.sessions[session_id] = after
            if before is not None and after is None:
                self.deleted.append((before, offset))


def shared_event(record: Record) -> tuple[str, AnyEvent]:
    """The key and the event of a record of `{prefix}.sessions`. Raises `UndecodableError` where
    they do not fit together.
    """
    event = decode_record(record)
    try:
        key = (record.key or b"").decode()
    except UnicodeDecodeError as error:
        raise UndecodableError("the record's key is no UTF-8") from error
    match event.data:
        case SessionCreated() as created:
            fits = key == session_key(created.session_id) and is_session_run(event.run_id, created.log_id)
        case SessionUpdated() | SessionDeleted() as fact:
            fits = key == session_key(fact.session_id)
        case StateChanged():
            fits = key.partition(":")[0] in _SCOPES and len(key) <= _KEY_LENGTH_MAX
        case _:
            raise UndecodableError(f"{event.type} changes nothing that runs share")
    if not fits:
        raise UndecodableError(f"the key {key[:200]!r} is not what {event.type} is about")
    return key, event


def _created(created: SessionCreated, event: AnyEvent) -> SessionRecord:
    return SessionRecord(
        session_id=created.session_id,
        app=created.app,
        user=created.user,
        run_id=event.run_id,
        log_id=created.log_id,
        created_at=event.timestamp,
        changed_at=event.timestamp,
        labels=created.labels,
        display_name=created.display_name,
        expires_at=created.expires_at,
    )


def _updates(record: SessionRecord, updated: SessionUpdated) -> Mapping[str, Any]:
    given: dict[str, Any] = {"display_name": updated.display_name, "expires_at": updated.expires_at}
    changed = {name: value for name, value in given.items() if value is not None}
    return {**changed, "labels": merged_labels(record.labels, updated.labels)}


def life_of(record: SessionRecord) -> Life:
    """The life of the session's own run, as the catalog has it while the session stands."""
    return Life(
        run_id=record.run_id,
        log_id=record.log_id,
        agent_id=record.app,
        session_id=record.session_id,
        user_id=record.user,
    )
