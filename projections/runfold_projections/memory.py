"""Memories with their revisions, folded from one partition of `{prefix}.memories`, and banks from
`{prefix}.banks`.

The order of the partition alone decides. A change that the memory's `Head` does not allow changes
nothing, and leaves no revision. A head is all that decides about the next change; it stays when
what it is about has expired or was deleted.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from runfold_schemas.codec import Record, decode_record
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import (
    RESTORABLE,
    REVISION_TTL,
    BankConfig,
    BankCreated,
    BankDeleted,
    BankFact,
    BankUpdated,
    ExtractedMemory,
    Memory,
    MemoryChange,
    MemoryCreated,
    MemoryRolledBack,
    MemoryUpdated,
    bank_key,
    memory_key,
)


class Head(BaseModel):
    """What decides about the next change of a memory."""

    model_config = ConfigDict(frozen=True)

    bank_id: str
    memory_id: str
    scope: dict[str, str]
    changed_by: str
    """The id of the change that made it so."""
    began: int
    """The offset of its creation, or of the last one: revisions from before are of another life,
    with which it shares its id.
    """
    created_at: datetime
    changed_at: datetime
    expires_at: datetime | None = None
    deleted_at: datetime | None = None

    def exists_at(self, at: datetime) -> bool:
        """Whether the memory is there at that time."""
        return self.deleted_at is None and (self.expires_at is None or at < self.expires_at)

    def can_be_rolled_back(self, at: datetime) -> bool:
        return self.deleted_at is None or at < self.deleted_at + RESTORABLE


class MemoryRecord(BaseModel):
    """A memory as it is read."""

    model_config = ConfigDict(frozen=True)

    bank_id: str
    memory_id: str
    memory: Memory
    revision_id: str
    """The id of the change that made it so; there may be no revision of it."""
    created_at: datetime
    updated_at: datetime


class Revision(BaseModel):
    """What a memory was after one change. It never changes, but that the deletion of its memory
    lets it expire earlier.
    """

    model_config = ConfigDict(frozen=True)

    bank_id: str
    memory_id: str
    revision_id: str
    action: str
    """`created`, `updated`, `deleted` or `rolled_back`."""
    offset: int
    """Of the change, in its partition of `{prefix}.memories`: what orders the revisions of a
    memory.
    """
    run_id: str
    """The run that caused it; `-` where none did."""
    created_at: datetime
    expires_at: datetime
    memory: Memory | None = None
    """None after a deletion."""
    labels: dict[str, str] = {}
    extracted: tuple[ExtractedMemory, ...] = ()
    rolled_back_to: str | None = None

    @property
    def fact(self) -> str:
        return self.memory.fact if self.memory is not None else ""


class Ending(NamedTuple):
    """From the change at `offset` on the revisions of a deleted memory expire with it, or, where it
    is there again, do not.
    """

    deleted_at: datetime
    offset: int
    undone: bool


class Changed(NamedTuple):
    """What one change made of a memory."""

    head: Head
    memory: Memory | None
    """None: it is gone."""
    revision: Revision | None
    ending: Ending | None


class Refused(NamedTuple):
    """The change was not allowed: `kind` for programs, `reason` for people."""

    kind: str
    reason: str


def apply(head: Head | None, event: AnyEvent, offset: int) -> Changed | Refused:
    """What an event makes of the memory that it is about."""
    change, at = event.data, event.timestamp
    assert isinstance(change, MemoryChange)
    if refusal := _refusal(head, change, at):
        return refusal
    ending = None
    match change:
        case MemoryCreated():
            began, created_at, deleted_at = offset, at, None
            memory: Memory | None = change.memory
        case MemoryUpdated() | MemoryRolledBack():
            assert head is not None
            began, created_at, deleted_at = head.began, head.created_at, None
            memory = change.memory
            if head.deleted_at is not None:
                ending = Ending(head.deleted_at, offset, undone=True)
        case _:
            assert head is not None
            began, created_at, deleted_at = head.began, head.created_at, at
            memory = None
            ending = Ending(at, offset, undone=False)
    return Changed(
        Head(
            bank_id=change.bank_id,
            memory_id=change.memory_id,
            scope=memory.scope if memory is not None else head.scope if head is not None else {},
            changed_by=event.event_id,
            began=began,
            created_at=created_at,
            changed_at=at,
            expires_at=memory.expires_at if memory is not None else None,
            deleted_at=deleted_at,
        ),
        memory,
        _revision(event, memory, offset),
        ending,
    )


def _refusal(head: Head | None, change: MemoryChange, at: datetime) -> Refused | None:
    stands = head is not None and head.exists_at(at)
    if isinstance(change, MemoryCreated):
        return Refused("exists", "a memory of that id exists already") if stands else None
    if isinstance(change, MemoryRolledBack) and (head is None or not head.can_be_rolled_back(at)):
        return Refused("gone", "the memory was never there, or was deleted more than 48 hours ago")
    if not stands and not isinstance(change, MemoryRolledBack):
        return Refused("gone", "the memory is not there")
    assert head is not None
    if change.based_on not in (None, head.changed_by):
        return Refused("changed", "somebody else has changed the memory meanwhile")
    if isinstance(change, MemoryUpdated | MemoryRolledBack) and change.memory.scope != head.scope:
        return Refused("scope", "the scope of a memory never changes")
    return None


def _revision(event: AnyEvent, memory: Memory | None, offset: int) -> Revision | None:
    change = event.data
    assert isinstance(change, MemoryChange)
    if not change.leaves_revision:
        return None
    return Revision(
        bank_id=change.bank_id,
        memory_id=change.memory_id,
        revision_id=event.event_id,
        action=event.type.removeprefix("memory_"),
        offset=offset,
        run_id=event.run_id,
        created_at=event.timestamp,
        expires_at=change.revision_expires_at or event.timestamp + REVISION_TTL,
        memory=memory,
        labels=change.revision_labels,
        extracted=change.extracted,
        rolled_back_to=change.revision_id if isinstance(change, MemoryRolledBack) else None,
    )


class HeadAt(NamedTuple):
    """A head as it is after the change at the offset."""

    head: Head
    offset: int


class MemoryFold:
    """The fold of some records of one partition, in their order. It begins with the heads that it
    is given, by key, and has what changed: of each memory the last state, and every revision. Each
    event is given once; what a head includes is passed over, since somebody has decided it before.
    """

    def __init__(self, heads: Mapping[str, HeadAt]) -> None:
        self._before = heads
        self.heads: dict[str, HeadAt] = {}
        self._memories: dict[str, Memory | None] = {}
        self.revisions: list[tuple[str, Revision]] = []
        self.endings: list[tuple[str, Ending]] = []
        self.refused: list[tuple[str, str, Refused]] = []
        """Key, event id, and why."""

    def take(self, key: str, event: AnyEvent, offset: int) -> None:
        known = self.heads.get(key) or self._before.get(key)
        if known is not None and offset <= known.offset:
            return
        made = apply(known.head if known is not None else None, event, offset)
        if isinstance(made, Refused):
            self.refused.append((key, event.event_id, made))
            return
        self.heads[key] = HeadAt(made.head, offset)
        self._memories[key] = made.memory
        if made.revision is not None:
            self.revisions.append((key, made.revision))
        if made.ending is not None:
            self.endings.append((key, made.ending))

    def records(self) -> dict[str, MemoryRecord | None]:
        """The memories that were changed, by key, as they are now; None of those that are gone."""
        return {key: _record(self.heads[key].head, memory) for key, memory in self._memories.items()}


def _record(head: Head, memory: Memory | None) -> MemoryRecord | None:
    if memory is None:
        return None
    return MemoryRecord(
        bank_id=head.bank_id,
        memory_id=head.memory_id,
        memory=memory,
        revision_id=head.changed_by,
        created_at=head.created_at,
        updated_at=head.changed_at,
    )


def expire_with_memory(revision: Revision, deleted_at: datetime | None) -> Revision:
    """The revision as it is when its memory was deleted: it expires with it, unless it does
    before.
    """
    if deleted_at is None:
        return revision
    return revision.model_copy(update={"expires_at": min(revision.expires_at, deleted_at + RESTORABLE)})


class BankRecord(BaseModel):
    """A bank as it is read."""

    model_config = ConfigDict(frozen=True)

    bank_id: str
    config: BankConfig
    created_by: str
    """The id of the event that made it: of two creations of one id the first stands."""
    changed_by: str
    """The id of the last event that changed it."""
    created_at: datetime
    updated_at: datetime


def apply_to_bank(bank: BankRecord | None, event: AnyEvent) -> BankRecord | None:
    """The bank after one more of its facts; None where there is none."""
    match event.data:
        case BankCreated() as created:
            return bank or BankRecord(
                bank_id=created.bank_id,
                config=created.config,
                created_by=event.event_id,
                changed_by=event.event_id,
                created_at=event.timestamp,
                updated_at=event.timestamp,
            )
        case BankUpdated() as updated if bank is not None and updated.based_on in (None, bank.changed_by):
            return bank.model_copy(
                update={
                    "config": updated.config,
                    "changed_by": event.event_id,
                    "updated_at": event.timestamp,
                }
            )
        case BankDeleted():
            return None
        case _:
            return bank


def bank_of(event: AnyEvent) -> str:
    """The bank that a fact of a bank is about."""
    assert isinstance(event.data, BankFact)
    return event.data.bank_id


def memory_event(record: Record) -> tuple[str, AnyEvent]:
    """The key and the event of a record of `{prefix}.memories`. Raises `UndecodableError` where
    they do not fit together.
    """
    event = decode_record(record)
    if not isinstance(event.data, MemoryChange):
        raise UndecodableError(f"{event.type} changes no memory")
    return _keyed(record, memory_key(event.data.bank_id, event.data.memory_id)), event


def bank_event(record: Record) -> tuple[str, AnyEvent]:
    """The key and the event of a record of `{prefix}.banks`. Raises `UndecodableError` where they
    do not fit together.
    """
    event = decode_record(record)
    if not isinstance(event.data, BankFact):
        raise UndecodableError(f"{event.type} says nothing of a bank")
    return _keyed(record, bank_key(event.data.bank_id)), event


def _keyed(record: Record, key: str) -> str:
    if record.key != key.encode():
        raise UndecodableError(
            f"the key is {(record.key or b'')[:200]!r}, what it is about has {key[:200]!r}"
        )
    return key
