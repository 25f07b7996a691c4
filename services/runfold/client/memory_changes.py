"""Publishing changes of memories and banks, and what became of them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from runfold.client.connection import LogConnection
from runfold.client.memory import MemoryReader, Published
from runfold.encryption.subjects import subject_of_scope
from runfold.ids import new_event_id
from runfold.log.publisher import Ack, Publisher
from runfold.log.settings import LogSettings
from runfold.log.shared import send, shared_record
from runfold_projections.memory import MemoryRecord, Refused
from runfold_projections.state import Forward
from runfold_schemas.codec import check_new, first_fault, new_event
from runfold_schemas.errors import (
    InvalidEventError,
    MemoryNotFoundError,
    QuarantinedError,
    UnavailableError,
    UndecidedError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import (
    NO_RUN,
    BankFact,
    Memory,
    MemoryChange,
    MemoryDeleted,
    bank_key,
    memory_key,
)

ModelT = TypeVar("ModelT", bound=BaseModel)


class MemoryChanges:
    """Publishes changes and waits until the reader shows their effect."""

    def __init__(self, connection: LogConnection, reader: MemoryReader) -> None:
        self._connection = connection
        self._reader = reader

    async def publish(self, fact: BankFact, *, event_id: str | None = None) -> str:
        """Publishes a change of a bank. Returns the event's id when the event is durable."""
        event = _event(fact, event_id=event_id)
        publisher, settings = self._connection.publisher, self._connection.settings
        await publisher.wait(await _send_new(publisher, settings, Forward(bank_key(fact.bank_id), event)))
        return event.event_id

    async def make(
        self, change: MemoryChange, now: datetime, *, event_id: str | None = None
    ) -> Refused | MemoryRecord | None:
        """Publishes a change of a memory. Returns why it was refused, or the memory, which may have
        been changed again since. Returns None if the memory is gone.
        """
        [published] = await self._publish([change], now=now, event_id=event_id, run_id=NO_RUN)
        try:
            [outcome] = await self._reader.outcomes([published])
        except (UnavailableError, QuarantinedError) as error:
            raise UndecidedError(change.memory_id, reason=str(error).removesuffix(": retry")) from error
        return outcome

    async def make_all(
        self, changes: Sequence[MemoryChange], *, event_id: str | None, run_id: str
    ) -> Sequence[Refused | None]:
        """Publishes changes of different memories, and returns when they are decided. For each
        change the result is why it was refused, or None.
        """
        published = await self._publish(changes, now=datetime.now(UTC), event_id=event_id, run_id=run_id)
        outcomes = await self._reader.outcomes(published)
        return [outcome if isinstance(outcome, Refused) else None for outcome in outcomes]

    async def _publish(
        self, changes: Sequence[MemoryChange], *, now: datetime, event_id: str | None, run_id: str
    ) -> list[Published]:
        publisher, settings = self._connection.publisher, self._connection.settings
        events = [
            await self._sealed(_event(change, event_id=event_id, run_id=run_id, now=now), change)
            for change in changes
        ]
        acks = [
            await _send_new(publisher, settings, Forward(memory_key(change.bank_id, change.memory_id), event))
            for change, event in zip(changes, events, strict=True)
        ]
        positions = [await publisher.wait(ack) for ack in acks]
        return [
            Published(change.bank_id, change.memory_id, event.event_id, position.offset)
            for change, event, position in zip(changes, events, positions, strict=True)
        ]

    async def _sealed(self, event: AnyEvent, change: MemoryChange) -> AnyEvent:
        """The event as it is stored."""
        scope: Mapping[str, str] = {}
        is_sealed = self._connection.sealing is not None
        if is_sealed and isinstance(change, MemoryDeleted) and (change.extracted or change.revision_labels):
            head = await self._reader.head(change.bank_id, change.memory_id)
            scope = head.scope if head is not None else {}
        subject = subject_of_scope(change.bank_id, scope)
        return await self._connection.sealed(event, subject, is_whole=False)


def has_lost(outcome: Refused | MemoryRecord | None, change: MemoryChange) -> bool:
    """Whether another change came first, so that this change has to be made again. Raises
    `InvalidEventError` for a change of the scope, and `MemoryNotFoundError`.
    """
    if not isinstance(outcome, Refused):
        return False
    match outcome.kind:
        case "changed":
            return True
        case "scope":
            raise InvalidEventError(outcome.reason, field="scope")
        case _:
            raise MemoryNotFoundError(change.bank_id, change.memory_id)


def memory_after(outcome: Refused | MemoryRecord | None, change: MemoryChange) -> MemoryRecord:
    """The memory after the change. Raises `MemoryNotFoundError` if it was deleted since."""
    if not isinstance(outcome, MemoryRecord):
        raise MemoryNotFoundError(change.bank_id, change.memory_id)
    return outcome


def with_changes(model: ModelT, changes: Mapping[str, object]) -> ModelT:
    """The model with these fields set, validated. Raises `InvalidEventError`, also for an unknown
    field.
    """
    kind = type(model)
    check_fields(kind, changes)
    try:
        return kind.model_validate({**dict(model), **changes})
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error


def check_fields(kind: type[BaseModel], changes: Mapping[str, object]) -> None:
    """Raises `InvalidEventError` for a field that the model does not have."""
    for name in changes:
        if name not in kind.model_fields:
            raise InvalidEventError(
                f"there is no field {name!r}; the fields are {', '.join(kind.model_fields)}", field=name
            )


def check_memory(memory: Memory, now: datetime) -> None:
    """Raises `InvalidEventError` for anything but a memory that has not expired yet."""
    if not isinstance(memory, Memory):
        raise InvalidEventError(
            f"a {type(memory).__name__} is not a memory: pass runfold.Memory(fact=..., scope=...)"
        )
    if memory.expires_at is not None and memory.expires_at <= now:
        raise InvalidEventError("expires_at is in the past: nobody could read the memory", field="expires_at")


async def _send_new(publisher: Publisher, settings: LogSettings, forward: Forward) -> Ack:
    """Publishes a change of a memory or a bank. Raises `InvalidEventError` if it has too many
    values or is nested too deep, and `EventTooLargeError` if Kafka would not take it.
    """
    shared = shared_record(settings, forward)
    check_new(shared.record.value or b"")
    return await send(publisher, shared)


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
