"""Memories with their revisions, folded from one partition of `{prefix}.memories`, and banks,
folded from one partition of `{prefix}.banks`.

Only the order of the partition decides. The `Head` of a memory decides whether its next change is
allowed. A refused change has no effect and leaves no revision. The head stays after its memory has
expired or was deleted.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

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
    MemoryDeleted,
    MemoryRolledBack,
    MemoryUpdated,
    bank_key,
    memory_key,
)


class Head(BaseModel):
    """The facts about a memory that decide whether its next change is allowed."""

    model_config = ConfigDict(frozen=True)

    bank_id: str
    memory_id: str
    scope: dict[str, str]
    changed_by: str
    """The id of the memory's last change."""
    began: int
    """The offset of the memory's last creation. Earlier revisions belong to a deleted memory with
    the same id.
    """
    created_at: datetime
    changed_at: datetime
    expires_at: datetime | None = None
    deleted_at: datetime | None = None
    is_erased: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether an erasure deleted the memory. Then the scope is empty, and nothing is restored."""

    def exists_at(self, at: datetime) -> bool:
        """Whether the memory is neither deleted nor expired at that time."""
        return self.deleted_at is None and (self.expires_at is None or at < self.expires_at)

    def can_be_rolled_back(self, at: datetime) -> bool:
        """Whether a rollback is allowed at that time: also for 48 hours after a deletion."""
        if self.is_erased:
            return False
        return self.deleted_at is None or at < self.deleted_at + RESTORABLE


class MemoryRecord(BaseModel):
    """A memory as readers see it."""

    model_config = ConfigDict(frozen=True)

    bank_id: str
    memory_id: str
    memory: Memory
    revision_id: str
    """The id of the memory's last change. That change may have left no revision."""
    created_at: datetime
    updated_at: datetime


class Revision(BaseModel):
    """The state of a memory after one change. Only its expiry can change: the deletion of the
    memory brings it forward.
    """

    model_config = ConfigDict(frozen=True)

    bank_id: str
    memory_id: str
    revision_id: str
    action: str
    """`created`, `updated`, `deleted` or `rolled_back`."""
    offset: int
    """The offset of the change in its partition of `{prefix}.memories`. It orders the revisions of
    a memory.
    """
    run_id: str
    """The run that caused the change, `-` if none did."""
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


class ExpiryChange(NamedTuple):
    """A change of the expiry of a memory's revisions: from the change at `offset` on they expire
    with the deletion, or, if `undone`, they no longer do.
    """

    deleted_at: datetime
    offset: int
    undone: bool


class Changed(NamedTuple):
    """The effect of an accepted change of a memory."""

    head: Head
    memory: Memory | None
    """None after a deletion."""
    revision: Revision | None
    ending: ExpiryChange | None


class Refused(NamedTuple):
    """A refused change: `kind` is for programs, `reason` for people."""

    kind: str
    reason: str


def apply(head: Head | None, event: AnyEvent, offset: int) -> Changed | Refused:
    """The effect of an event on its memory, given the memory's head.

    The event's own timestamp decides whether the change is allowed. The time of the change is never
    before that of the change before, whatever the clocks of two writers say.
    """
    change, at = event.data, event.timestamp
    assert isinstance(change, MemoryChange)
    if refusal := _refusal(head, change, at):
        return refusal
    ending = None
    match change:
        case MemoryCreated():
            began, created_at, changed_at, deleted_at = offset, at, at, None
            memory: Memory | None = change.memory
        case MemoryUpdated() | MemoryRolledBack():
            assert head is not None
            began, created_at, deleted_at = head.began, head.created_at, None
            changed_at = max(at, head.changed_at)
            memory = change.memory
            if head.deleted_at is not None:
                ending = ExpiryChange(head.deleted_at, offset, undone=True)
        case _:
            assert head is not None
            began, created_at, deleted_at = head.began, head.created_at, at
            changed_at = max(at, head.changed_at)
            memory = None
            ending = ExpiryChange(at, offset, undone=False)
    is_erased = isinstance(change, MemoryDeleted) and change.erased is not None
    scope = memory.scope if memory is not None else head.scope if head is not None else {}
    return Changed(
        Head(
            bank_id=change.bank_id,
            memory_id=change.memory_id,
            scope={} if is_erased else scope,
            changed_by=event.event_id,
            began=began,
            created_at=created_at,
            changed_at=changed_at,
            expires_at=memory.expires_at if memory is not None else None,
            deleted_at=deleted_at,
            is_erased=is_erased,
        ),
        memory,
        None if is_erased else _revision(event, memory, offset, changed_at),
        None if is_erased else ending,
    )


def _refusal(head: Head | None, change: MemoryChange, at: datetime) -> Refused | None:
    exists = head is not None and head.exists_at(at)
    if isinstance(change, MemoryCreated):
        return Refused("exists", "a memory with that id exists already") if exists else None
    if isinstance(change, MemoryRolledBack) and (head is None or not head.can_be_rolled_back(at)):
        return Refused("gone", "the memory never existed, or was deleted more than 48 hours ago")
    if isinstance(change, MemoryDeleted) and change.erased is not None and head is not None:
        is_later = change.began not in (None, head.began)
        return Refused("exists", "a later memory has that id") if is_later else None
    if not exists and not isinstance(change, MemoryRolledBack):
        return Refused("gone", "the memory does not exist")
    assert head is not None
    if change.based_on not in (None, head.changed_by):
        return Refused("changed", "another change of the memory came first")
    if isinstance(change, MemoryUpdated | MemoryRolledBack) and change.memory.scope != head.scope:
        return Refused("scope", "the scope of a memory never changes")
    return None


def _revision(event: AnyEvent, memory: Memory | None, offset: int, at: datetime) -> Revision | None:
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
        created_at=at,
        expires_at=change.revision_expires_at or event.timestamp + REVISION_TTL,
        memory=memory,
        labels=change.revision_labels,
        extracted=change.extracted,
        rolled_back_to=change.revision_id if isinstance(change, MemoryRolledBack) else None,
    )


class HeadAt(NamedTuple):
    """The head of a memory after the change at `offset`."""

    head: Head
    offset: int


class MemoryFold:
    """The fold of some events of one partition, in their order. It begins with the stored `heads`,
    by key. It holds the last state of each changed memory and every new revision. The caller passes
    each event once. Events that a stored head already includes are skipped.
    """

    def __init__(self, heads: Mapping[str, HeadAt]) -> None:
        self._before = heads
        self.heads: dict[str, HeadAt] = {}
        self._memories: dict[str, Memory | None] = {}
        self.revisions: list[tuple[str, Revision]] = []
        self.endings: list[tuple[str, ExpiryChange]] = []
        self.refused: list[tuple[str, str, Refused]] = []
        """The key, the event id and the refusal of each refused change."""
        self.erased: dict[str, int] = {}
        """The offsets before which the revisions of memories are erased."""

    def take(self, key: str, event: AnyEvent, offset: int) -> None:
        last = self.heads.get(key) or self._before.get(key)
        if last is not None and offset <= last.offset:
            return
        effect = apply(last.head if last is not None else None, event, offset)
        if isinstance(effect, Refused):
            self.refused.append((key, event.event_id, effect))
            if isinstance(event.data, MemoryDeleted) and event.data.erased is not None and last is not None:
                self._erase(key, last.head.began)
            return
        self.heads[key] = HeadAt(effect.head, offset)
        self._memories[key] = effect.memory
        if effect.head.is_erased:
            self._erase(key, offset)
        if effect.revision is not None:
            self.revisions.append((key, effect.revision))
        if effect.ending is not None:
            self.endings.append((key, effect.ending))

    def _erase(self, key: str, offset: int) -> None:
        self.erased[key] = offset
        self.revisions = [each for each in self.revisions if each[0] != key or each[1].offset >= offset]
        self.endings = [each for each in self.endings if each[0] != key or each[1].offset >= offset]

    def records(self) -> dict[str, MemoryRecord | None]:
        """The changed memories by key, None for a deleted memory."""
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
    """The revision of a memory that was deleted at `deleted_at`, if at all: it expires 48 hours
    after the deletion, unless it expires earlier.
    """
    if deleted_at is None:
        return revision
    return revision.model_copy(update={"expires_at": min(revision.expires_at, deleted_at + RESTORABLE)})


class BankRecord(BaseModel):
    """A bank as readers see it."""

    model_config = ConfigDict(frozen=True)

    bank_id: str
    config: BankConfig
    created_by: str
    """The id of the event that created the bank. If two events create the same id, the first
    counts.
    """
    changed_by: str
    """The id of the last event that changed the bank."""
    created_at: datetime
    updated_at: datetime


def apply_to_bank(bank: BankRecord | None, event: AnyEvent) -> BankRecord | None:
    """The bank after one of its events. None if there is no bank."""
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
    """The id of the bank that an event on `{prefix}.banks` changes."""
    assert isinstance(event.data, BankFact)
    return event.data.bank_id


def memory_event(record: Record) -> tuple[str, AnyEvent]:
    """The key and the event of a record of `{prefix}.memories`. Raises `UndecodableError`, also if
    the key is not that of the event.
    """
    event = decode_record(record)
    if not isinstance(event.data, MemoryChange):
        raise UndecodableError(f"{event.type} changes no memory")
    return _check_key(record, memory_key(event.data.bank_id, event.data.memory_id)), event


def bank_event(record: Record) -> tuple[str, AnyEvent]:
    """The key and the event of a record of `{prefix}.banks`. Raises `UndecodableError`, also if the
    key is not that of the event.
    """
    event = decode_record(record)
    if not isinstance(event.data, BankFact):
        raise UndecodableError(f"{event.type} changes no bank")
    return _check_key(record, bank_key(event.data.bank_id)), event


def _check_key(record: Record, key: str) -> str:
    """`key`, if it is the key of the record. Otherwise raises `UndecodableError`."""
    if record.key != key.encode():
        raise UndecodableError(
            f"the record's key is {(record.key or b'')[:200]!r}, its event has the key {key[:200]!r}"
        )
    return key
