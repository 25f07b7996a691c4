"""Memories: facts in a scope, each with the history of its changes. A change is an event; its order
in `{prefix}.memories` alone decides what it changes.

    memories = runfold.memories
    await memories.create_bank("travel")
    memory = await memories.create("travel", Memory(fact="Prefers window seats", scope={"user": "ann"}))
    await memories.update("travel", memory.memory_id, {"fact": "Prefers aisle seats"})
    await memories.rollback("travel", memory.memory_id, memory.revision_id)

Writing needs Kafka; what is read is a `MemoryReader`'s matter. Every verb returns when its effect
can be read.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from runfold.client.connection import LogConnection
from runfold.client.memory import MemoriesWanted, MemoryReader, Near, Published, RevisionOptions, Similarity
from runfold.client.memory_terms import left, restored, ttl_of_created, with_expiry
from runfold.ids import new_event_id, uuid7
from runfold.log.shared import send_shared
from runfold_projections.memory import BankRecord, Head, MemoryRecord, Refused, Revision
from runfold_projections.state import Forward
from runfold_schemas.codec import first_fault, new_data, new_event
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
    UndecidedError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import (
    NO_RUN,
    BankConfig,
    BankCreated,
    BankDeleted,
    BankFact,
    BankUpdated,
    Memory,
    MemoryChange,
    MemoryCreated,
    MemoryDeleted,
    MemoryRolledBack,
    MemoryUpdated,
    bank_key,
    memory_key,
)
from runfold_schemas.topics import check_id

_ATTEMPTS: Final = 20
"""To change a memory that others change at the same time."""

_PAGE: Final = 500


class Memories:
    """Every verb may raise `UnavailableError`, `InvalidIdError` and `InvalidEventError`; all that
    name a bank `BankNotFoundError`; all that change one memory `UndecidedError`, where the change
    is durable and cannot be read yet.
    """

    def __init__(
        self, connection: LogConnection, reader: MemoryReader, *, similarity: Similarity | None = None
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._similarity = similarity

    # Banks.

    async def create_bank(self, bank_id: str | None = None, config: BankConfig | None = None) -> BankRecord:
        """A new bank, of a new id unless one is given. Raises `BankConflictError` where that is
        taken.
        """
        name = check_id(str(uuid7()) if bank_id is None else bank_id, name="bank_id")
        if await self._reader.bank(name) is not None:
            raise BankConflictError(name)
        created = _event(new_data(BankCreated, bank_id=name, config=config or BankConfig()))
        await self._publish(bank_key(name), created)
        bank = await self._reader.bank(name)
        if bank is None or bank.created_by != created.event_id:
            raise BankConflictError(name)
        return bank

    async def bank(self, bank_id: str) -> BankRecord:
        found = await self._reader.bank(check_id(bank_id, name="bank_id"))
        if found is None:
            raise BankNotFoundError(bank_id)
        return found

    async def banks(
        self, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[Sequence[BankRecord], str | None]:
        """A page of banks, the newest first, and the cursor of the next page."""
        return await self._reader.banks(limit=limit, cursor=cursor)

    async def update_bank(self, bank_id: str, changes: Mapping[str, Any]) -> BankRecord:
        """Sets these fields of the bank's configuration."""
        for _ in range(_ATTEMPTS):
            bank = await self.bank(bank_id)
            config = _changed(bank.config, changes)
            updated = _event(new_data(BankUpdated, bank_id=bank_id, config=config, based_on=bank.changed_by))
            await self._publish(bank_key(bank_id), updated)
            # Another change right behind it looks like one that came first; then this is made
            # again, with the same effect.
            if (bank := await self.bank(bank_id)).changed_by == updated.event_id:
                return bank
        raise UnavailableError("The bank", reason="others change it again and again")

    async def delete_bank(self, bank_id: str, *, force: bool = False) -> None:
        """Deletes the bank; with `force` its memories before. Raises `BankNotEmptyError`
        without.
        """
        await self.bank(bank_id)
        if not force and (await self._reader.list(bank_id, MemoriesWanted(), limit=1, cursor=None))[0]:
            raise BankNotEmptyError(bank_id)
        while force and (await self._reader.list(bank_id, MemoriesWanted(), limit=1, cursor=None))[0]:
            await self.purge(bank_id)
        await self._publish(bank_key(bank_id), _event(new_data(BankDeleted, bank_id=bank_id)))
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
        """A new memory, of a new id unless one is given. Raises `MemoryConflictError` where that is
        taken.

        Without `expires_at` the bank's time to live counts. Asked for again with the same
        `event_id`, it counts once.
        """
        bank, now = await self.bank(bank_id), datetime.now(UTC)
        name = str(uuid7()) if memory_id is None else memory_id
        _check_expiry(memory, now)
        change = new_data(
            MemoryCreated,
            bank_id=bank_id,
            memory_id=name,
            memory=with_expiry(memory, ttl_of_created(bank), now),
            **left(revision, bank, now),
        )
        outcome = await self._change(change, now, event_id=event_id)
        if isinstance(outcome, Refused):
            raise MemoryConflictError(bank_id, name)
        return _standing(outcome, change)

    async def get(self, bank_id: str, memory_id: str) -> MemoryRecord:
        """Raises `MemoryNotFoundError`, also of one that was deleted or has expired."""
        await self.bank(bank_id)
        return await self._found(bank_id, memory_id)

    async def list(
        self,
        bank_id: str,
        wanted: MemoriesWanted | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[MemoryRecord], str | None]:
        """A page of memories, the newest first unless something else is wanted, and the cursor of
        the next page.
        """
        await self.bank(bank_id)
        return await self._reader.list(bank_id, wanted or MemoriesWanted(), limit=limit, cursor=cursor)

    async def update(
        self,
        bank_id: str,
        memory_id: str,
        changes: Mapping[str, Any],
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord:
        """Sets these fields of the memory, and leaves all others as they are, whoever changes them
        at the same time.

        Raises `MemoryNotFoundError`, `MemoryChangedError`.
        """
        bank = await self.bank(bank_id)
        for _ in range(_ATTEMPTS):
            now = datetime.now(UTC)
            found = await self._found(bank_id, memory_id)
            memory = _changed(found.memory, changes)
            _check_expiry(memory, now)
            change = new_data(
                MemoryUpdated,
                bank_id=bank_id,
                memory_id=memory_id,
                based_on=found.revision_id,
                memory=memory,
                **left(revision, bank, now),
            )
            outcome = await self._change(change, now)
            if not _has_lost(outcome, change):
                return _standing(outcome, change)
        raise MemoryChangedError(bank_id, memory_id)

    async def delete(self, bank_id: str, memory_id: str, *, revision: RevisionOptions | None = None) -> None:
        """Deletes the memory; it can be rolled back for 48 hours. Raises `MemoryNotFoundError`."""
        bank, now = await self.bank(bank_id), datetime.now(UTC)
        change = new_data(MemoryDeleted, bank_id=bank_id, memory_id=memory_id, **left(revision, bank, now))
        _has_lost(await self._change(change, now), change)

    async def rollback(
        self,
        bank_id: str,
        memory_id: str,
        revision_id: str,
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord:
        """The memory holds again what it held after that revision, also if it was deleted since;
        this leaves a revision too.

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
                    "a deletion holds nothing to roll back to: name an earlier revision", field="revision_id"
                )
            change = new_data(
                MemoryRolledBack,
                bank_id=bank_id,
                memory_id=memory_id,
                based_on=head.changed_by,
                memory=restored(target, head, bank, now),
                revision_id=revision_id,
                **left(revision, bank, now),
            )
            outcome = await self._change(change, now)
            if not _has_lost(outcome, change):
                return _standing(outcome, change)
        raise MemoryChangedError(bank_id, memory_id)

    async def purge(self, bank_id: str, wanted: MemoriesWanted | None = None, *, force: bool = True) -> int:
        """Deletes all memories of the bank that are wanted; how many. Without `force` they are only
        counted.
        """
        bank, count, cursor = await self.bank(bank_id), 0, None
        while True:
            page, cursor = await self._reader.list(
                bank_id, wanted or MemoriesWanted(), limit=_PAGE, cursor=cursor
            )
            count += await self._delete_all(bank, page) if force else len(page)
            if cursor is None:
                return count

    async def _delete_all(self, bank: BankRecord, records: Sequence[MemoryRecord]) -> int:
        """Deletes these memories as they are, and none that somebody has changed since; how
        many.
        """
        said = left(None, bank, datetime.now(UTC))
        changes = [
            new_data(
                MemoryDeleted,
                bank_id=one.bank_id,
                memory_id=one.memory_id,
                based_on=one.revision_id,
                **said,
            )
            for one in records
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
    ) -> Sequence[Near]:
        """The memories of exactly this scope that are nearest in meaning to the query, the nearest
        first. Raises `ConfigurationError` where only the log is read.
        """
        if self._similarity is None:
            raise ConfigurationError("the log alone does not tell what is near in meaning: ask over HTTP")
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
        """A page of a memory's revisions, the newest first, and the cursor of the next page. Those
        of an earlier memory that had the same id are not its. Raises `MemoryNotFoundError` of one
        that is not there and cannot be rolled back.
        """
        head = await self._head(await self.bank(bank_id), memory_id, datetime.now(UTC))
        return await self._reader.revisions(
            bank_id, memory_id, since=head.began, labels=labels or {}, limit=limit, cursor=cursor
        )

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision:
        """Raises `MemoryNotFoundError`, and `RevisionNotFoundError` also of a revision of another
        memory, and of one that has expired.
        """
        head = await self._head(await self.bank(bank_id), memory_id, datetime.now(UTC))
        return await self._revision(bank_id, memory_id, revision_id, head)

    # What all changes have in common.

    async def change_all(
        self, changes: Sequence[MemoryChange], *, event_id: str | None = None, run_id: str = NO_RUN
    ) -> Sequence[Refused | None]:
        """Publishes changes of different memories, and returns when they are decided: for each why
        it was refused, or None.
        """
        now = datetime.now(UTC)
        events = [_event(change, event_id=event_id, run_id=run_id, now=now) for change in changes]
        keys = [memory_key(change.bank_id, change.memory_id) for change in changes]
        publisher, settings = self._connection.publisher, self._connection.settings
        acks = [
            await send_shared(publisher, settings, Forward(key, event))
            for key, event in zip(keys, events, strict=True)
        ]
        positions = [await publisher.wait(ack) for ack in acks]
        outcomes = await self._reader.outcomes(
            [
                Published(change.bank_id, change.memory_id, event.event_id, position.offset)
                for change, event, position in zip(changes, events, positions, strict=True)
            ]
        )
        return [outcome if isinstance(outcome, Refused) else None for outcome in outcomes]

    async def _change(
        self, change: MemoryChange, now: datetime, *, event_id: str | None = None
    ) -> Refused | MemoryRecord | None:
        """Publishes it, and gives what has become of it, and of the memory."""
        event = _event(change, event_id=event_id, now=now)
        offset = await self._publish(memory_key(change.bank_id, change.memory_id), event)
        published = Published(change.bank_id, change.memory_id, event.event_id, offset)
        try:
            [outcome] = await self._reader.outcomes([published])
        except UnavailableError as error:
            raise UndecidedError(change.memory_id, reason=str(error).removesuffix(": retry")) from error
        return outcome

    async def _head(self, bank: BankRecord, memory_id: str, now: datetime) -> Head:
        """What decides about a memory that is there, or can be again. What an earlier bank of that
        id had is neither.
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
        found = await self._reader.revision(bank_id, memory_id, revision_id)
        if found is None or found.offset < head.began:
            raise RevisionNotFoundError(bank_id, memory_id, revision_id)
        return found

    async def _publish(self, key: str, event: AnyEvent) -> int:
        """The offset of the event once it is durable."""
        publisher, settings = self._connection.publisher, self._connection.settings
        ack = await publisher.wait(await send_shared(publisher, settings, Forward(key, event)))
        return int(ack.offset)

    async def _found(self, bank_id: str, memory_id: str) -> MemoryRecord:
        found = await self._reader.find(bank_id, memory_id)
        if found is None:
            raise MemoryNotFoundError(bank_id, memory_id)
        return found


def check_fields(kind: type[BaseModel], changes: Mapping[str, Any]) -> None:
    """Raises `InvalidEventError` for a field that there is none of."""
    for name in changes:
        if name not in kind.model_fields:
            raise InvalidEventError(
                f"there is no field {name!r}; known are {', '.join(kind.model_fields)}", field=name
            )


def _check_expiry(memory: Memory, now: datetime) -> None:
    if memory.expires_at is not None and memory.expires_at <= now:
        raise InvalidEventError("this time is over: nobody could read the memory", field="expires_at")


def _has_lost(outcome: Refused | MemoryRecord | None, change: MemoryChange) -> bool:
    """Whether another change came first, so that this one is to be made again."""
    if not isinstance(outcome, Refused):
        return False
    match outcome.kind:
        case "changed":
            return True
        case "scope":
            raise InvalidEventError(outcome.reason, field="scope")
        case _:
            raise MemoryNotFoundError(change.bank_id, change.memory_id)


def _standing(outcome: Refused | MemoryRecord | None, change: MemoryChange) -> MemoryRecord:
    """The memory, unless somebody else has deleted it since."""
    if not isinstance(outcome, MemoryRecord):
        raise MemoryNotFoundError(change.bank_id, change.memory_id)
    return outcome


def _event(
    data: MemoryChange | BankFact,
    *,
    event_id: str | None = None,
    run_id: str = NO_RUN,
    now: datetime | None = None,
) -> AnyEvent:
    return new_event(
        data,
        event_id=event_id or new_event_id(),
        run_id=run_id,
        timestamp=now or datetime.now(UTC),
    )


def _changed(before: Any, changes: Mapping[str, Any]) -> Any:
    """`before` with these fields set, validated. Raises `InvalidEventError`, also for a field that
    there is none of.
    """
    kind = type(before)
    check_fields(kind, changes)
    try:
        return kind.model_validate({**dict(before), **changes})
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error
