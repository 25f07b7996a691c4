"""State: values by key. The log that orders a scope decides the values of its keys.

A run's own log decides the run's own keys. `{prefix}.sessions` decides `app:` and `user:` keys, so
events that change them are forwarded there. `temp:` keys live for one call: a log may contain them,
and folds ignore them.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runfold_projections.admission import Admitted
from runfold_schemas.codec import encode, new_event
from runfold_schemas.data import APP_PREFIX, TEMP_PREFIX, USER_PREFIX, Data
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import (
    BankFact,
    MemoriesGenerated,
    MemoryChange,
    MemoryDeleted,
    bank_key,
    memory_key,
)
from runfold_schemas.runs import RunOpened
from runfold_schemas.sessions import StateChanged, app_scope, user_scope
from runfold_schemas.topics import RECORD_BYTES_MAX

FORWARD_BYTES_MAX: Final = RECORD_BYTES_MAX // 2
"""The limit for a forwarded event, so that it fits into its topic with any key. A larger change of
shared state has no effect.
"""

SHARED_KINDS: Final = frozenset(
    {
        "memory_created",
        "memory_updated",
        "memory_deleted",
        "memory_rolled_back",
        "memories_generated",
        "bank_created",
        "bank_updated",
        "bank_deleted",
    }
)
"""The kinds of events whose changes are decided by a shared topic and not by their run's log."""


class Value(NamedTuple):
    """The value of a key, any JSON, and the offset of the event that set it."""

    value: Any
    offset: int


class Forward(NamedTuple):
    """An event on its way to the topic and the partition that decide its key."""

    key: str
    event: AnyEvent
    session_id: str | None = None
    """The session, if the event opens a run for a session. Another run may have won that session.
    """
    is_trusted: bool = True
    """Whether the event may change what runs share. If not, it is not forwarded."""


def own_changes(admitted: Admitted) -> dict[str, Value]:
    """The values that a record of a run's log sets in the run's own state. The value with the
    highest offset counts. Late events change no state.
    """
    event = admitted.event
    if event is None or not event.state_delta or admitted.outcome != "accepted":
        return {}
    offset = admitted.record.offset
    return {key: Value(value, offset) for key, value in own_keys(event.state_delta).items()}


def shared_changes(admitted: Admitted, *, app: str, user: str | None) -> list[Forward]:
    """The changes of shared state, memories and banks in a record of a run's log."""
    if admitted.event is None or admitted.outcome != "accepted":
        return []
    return [forward for forward in forwards(admitted.event, app=app, user=user) if fits(forward)]


def fits(forward: Forward) -> bool:
    """Whether the event is short enough to be forwarded. Encoding it again can make a number
    several times as long.
    """
    return len(encode(forward.event)) <= FORWARD_BYTES_MAX


def own_keys(delta: Mapping[str, Any] | None) -> dict[str, Any]:
    """The changes of the run's own state in a `state_delta`."""
    shared = (APP_PREFIX, USER_PREFIX, TEMP_PREFIX)
    return {key: value for key, value in (delta or {}).items() if not key.startswith(shared)}


def without_temporary(delta: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in delta.items() if not key.startswith(TEMP_PREFIX)}


def changes_shared(event: AnyEvent) -> bool:
    """Whether an event of a run's log may change shared state, memories or banks."""
    return event.state_delta is not None or event.type in SHARED_KINDS


def changes_others(event: AnyEvent) -> bool:
    """Whether an event of a run's log changes shared state, memories or banks, if it counts."""
    if event.type in SHARED_KINDS:
        return True
    return event.state_delta is not None and any(
        key.startswith((APP_PREFIX, USER_PREFIX)) for key in event.state_delta
    )


def forwards(event: AnyEvent, *, app: str, user: str | None) -> list[Forward]:
    """The events to forward for an event of a run's log: for each key that it changes in a shared
    topic one event with the same `event_id`.
    """
    delta = event.state_delta or {}
    scopes = [(APP_PREFIX, app_scope(app))]
    if user is not None:
        scopes.append((USER_PREFIX, user_scope(app, user)))
    events = []
    for prefix, scope in scopes:
        changes = {key: value for key, value in delta.items() if key.startswith(prefix)}
        if changes:
            session_id = event.data.session_id if isinstance(event.data, RunOpened) else None
            events.append(Forward(scope, _with_data(event, StateChanged(), state_delta=changes), session_id))
    match event.data:
        case MemoryChange() as change:
            events.append(_memory_forward(event, change))
        case MemoriesGenerated() as generated:
            events += [_memory_forward(event, change) for change in generated.changes()]
        case BankFact() as fact:
            events.append(Forward(bank_key(fact.bank_id), _with_data(event, fact)))
        case _:
            pass
    return events


def _memory_forward(event: AnyEvent, change: MemoryChange) -> Forward:
    if isinstance(change, MemoryDeleted) and change.erased is not None:
        # Only an erasure publishes deletions that no rollback undoes, directly to their topic.
        change = change.model_copy(update={"erased": None, "began": None})
    return Forward(memory_key(change.bank_id, change.memory_id), _with_data(event, change))


def _with_data(event: AnyEvent, data: Data, **envelope: Any) -> AnyEvent:
    return new_event(
        data, event_id=event.event_id, run_id=event.run_id, timestamp=event.timestamp, **envelope
    )
