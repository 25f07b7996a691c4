"""Memories: facts in a scope, each with the history of its changes. A change is an event, and the
order of the events in `{prefix}.memories` alone decides what each changes.

    memories = runfold.memories
    await memories.create_bank("travel")
    fact = Memory(fact="Prefers window seats", scope={"user": "ann"})
    memory = await memories.create("travel", fact)
    await memories.update("travel", memory.memory_id, {"fact": "Prefers aisle seats"})
    await memories.rollback("travel", memory.memory_id, memory.revision_id)

Writing needs Kafka. Reading is done by a `MemoryReader`. Every verb returns when its effect can be
read.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from runfold.client.connection import LogConnection
from runfold.client.memory import MemoryReader, MemorySelection, NearestMemory, RevisionOptions, Similarity
from runfold.client.memory_changes import MemoryChanges, check_memory, has_lost, memory_after, with_changes
from runfold.client.memory_terms import restored, revision_fields, ttl_of_created, with_expiry
from runfold.client.pages import check_limit
from runfold.ids import uuid7
from runfold_projections.memory import BankRecord, Head, MemoryRecord, Refused, Revision
from runfold_schemas.codec import new_data
from runfold_schemas.errors import (
    BankConflictError,
    BankNotEmptyError,
    BankNotFoundError,
    ConfigurationError,
    InvalidEventError,
    MemoryChangedError,
    MemoryConflictError,
    MemoryNotFoundError,
    RevisionNotFoundError,
    UnavailableError,
)
from runfold_schemas.memories import (
    NO_RUN,
    BankConfig,
    BankCreated,
    BankDeleted,
    BankUpdated,
    Memory,
    MemoryChange,
    MemoryCreated,
    MemoryDeleted,
    MemoryRolledBack,
    MemoryUpdated,
)
from runfold_schemas.topics import check_id

_ATTEMPTS: Final = 20
"""How often a change is made while other clients change the same memory or bank."""

_PAGE: Final = 500
"""How many memories a purge reads at a time."""


class Memories:
    """The verbs of memories and banks.

    Every verb may raise `UnavailableError`, `InvalidIdError` and `InvalidEventError`. Every verb
    that names a bank may raise `BankNotFoundError`. Every verb that changes one memory may raise
    `UndecidedError`: the change is durable, but its effect could not be read in time.
    """

    def __init__(
        self, connection: LogConnection, reader: MemoryReader, *, similarity: Similarity | None = None
    ) -> None:
        self._reader = reader
        self._changes = MemoryChanges(connection, reader)
        self._similarity = similarity

    # Banks.

    async def create_bank(
        self,
        bank_id: str | None = None,
        config: BankConfig | None = None,
        *,
        event_id: str | None = None,
    ) -> BankRecord:
        """Creates a bank. Raises `BankConflictError` if the id is taken.

        `event_id` makes the call repeatable: after an `UnavailableError`, call again with the same
        `event_id`, and the bank that the first call created is returned. It is a UUID in lower
        case. It is also the bank's id, unless `bank_id` names one. By default both ids are new.
        """
        name = check_id(bank_id if bank_id is not None else event_id or str(uuid7()), name="bank_id")
        bank = await self._reader.bank(name)
        if bank is None:
            created = new_data(BankCreated, bank_id=name, config=config or BankConfig())
            event_id = await self._changes.publish(created, event_id=event_id)
            bank = await self._reader.bank(name)
        if bank is None or event_id is None or bank.created_by != event_id:
            raise BankConflictError(name)
        return bank

    async def bank(self, bank_id: str) -> BankRecord:
        """The bank, as it is configured now."""
        bank = await self._reader.bank(check_id(bank_id, name="bank_id"))
        if bank is None:
            raise BankNotFoundError(bank_id)
        return bank

    async def banks(
        self, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[Sequence[BankRecord], str | None]:
        """A page of banks, the newest first, and the cursor of the next page."""
        return await self._reader.banks(limit=check_limit(limit), cursor=cursor)

    async def update_bank(self, bank_id: str, changes: Mapping[str, Any]) -> BankRecord:
        """Sets fields of the bank's configuration, by name. Other fields stay as they are."""
        for _ in range(_ATTEMPTS):
            bank = await self.bank(bank_id)
            config = with_changes(bank.config, changes)
            updated = new_data(BankUpdated, bank_id=bank_id, config=config, based_on=bank.changed_by)
            event_id = await self._changes.publish(updated)
            # If another change came right after this one, it looks as if it had come first. Making
            # this change again then has the same effect.
            if (bank := await self.bank(bank_id)).changed_by == event_id:
                return bank
        raise UnavailableError("The bank", reason="other clients keep changing it")

    async def delete_bank(self, bank_id: str, *, force: bool = False) -> None:
        """Deletes the bank. With `force` also its memories; otherwise raises `BankNotEmptyError` if
        it has any.
        """
        await self.bank(bank_id)
        if not force and (await self._reader.list(bank_id, MemorySelection(), limit=1, cursor=None))[0]:
            raise BankNotEmptyError(bank_id)
        while force and (await self._reader.list(bank_id, MemorySelection(), limit=1, cursor=None))[0]:
            await self.purge(bank_id, everything=True)
        await self._changes.publish(new_data(BankDeleted, bank_id=bank_id))
        await self._reader.bank(bank_id)  # which waits until no reader has it any more

    # Memories.

    async def create(
        self,
        bank_id: str,
        memory: Memory,
        *,
        memory_id: str | None = None,
        revision: RevisionOptions | None = None,
        event_id: str | None = None,
    ) -> MemoryRecord:
        """Creates a memory. Raises `MemoryConflictError` if the id is taken.

        A memory without `expires_at` gets the time to live that its bank configures.

        `event_id` makes the call repeatable: after an `UnavailableError`, call again with the same
        `event_id`, and the memory that the first call created is returned. It is a UUID in lower
        case. It is also the memory's id, unless `memory_id` names one. By default both ids are new.
        """
        bank, now = await self.bank(bank_id), datetime.now(UTC)
        name = memory_id if memory_id is not None else event_id or str(uuid7())
        check_memory(memory, now)
        change = new_data(
            MemoryCreated,
            bank_id=bank_id,
            memory_id=name,
            memory=with_expiry(memory, ttl_of_created(bank), now),
            **revision_fields(revision, bank, now),
        )
        outcome = await self._changes.make(change, now, event_id=event_id)
        if isinstance(outcome, Refused):
            raise MemoryConflictError(bank_id, name)
        return memory_after(outcome, change)

    async def get(self, bank_id: str, memory_id: str) -> MemoryRecord:
        """The memory. Raises `MemoryNotFoundError`, also if it was deleted or has expired."""
        await self.bank(bank_id)
        return await self._existing(bank_id, memory_id)

    async def list(
        self,
        bank_id: str,
        selection: MemorySelection | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[MemoryRecord], str | None]:
        """A page of memories, and the cursor of the next page, which is None on the last page. The
        newest come first, unless `selection` says otherwise.
        """
        check_limit(limit)
        await self.bank(bank_id)
        return await self._reader.list(bank_id, selection or MemorySelection(), limit=limit, cursor=cursor)

    async def update(
        self,
        bank_id: str,
        memory_id: str,
        changes: Mapping[str, Any],
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord:
        """Sets fields of the memory, by name. Other fields stay as they are, also if another client
        changes them at the same time.

        Raises `MemoryNotFoundError`, `MemoryChangedError`.
        """
        bank = await self.bank(bank_id)
        for _ in range(_ATTEMPTS):
            now = datetime.now(UTC)
            record = await self._existing(bank_id, memory_id)
            memory = with_changes(record.memory, changes)
            check_memory(memory, now)
            change = new_data(
                MemoryUpdated,
                bank_id=bank_id,
                memory_id=memory_id,
                based_on=record.revision_id,
                memory=memory,
                **revision_fields(revision, bank, now),
            )
            outcome = await self._changes.make(change, now)
            if not has_lost(outcome, change):
                return memory_after(outcome, change)
        raise MemoryChangedError(bank_id, memory_id)

    async def delete(self, bank_id: str, memory_id: str, *, revision: RevisionOptions | None = None) -> None:
        """Deletes the memory. It can be rolled back for 48 hours. Raises `MemoryNotFoundError`."""
        bank, now = await self.bank(bank_id), datetime.now(UTC)
        change = new_data(
            MemoryDeleted, bank_id=bank_id, memory_id=memory_id, **revision_fields(revision, bank, now)
        )
        has_lost(await self._changes.make(change, now), change)

    async def rollback(
        self,
        bank_id: str,
        memory_id: str,
        revision_id: str,
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord:
        """Sets the memory to its content after that revision, also if it was deleted since. A
        rollback is a change too, and leaves a revision.

        Raises `MemoryNotFoundError`, `RevisionNotFoundError`, `MemoryChangedError`, and
        `InvalidEventError` for the revision of a deletion.
        """
        bank = await self.bank(bank_id)
        for _ in range(_ATTEMPTS):
            now = datetime.now(UTC)
            head = await self._head(bank, memory_id, now)
            target = await self._revision(bank_id, memory_id, revision_id, head)
            if target.memory is None:
                raise InvalidEventError(
                    "a deletion has no content to roll back to: name an earlier revision", field="revision_id"
                )
            change = new_data(
                MemoryRolledBack,
                bank_id=bank_id,
                memory_id=memory_id,
                based_on=head.changed_by,
                memory=restored(target, head, bank, now),
                revision_id=revision_id,
                **revision_fields(revision, bank, now),
            )
            outcome = await self._changes.make(change, now)
            if not has_lost(outcome, change):
                return memory_after(outcome, change)
        raise MemoryChangedError(bank_id, memory_id)

    async def purge(
        self,
        bank_id: str,
        selection: MemorySelection | None = None,
        *,
        everything: bool = False,
        force: bool = True,
    ) -> int:
        """Deletes the memories of the bank that match, or `everything` in the bank, and returns how
        many. Without `force` they are only counted.

        Raises `InvalidEventError` if nothing is selected and `everything` is not asked for: a
        caller that lost its selection does not lose the bank.
        """
        bank, count, cursor = await self.bank(bank_id), 0, None
        selection = selection or MemorySelection()
        if selection.is_whole != everything:
            raise InvalidEventError(
                "scope: a purge needs a scope or a filter, or everything=true for all of the bank",
                field="scope",
            )
        while True:
            page, cursor = await self._reader.list(bank_id, selection, limit=_PAGE, cursor=cursor)
            count += await self._delete_all(bank, page) if force else len(page)
            if cursor is None:
                return count

    async def _delete_all(self, bank: BankRecord, records: Sequence[MemoryRecord]) -> int:
        """Deletes these memories, except those that another client has changed since. Returns how
        many it deleted.
        """
        fields = revision_fields(None, bank, datetime.now(UTC))
        changes = [
            new_data(
                MemoryDeleted,
                bank_id=record.bank_id,
                memory_id=record.memory_id,
                based_on=record.revision_id,
                **fields,
            )
            for record in records
        ]
        return list(await self.change_all(changes)).count(None)

    async def nearest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        query: str,
        *,
        limit: int = 3,
        matches: Callable[[MemoryRecord], bool] | None = None,
    ) -> Sequence[NearestMemory]:
        """The memories of exactly this scope that are nearest in meaning to the query, the nearest
        first. `matches` restricts them; it cannot be sent over HTTP.

        Raises `ConfigurationError` if memories are read from the log alone.
        """
        if self._similarity is None:
            raise ConfigurationError("the log alone has no index of meanings: use HttpMemories for `nearest`")
        await self.bank(bank_id)
        return await self._similarity.nearest(bank_id, scope, query, limit=limit, matches=matches)

    # Revisions.

    async def revisions(
        self,
        bank_id: str,
        memory_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[Revision], str | None]:
        """A page of a memory's revisions, the newest first, and the cursor of the next page.
        Revisions of an earlier memory with the same id are not included.

        Raises `MemoryNotFoundError` if the memory does not exist and cannot be rolled back.
        """
        check_limit(limit)
        head = await self._head(await self.bank(bank_id), memory_id, datetime.now(UTC))
        return await self._reader.revisions(
            bank_id, memory_id, since=head.began, labels=labels or {}, limit=limit, cursor=cursor
        )

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision:
        """One revision of the memory. Raises `MemoryNotFoundError`, and `RevisionNotFoundError`,
        also if the revision belongs to another memory or has expired.
        """
        head = await self._head(await self.bank(bank_id), memory_id, datetime.now(UTC))
        return await self._revision(bank_id, memory_id, revision_id, head)

    # For the generation of memories.

    async def change_all(
        self, changes: Sequence[MemoryChange], *, event_id: str | None = None, run_id: str = NO_RUN
    ) -> Sequence[Refused | None]:
        """Publishes changes of different memories, and returns when they are decided. For each
        change the result is why it was refused, or None.
        """
        return await self._changes.make_all(changes, event_id=event_id, run_id=run_id)

    async def _head(self, bank: BankRecord, memory_id: str, now: datetime) -> Head:
        """The head of a memory that exists or can be rolled back. Memories of an earlier bank with
        the same id are not found.
        """
        head = await self._reader.head(bank.bank_id, memory_id)
        if (
            head is None
            or not head.can_be_rolled_back(now)
            or (head.deleted_at is not None and head.deleted_at < bank.created_at)
        ):
            raise MemoryNotFoundError(bank.bank_id, memory_id)
        return head

    async def _revision(self, bank_id: str, memory_id: str, revision_id: str, head: Head) -> Revision:
        revision = await self._reader.revision(bank_id, memory_id, revision_id)
        if revision is None or revision.offset < head.began:
            raise RevisionNotFoundError(bank_id, memory_id, revision_id)
        return revision

    async def _existing(self, bank_id: str, memory_id: str) -> MemoryRecord:
        record = await self._reader.find(bank_id, memory_id)
        if record is None:
            raise MemoryNotFoundError(bank_id, memory_id)
        return record
