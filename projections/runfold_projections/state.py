"""State: values by key, each decided by the one log that orders its scope.

A run's own keys are decided by its log; `app:` and `user:` keys by `{prefix}.sessions`, to which an
event that changes them is forwarded. `temp:` keys live for one call, so a log may carry them and no
fold takes them.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from runfold_projections.admission import Admitted
from runfold_schemas.codec import encode, new_event
from runfold_schemas.data import APP_PREFIX, TEMP_PREFIX, USER_PREFIX, Data
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import BankFact, MemoriesGenerated, MemoryChange, bank_key, memory_key
from runfold_schemas.runs import RunOpened
from runfold_schemas.sessions import StateChanged, app_scope, user_scope
from runfold_schemas.topics import RECORD_BYTES_MAX

FORWARD_BYTES_MAX: Final = RECORD_BYTES_MAX // 2
"""Of an event that is forwarded, so that it fits into its topic with any key. A larger change of
shared state is none.
"""


_DECIDED_ELSEWHERE: Final = frozenset(
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
"""The kinds of events that change what other topics than their run's decide."""


class Value(NamedTuple):
    """What a key holds: any JSON, and the offset of the event that set it."""

    value: Any
    offset: int


class Forward(NamedTuple):
    """An event on its way to the topic and the partition that decide its key."""

    key: str
    event: AnyEvent
    session_id: str | None = None
    """Only if this is a session of the event's run: its opening came first, and another run may
    have won the session.
    """


def own_changes(one: Admitted) -> dict[str, Value]:
    """What a record of a run's log sets of its own state: of two values of a key the later offset's
    stands. An event that came after the end changes nothing any more.
    """
    if one.event is None or not one.event.state_delta or one.outcome != "accepted":
        return {}
    return {key: Value(value, one.record.offset) for key, value in own_keys(one.event.state_delta).items()}


def shared_changes(one: Admitted, *, app: str, user: str | None) -> list[Forward]:
    """What a record of a run's log changes that others share."""
    if one.event is None or one.outcome != "accepted":
        return []
    return [forward for forward in forwards(one.event, app=app, user=user) if fits(forward)]


def fits(forward: Forward) -> bool:
    """Whether it can be forwarded: written anew, a number may be several times as long as it
    was.
    """
    return len(encode(forward.event)) <= FORWARD_BYTES_MAX


def own_keys(delta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What an event changes of its run's own state."""
    shared = (APP_PREFIX, USER_PREFIX, TEMP_PREFIX)
    return {key: value for key, value in (delta or {}).items() if not key.startswith(shared)}


def without_temporary(delta: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in delta.items() if not key.startswith(TEMP_PREFIX)}


def changes_shared(event: AnyEvent) -> bool:
    """Whether an event on a run's log may change what others share."""
    return event.state_delta is not None or event.type in _DECIDED_ELSEWHERE


def forwards(event: AnyEvent, *, app: str, user: str | None) -> list[Forward]:
    """What an event on a run's log changes that others share: for each key that it is decided by
    one event of the same `event_id`.
    """
    delta = event.state_delta or {}
    scopes = [(APP_PREFIX, app_scope(app))]
    if user is not None:
        scopes.append((USER_PREFIX, user_scope(app, user)))
    found = []
    for prefix, scope in scopes:
        changed = {key: value for key, value in delta.items() if key.startswith(prefix)}
        if changed:
            session_id = event.data.session_id if isinstance(event.data, RunOpened) else None
            found.append(Forward(scope, _forwarded(event, StateChanged(), state_delta=changed), session_id))
    match event.data:
        case MemoryChange() as change:
            found.append(_change(event, change))
        case MemoriesGenerated() as generated:
            found += [_change(event, change) for change in generated.changes()]
        case BankFact() as fact:
            found.append(Forward(bank_key(fact.bank_id), _forwarded(event, fact)))
        case _:
            pass
    return found


def _change(event: AnyEvent, change: MemoryChange) -> Forward:
    return Forward(memory_key(change.bank_id, change.memory_id), _forwarded(event, change))


def _forwarded(event: AnyEvent, data: Data, **envelope: Any) -> AnyEvent:
    return new_event(
        data, event_id=event.event_id, run_id=event.run_id, timestamp=event.timestamp, **envelope
    )
