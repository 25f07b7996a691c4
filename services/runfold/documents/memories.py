"""Memories as JSON: what the routes are asked and answer."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from runfold.client.memory import Near, RevisionOptions
from runfold.documents.fields import CreationId, Expiring
from runfold.http.requests import RequestBody
from runfold_projections.memory import BankRecord, MemoryRecord, Revision
from runfold_schemas.codec import first_fault
from runfold_schemas.data import DisplayName, Labels
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import (
    NO_RUN,
    BankConfig,
    ExtractedMemory,
    Fact,
    Memory,
    MemoryId,
    MemoryTopic,
    Metadata,
    Scope,
)


class RevisionWanted(Expiring):
    """The revision that a change leaves. Without a time the bank decides, or it is kept for 365
    days.
    """

    disabled: bool = False
    labels: Labels = Field({})

    def options(self) -> RevisionOptions:
        return RevisionOptions(disabled=self.disabled, labels=self.labels, expires_at=self.expiry())


class CreateBank(RequestBody):
    """A bank to create. Without `bank_id` the bank gets a new id."""

    bank_id: str | None = None
    event_id: CreationId = None
    config: BankConfig = BankConfig()


class CreateMemory(Expiring):
    """A memory to create. Without `memory_id` the memory gets a new id."""

    memory_id: MemoryId | None = None
    event_id: CreationId = None
    fact: Fact
    scope: Scope
    topics: tuple[MemoryTopic, ...] = ()
    metadata: Metadata = Field({})
    display_name: DisplayName | None = None
    description: str | None = None
    revision: RevisionWanted = RevisionWanted()

    def memory(self) -> Memory:
        """Raises `InvalidEventError` naming the field."""
        said = {name: getattr(self, name) for name in Memory.model_fields}
        try:
            return Memory(**said | {"expires_at": self.expiry()})
        except ValidationError as error:
            field, message = first_fault(error)
            raise InvalidEventError(message, field=field) from error


class UpdateMemory(Expiring):
    """What changes: fields that are not there stay as they are, null takes away what may be
    absent.
    """

    fact: Fact | None = None
    topics: tuple[MemoryTopic, ...] | None = None
    metadata: Metadata | None = None
    display_name: DisplayName | None = None
    description: str | None = None
    revision: RevisionWanted = RevisionWanted()

    @model_validator(mode="after")
    def _keeps_what_must_be(self) -> Self:
        for name in ("fact", "topics", "metadata"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise ValueError(f"{name} cannot be null")
        return self

    def changes(self) -> dict[str, Any]:
        named = self.model_fields_set - {"revision", "ttl_seconds"}
        changes = {name: getattr(self, name) for name in named}
        return changes | ({"expires_at": self.expiry()} if "ttl_seconds" in self.model_fields_set else {})


class RollBack(RequestBody):
    """To which revision of the memory."""

    revision_id: str
    revision: RevisionWanted = RevisionWanted()


class Retrieve(RequestBody):
    """Memories of exactly this scope: those nearest in meaning to the query, or without one the
    newest.
    """

    scope: Scope
    query: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 3


class Purge(RequestBody):
    """All memories of the bank, or of a scope. Without `force` they are only counted."""

    scope: Scope | None = None
    force: bool = False


class MemoryDocument(BaseModel):
    """A memory as it was at one moment."""

    bank_id: str
    memory_id: str
    fact: str
    scope: dict[str, str]
    topics: tuple[MemoryTopic, ...]
    metadata: Metadata
    display_name: str | None
    description: str | None
    revision_id: str = Field(
        description="The change that made it so; it left a revision unless that was disabled."
    )
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None

    @classmethod
    def of(cls, record: MemoryRecord) -> Self:
        return cls(
            bank_id=record.bank_id,
            memory_id=record.memory_id,
            revision_id=record.revision_id,
            created_at=record.created_at,
            updated_at=record.updated_at,
            **{name: getattr(record.memory, name) for name in Memory.model_fields},
        )

    def record(self) -> MemoryRecord:
        """The memory that the document is of."""
        return MemoryRecord(
            bank_id=self.bank_id,
            memory_id=self.memory_id,
            memory=Memory(**{name: getattr(self, name) for name in Memory.model_fields}),
            revision_id=self.revision_id,
            created_at=self.created_at,
            updated_at=self.updated_at,
        )


class MemoryPage(BaseModel):
    memories: list[MemoryDocument]
    next_cursor: str | None = None


class NearMemory(BaseModel):
    memory: MemoryDocument
    distance: float | None = Field(
        None, description="From the query: 0 is the same, 1.41 nothing in common. None without a query."
    )

    @classmethod
    def of(cls, near: Near) -> Self:
        return cls(memory=MemoryDocument.of(near.record), distance=near.distance)

    def near(self) -> Near:
        """What the document is of, where there was a query."""
        return Near(self.memory.record(), self.distance if self.distance is not None else 0.0)


class Retrieved(BaseModel):
    retrieved: list[NearMemory]


class Purged(BaseModel):
    count: int


class RevisionDocument(BaseModel):
    """What a memory was after one change."""

    bank_id: str
    memory_id: str
    revision_id: str
    action: Literal["created", "updated", "deleted", "rolled_back"]
    fact: str = Field(description='"" after a deletion.')
    memory: Memory | None = Field(description="All that it held; null after a deletion.")
    labels: dict[str, str]
    extracted: tuple[ExtractedMemory, ...] = Field(
        description="What was found in a conversation and became this."
    )
    rolled_back_to: str | None
    run_id: str | None = Field(description="The run that caused it, if one did.")
    created_at: datetime
    expires_at: datetime

    @classmethod
    def of(cls, revision: Revision) -> Self:
        said = revision.model_dump(exclude={"memory", "extracted", "run_id", "offset"})
        return cls(
            **said,
            fact=revision.fact,
            memory=revision.memory,
            extracted=revision.extracted,
            run_id=revision.run_id if revision.run_id != NO_RUN else None,
        )

    def revision(self) -> Revision:
        """The revision that the document is of, but for its offset, which a document does not
        say.
        """
        said = {
            name: getattr(self, name) for name in Revision.model_fields if name not in ("offset", "run_id")
        }
        return Revision(offset=-1, run_id=self.run_id or NO_RUN, **said)


class RevisionPage(BaseModel):
    revisions: list[RevisionDocument]
    next_cursor: str | None = None


class BankDocument(BaseModel):
    """A set of memories with one configuration."""

    bank_id: str
    config: BankConfig
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, bank: BankRecord) -> Self:
        return cls(**bank.model_dump(exclude={"created_by", "config"}), config=bank.config)

    def record(self) -> BankRecord:
        """The bank that the document is of, but for the event that made it, which a document does
        not say.
        """
        return BankRecord(created_by="", changed_by="", **dict(self))


class BankPage(BaseModel):
    banks: list[BankDocument]
    next_cursor: str | None = None
