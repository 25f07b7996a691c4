"""Sessions and their shared state, folded from one partition of `{prefix}.sessions`.

The order of the partition decides. If two events create the same id, the first counts. The run of a
change names the life of the session that it changes; a change of another life has no effect. An
event counts once under its key, also if both its publisher and the projector forward it.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from runfold_projections.run import merged_labels
from runfold_projections.state import Value
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record, decode_record
from runfold_schemas.data import APP_PREFIX, USER_PREFIX
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.sessions import (
    RunDeleted,
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
    StateDeleted,
    is_session_run,
    run_key,
    session_key,
)

_KEY_LENGTH_MAX: Final = 5_000
"""Longer than any key made from the app and the user of an event."""

_SCOPES: Final = {"app": APP_PREFIX, "user": USER_PREFIX}
"""The prefix of the state keys in a scope, by the first word of the scope's key."""


class SessionRecord(BaseModel):
    """A session, folded from its own events. The log of its run has the conversation."""

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
    """The session after one of its own events. None if there is no session."""
    match event.data:
        case SessionCreated() as created:
            return record or _created(created, event)
        case SessionUpdated() as updated if record is not None and record.run_id == event.run_id:
            return record.model_copy(update={**_updates(record, updated), "changed_at": event.timestamp})
        case SessionDeleted() as deleted if record is not None and record.run_id == event.run_id:
            return None if deleted.expires_at in (None, record.expires_at) else record
        case _:
            return record


class DeletedValues(NamedTuple):
    """The deletion of values of a scope that were set before `offset`. `keys` is None for all."""

    scope: str
    keys: Collection[str] | None
    offset: int


class SharedFold:
    """The fold of some events of one partition, in their order. It begins with the stored
    `sessions`, and holds only what changes. The caller passes each event once.
    """

    def __init__(self, sessions: Mapping[str, SessionRecord]) -> None:
        self._before = sessions
        self.sessions: dict[str, SessionRecord | None] = {}
        self.deleted: list[tuple[SessionRecord, int]] = []
        """Deleted sessions, each with the offset of its deletion."""
        self.erased: dict[str, str] = {}
        """The ids of sessions that an erasure names, by their runs. Some were deleted before."""
        self.deleted_runs: list[Life] = []
        """The lives of deleted runs that are no session's own."""
        self.deleted_values: list[DeletedValues] = []
        self.values: dict[tuple[str, str], Value] = {}
        """Changed values, by scope and key."""

    def take(self, key: str, event: AnyEvent, offset: int) -> None:
        match event.data:
            case SessionCreated() | SessionUpdated() | SessionDeleted() as change:
                self._change_session(change.session_id, event, offset)
            case StateChanged():
                prefix = _SCOPES[key.partition(":")[0]]
                for name, value in (event.state_delta or {}).items():
                    if name.startswith(prefix):
                        self.values[key, name] = Value(value, offset)
            case StateDeleted(keys=keys):
                self.deleted_values.append(DeletedValues(key, keys, offset))
                for scope, name in list(self.values):
                    if scope == key and (keys is None or name in keys):
                        del self.values[scope, name]
            case RunDeleted(log_id=log_id):
                self.deleted_runs.append(Life(run_id=event.run_id, log_id=log_id, agent_id=""))
            case _:
                pass

    def _change_session(self, session_id: str, event: AnyEvent, offset: int) -> None:
        before = self.sessions[session_id] if session_id in self.sessions else self._before.get(session_id)
        after = apply(before, event)
        if after is not before:
            self.sessions[session_id] = after
            if before is not None and after is None:
                self.deleted.append((before, offset))
        if isinstance(event.data, SessionDeleted) and event.data.erased is not None:
            self.erased[event.run_id] = session_id


def shared_event(record: Record) -> tuple[str, AnyEvent]:
    """The key and the event of a record of `{prefix}.sessions`. Raises `UndecodableError`, also if
    the key is not that of the event.
    """
    event = decode_record(record)
    try:
        key = (record.key or b"").decode()
    except UnicodeDecodeError as error:
        raise UndecodableError("the record's key is not UTF-8") from error
    match event.data:
        case SessionCreated() as created:
            matches = key == session_key(created.session_id) and is_session_run(event.run_id, created.log_id)
        case SessionUpdated() | SessionDeleted() as change:
            matches = key == session_key(change.session_id)
        case StateChanged() | StateDeleted():
            matches = key.partition(":")[0] in _SCOPES and len(key) <= _KEY_LENGTH_MAX
        case RunDeleted(log_id=log_id):
            matches = key == run_key(event.run_id) and not is_session_run(event.run_id, log_id)
        case _:
            raise UndecodableError(f"{event.type} changes neither a session nor shared state")
    if not matches:
        raise UndecodableError(f"the key {key[:200]!r} is not the key of this {event.type}")
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
    fields: dict[str, Any] = {"display_name": updated.display_name, "expires_at": updated.expires_at}
    changes = {name: value for name, value in fields.items() if value is not None}
    return {**changes, "labels": merged_labels(record.labels, updated.labels)}


def life_of(record: SessionRecord) -> Life:
    """The life of the session's own run, as in the catalog while the session exists."""
    return Life(
        run_id=record.run_id,
        log_id=record.log_id,
        agent_id=record.app,
        session_id=record.session_id,
        user_id=record.user,
    )
