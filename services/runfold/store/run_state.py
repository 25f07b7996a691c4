"""A run's state and its document in MongoDB: the record of the run with the number of records that
it includes, and whether a worker tails the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import msgpack

from runfold.store.damage import damaged
from runfold.store.listing import label_pairs, microseconds, moment
from runfold.store.run_activity import activity_fields, stored_activity
from runfold.store.run_listing import LIST_FIELDS, changed_times, ended_at_of, list_fields, model_fields
from runfold_projections.activity import NO_ACTIVITY, RunActivity
from runfold_projections.run import LIVE, RunRecord
from runfold_projections.usage import NO_USAGE, RunUsage
from runfold_schemas.catalog import Life
from runfold_schemas.errors import DamagedError

_SEALED: Final = (
    "next_offset",
    "opened",
    "ended",
    "last_offset",
    "record",
    "agent_id",
    "session_id",
    "status",
    "started_us",
    "label_pairs",
)
_HEADING: Final = ("opened", "ended", "agent_id", "session_id", "status", "started_us", "label_pairs")
"""The fields under the checksum that change rarely."""

FOLD_FIELDS: Final = (*_SEALED, "seal", "usage", "chain", "activity", "tools", *LIST_FIELDS)
"""The fields that a fold changes."""


@dataclass(frozen=True, slots=True)
class RunState:
    """A life of a run with its fold after `record.next_offset` records. `opened`, `ended` and
    `last_offset` are the state of its `Admission`.
    """

    log_id: str
    partition: int
    active: bool
    record: RunRecord
    opened: bool = False
    ended: bool = False
    last_offset: int = -1
    announced_ms: int = 0
    """When the run was announced first, by the broker's clock, in milliseconds since 1970. Set when
    the run is added, and never changed.
    """
    without_log: bool = False
    """Whether the run's log is gone, and an operator has kept what is stored of the run."""
    usage: RunUsage | None = NO_USAGE
    """The usage by model, after as many records as `record` has. None if an earlier version folded
    a part of them: it does not know this field, and counted in the providers' meanings. Then
    readers fold the usage from the pages, and a rebuild stores it.
    """
    chain: bytes | None = None
    """The chain of the log after as many records as `record` has. None at the beginning, and
    if an earlier version folded a part of them: then it is made from the pages.
    """
    activity: RunActivity | None = NO_ACTIVITY
    """What the run did, after as many records as `record` has. None if an earlier version folded a
    part of them, which does not know this field. A rebuild stores it.
    """
    listed_by: tuple[str, Any] | None = field(default=None, compare=False)
    """The field and its value by which a list sorted the run. A damaged state lacks the value."""
    is_damaged: bool = False
    """Whether the document cannot be used. Then only the fields of lists are filled, as far as the
    document has them.
    """

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def ended_at(self) -> datetime | None:
        """When the run ended. None while it goes on."""
        return ended_at_of(self.record, self.activity)

    @property
    def life(self) -> Life:
        """The run's life, as in the catalog."""
        record = self.record
        return Life(
            run_id=record.run_id,
            log_id=self.log_id,
            agent_id=record.agent_id,
            session_id=record.session_id,
            user_id=record.user_id,
            ended=self.ended,
        )


def document_of(state: RunState) -> dict[str, Any]:
    """The document of a state, without its id."""
    return {
        "log_id": state.log_id,
        "partition": state.partition,
        "active": state.active,
        "announced_ms": state.announced_ms,
        **fold_fields(state),
    }


def fold_fields(state: RunState) -> dict[str, Any]:
    """The fields of a state that the fold changes. The record is JSON text, exact to the
    microsecond and for any label; the indexes need some of its fields beside it.
    """
    return {**state_fields(state), **_activity_fields(state), **list_fields_of(state)}


def changed_fields(state: RunState, last: RunState) -> dict[str, Any] | None:
    """As `fold_fields`, without what is the same in the document of `last`, an earlier state. None
    if the run has changed in more than what most events of a live run change.
    """
    if state.record.status not in LIVE or _heading(state) != _heading(last):
        return None
    fields = state_fields(state)
    for name in _HEADING:
        del fields[name]
    if state.activity is not last.activity:
        fields |= _activity_fields(state)
    if state.usage is not last.usage:
        fields["models"] = model_fields(state.usage)
    return fields | changed_times(state.record, last.record)


def _heading(state: RunState) -> tuple[object, ...]:
    record = state.record
    return (
        record.status,
        record.labels,
        state.opened,
        state.ended,
        record.agent_id,
        record.session_id,
        record.user_id,
        record.error,
        record.started_at,
    )


@lru_cache(maxsize=4096)
def _label_pairs(labels: tuple[tuple[str, str], ...]) -> list[str]:
    # A run is saved many times, and its labels change rarely.
    return label_pairs(dict(labels))


def state_fields(state: RunState) -> dict[str, Any]:
    """The fields under the checksum, and those that are written with the state's position."""
    record = state.record
    fields = {
        "next_offset": record.next_offset,
        "opened": state.opened,
        "ended": state.ended,
        "last_offset": state.last_offset,
        "record": record.model_dump_json(),
        "agent_id": record.agent_id,
        "session_id": record.session_id,
        "status": record.status,
        "started_us": microseconds(record.started_at),
        "label_pairs": _label_pairs(tuple(record.labels.items())),
    }
    seal = [record.next_offset, _checksum(state.log_id, fields)]
    return {**fields, "seal": seal, **_usage_fields(state), **_chain_fields(state)}


def list_fields_of(state: RunState) -> dict[str, Any]:
    """The fields of a state that lists need beside those under its checksum."""
    return list_fields(state.record, state.log_id, state.usage, state.activity)


def _usage_fields(state: RunState) -> dict[str, Any]:
    """The usage with its position, as in the seal. Runs that used no model have none."""
    if state.usage is None or not state.usage.models:
        return {}
    text = state.usage.model_dump_json(exclude_defaults=True)
    position = state.record.next_offset
    return {"usage": [position, text, _usage_checksum(state.log_id, position, text)]}


def _usage_checksum(log_id: str, position: int, text: str) -> int:
    return crc32(f"{log_id} {position} {text}".encode())


def _stored_usage(document: Mapping[str, Any], record: RunRecord) -> RunUsage | None:
    if "token_usage" not in record.counts:
        return NO_USAGE
    match document.get("usage"):
        case [int() as position, str() as text, int() as checksum] if (
            position == record.next_offset and checksum == _usage_checksum(document["log_id"], position, text)
        ):
            return RunUsage.model_validate_json(text)
        case _:
            return None


def _activity_fields(state: RunState) -> dict[str, Any]:
    """The activity with the position of its last change."""
    return activity_fields(state.log_id, state.record.next_offset, state.activity)


def _stored_activity(document: Mapping[str, Any], record: RunRecord) -> RunActivity | None:
    # An earlier version leaves the activity of an earlier state, and `listed` says so.
    if not record.next_offset:
        return NO_ACTIVITY
    return stored_activity(document) if document.get("listed") == record.next_offset else None


def _chain_fields(state: RunState) -> dict[str, Any]:
    """The chain with its position and a checksum of its own, as the usage has them."""
    if state.chain is None:
        return {}
    position = state.record.next_offset
    return {"chain": [position, state.chain, _chain_checksum(state.log_id, position, state.chain)]}


def _chain_checksum(log_id: str, position: int, chain: bytes) -> int:
    return crc32(chain, crc32(f"{log_id} {position} ".encode()))


def stored_chain(document: Mapping[str, Any]) -> bytes | None:
    """The chain at the position of the state, None if the document does not have it."""
    match document.get("chain"):
        case [int() as position, bytes() as chain, int() as checksum] if position == document[
            "next_offset"
        ] and checksum == _chain_checksum(document["log_id"], position, chain):
            return chain
        case _:
            return None


def _checksum(log_id: str, fields: Mapping[str, Any]) -> int:
    packed: bytes = msgpack.packb([log_id, *(fields[name] for name in _SEALED)])
    return crc32(packed)


def state_of(document: Mapping[str, Any]) -> RunState:
    """The state of a document. Raises `DamagedError`."""
    reason = ""
    try:
        state = read_document(document)
        if state.record.next_offset != document["next_offset"] or state.run_id != document["_id"]:
            reason = "its fields contradict its record"
        elif not _has_seal(document):
            reason = "its fields do not match their checksum"
        else:
            return state
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"it cannot be read: {type(error).__name__}"
    run_id = document["_id"]
    raise damaged("runs", run_id, reason, cure=f"runfold rebuild {run_id}")


def _has_seal(document: Mapping[str, Any]) -> bool:
    """Whether the checksum is right. A writer of an earlier version saves no checksum, and leaves
    that of an earlier state.
    """
    position, checksum = document.get("seal") or (None, None)
    if position != document["next_offset"]:
        return True
    return bool(checksum == _checksum(document["log_id"], document))


def state_or_rest(document: Mapping[str, Any]) -> RunState:
    """The state of a document; if it is damaged, the fields of lists that it still has."""
    try:
        return state_of(document)
    except DamagedError:
        text = {name: document.get(name) for name in ("log_id", "agent_id", "session_id")}
        started, updated = (_moment(document.get(name)) for name in ("started_us", "updated_us"))
        record = RunRecord(
            run_id=document["_id"],
            agent_id=str(text["agent_id"] or ""),
            session_id=str(text["session_id"]) if text["session_id"] else None,
            started_at=started,
            updated_at=updated,
        )
        return RunState(log_id=str(text["log_id"]), partition=0, active=False, record=record, is_damaged=True)


def _moment(us: object) -> datetime | None:
    return moment(us) if isinstance(us, int) and us else None


def position_of(document: Mapping[str, Any]) -> int:
    """The position of a state. 0 if the document has none."""
    position = document.get("next_offset")
    return position if isinstance(position, int) else 0


def read_document(document: Mapping[str, Any]) -> RunState:
    """The state of a document whose checksum is not looked at. A document of another form raises
    any error.
    """
    record = RunRecord.model_validate_json(document["record"])
    usage = _stored_usage(document, record)
    return RunState(
        log_id=document["log_id"],
        partition=document["partition"],
        active=document["active"],
        record=record.model_copy(update={"usage": usage.totals}) if usage and usage.models else record,
        usage=usage,
        opened=document["opened"],
        ended=document["ended"],
        last_offset=document["last_offset"],
        announced_ms=document.get("announced_ms", 0),
        without_log=document.get("without_log", False),
        chain=stored_chain(document),
        activity=_stored_activity(document, record),
    )
