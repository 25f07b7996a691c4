"""Memories and banks as JSON: the bodies of requests and answers."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from runfold.client.memory import NearestMemory, RevisionOptions
from runfold.documents.fields import CreationId, Expiring
from runfold.http.requests import RequestBody
from runfold_projections.memory import BankRecord, MemoryRecord, Revision
from runfold_schemas.codec import first_fault
from runfold_schemas.data import DisplayName, Items, Labels
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import (
    FACT_LENGTH_MAX,
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
    """Options of the revision that a change leaves. Without an expiry it is kept as long as its
    bank configures, by default 365 days.
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
    topics: Items[MemoryTopic] = ()
    metadata: Metadata = Field({})
    display_name: DisplayName | None = None
    description: str | None = None
    revision: RevisionWanted = RevisionWanted()

    def memory(self) -> Memory:
        """Raises `InvalidEventError` naming the field."""
        fields = {name: getattr(self, name) for name in Memory.model_fields}
        try:
            return Memory(**fields | {"expires_at": self.expiry()})
        except ValidationError as error:
            field, message = first_fault(error)
            raise InvalidEventError(message, field=field) from error


class UpdateMemory(Expiring):
    """The changes of a memory. A field that is missing stays as it is. Null removes the value of an
    optional field.
    """

    fact: Fact | None = None
    topics: Items[MemoryTopic] | None = None
    metadata: Metadata | None = None
    display_name: DisplayName | None = None
    description: str | None = None
    revision: RevisionWanted = RevisionWanted()

    @model_validator(mode="after")
    def _keeps_required_fields(self) -> Self:
        for name in ("fact", "topics", "metadata"):
            if name in self.model_fields_set and getattr(self, name) is None:
                raise ValueError(f"{name} cannot be null")
        return self

    def changes(self) -> dict[str, Any]:
        named = self.model_fields_set - {"revision", "ttl_seconds"}
        changes = {name: getattr(self, name) for name in named}
        return changes | ({"expires_at": self.expiry()} if "ttl_seconds" in self.model_fields_set else {})


class RollBack(RequestBody):
    """The revision to roll the memory back to."""

    revision_id: str
    revision: RevisionWanted = RevisionWanted()


class Retrieve(RequestBody):
    """Retrieve memories of exactly this scope: the nearest in meaning to the query, or without a
    query the newest.
    """

    scope: Scope
    query: Annotated[str, Field(min_length=1, max_length=FACT_LENGTH_MAX)] | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 3


class Purge(RequestBody):
    """Delete the memories of a scope, or everything in the bank. Without `force` they are only
    counted. A request with neither is refused.
    """

    scope: Scope | None = None
    everything: bool = False
    force: bool = False


class MemoryDocument(BaseModel):
    """A memory as it was at one moment."""

    bank_id: str
    memory_id: str
    fact: str
    scope: dict[str, str]
    topics: Items[MemoryTopic]
    metadata: Metadata
    display_name: str | None
    description: str | None
    revision_id: str = Field(
        description="The id of its last change. The change left a revision, unless revisions were disabled."
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
        """The memory that the document describes."""
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
        None,
        description="The distance from the query: 0 is the same meaning, 1.41 nothing in"
        " common. Null without a query.",
    )

    @classmethod
    def of(cls, near: NearestMemory) -> Self:
        return cls(memory=MemoryDocument.of(near.record), distance=near.distance)

    def near(self) -> NearestMemory:
        """The memory and its distance. Without a query the distance is 0."""
        return NearestMemory(self.memory.record(), self.distance if self.distance is not None else 0.0)


class Retrieved(BaseModel):
    retrieved: list[NearMemory]


class Purged(BaseModel):
    count: int


class RevisionDocument(BaseModel):
    """A memory as it was after one change."""

    bank_id: str
    memory_id: str
    revision_id: str
    action: Literal["created", "updated", "deleted", "rolled_back"]
    fact: str = Field(description='"" after a deletion.')
    memory: Memory | None = Field(description="The whole memory. Null after a deletion.")
    labels: dict[str, str]
    extracted: Items[ExtractedMemory] = Field(
        description="The facts that were extracted from a conversation and led to this change."
    )
    rolled_back_to: str | None
    run_id: str | None = Field(description="The run that caused the change, if a run did.")
    created_at: datetime
    expires_at: datetime

    @classmethod
    def of(cls, revision: Revision) -> Self:
        fields = revision.model_dump(exclude={"memory", "extracted", "run_id", "offset"})
        return cls(
            **fields,
            fact=revision.fact,
            memory=revision.memory,
            extracted=revision.extracted,
            run_id=revision.run_id if revision.run_id != NO_RUN else None,
        )

    def revision(self) -> Revision:
        """The revision that the document describes. A document does not have its offset."""
        fields = {
            name: getattr(self, name) for name in Revision.model_fields if name not in ("offset", "run_id")
        }
        return Revision(offset=-1, run_id=self.run_id or NO_RUN, **fields)


class RevisionPage(BaseModel):
    revisions: list[RevisionDocument]
    next_cursor: str | None = None


class BankDocument(BaseModel):
    """A bank: a set of memories with one configuration."""

    bank_id: str
    config: BankConfig
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, bank: BankRecord) -> Self:
        return cls(**bank.model_dump(exclude={"created_by", "config"}), config=bank.config)

    def record(self) -> BankRecord:
        """The bank that the document describes. A document does not have the ids of the events that
        created and changed the bank.
        """
        return BankRecord(created_by="", changed_by="", **dict(self))


class BankPage(BaseModel):
    banks: list[BankDocument]
    next_cursor: str | None = None
