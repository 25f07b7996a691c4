"""Agent Engine's messages for memories and revisions, and their conversion to Runfold's.

A memory of an engine is the memory with the same id in the engine's bank.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, FiniteFloat, StringConstraints, model_validator

from runfold.client.memory import RevisionOptions
from runfold.vertex.filters import Kind, Path
from runfold.vertex.messages import PACKAGE, Duration, Message, Texts, Timestamp
from runfold.vertex.names import Name
from runfold_projections.memory import MemoryRecord, Revision
from runfold_schemas.data import DisplayName, ItemList, Labels
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import Fact, Memory, MemoryTopic, Moment, Scope

MEMORIES: Final = "memories"
REVISIONS: Final = "revisions"

NATURAL_LANGUAGE: Final = "NATURAL_LANGUAGE_COLLECTION"
"""The type of every memory of Runfold."""

FILTER_FIELDS: Final[Mapping[str, Kind]] = {
    "fact": "text",
    "scope": "map",
    "display_name": "text",
    "description": "text",
    "create_time": "time",
    "update_time": "time",
    "expire_time": "time",
}
"""The fields that memories can be filtered by."""


def _positive(length: timedelta) -> timedelta:
    if length <= timedelta(0):
        raise ValueError("a time to live is more than 0 seconds")
    return length


TimeToLive = Annotated[Duration, AfterValidator(_positive)]
"""A time to live."""


class TopicMessage(Message):
    """A topic of a memory: one of these."""

    managed_memory_topic: str | None = None
    custom_memory_topic_label: str | None = None

    @classmethod
    def of(cls, topic: MemoryTopic) -> "TopicMessage":
        return cls(managed_memory_topic=topic.managed, custom_memory_topic_label=topic.custom)

    def to_runfold(self) -> MemoryTopic:
        return topic_of(self.managed_memory_topic, self.custom_memory_topic_label)


class MetadataValue(Message):
    """A value of metadata: exactly one of these."""

    one_of = (("string_value", "double_value", "bool_value", "timestamp_value"),)

    string_value: str | None = None
    double_value: FiniteFloat | None = None
    bool_value: bool | None = None
    timestamp_value: Timestamp | None = None

    @classmethod
    def of(cls, value: bool | float | str | Moment) -> "MetadataValue":
        match value:
            case bool():
                return cls(bool_value=value)
            case str():
                return cls(string_value=value)
            case Moment():
                return cls(timestamp_value=value.timestamp)
            case _:
                return cls(double_value=value)

    @model_validator(mode="after")
    def _has_value(self) -> Self:
        if self == MetadataValue.model_construct():
            raise ValueError("one of stringValue, doubleValue, boolValue and timestampValue is needed")
        return self

    def to_runfold(self) -> bool | float | str | Moment:
        if self.timestamp_value is not None:
            return Moment(timestamp=self.timestamp_value)
        values = (self.string_value, self.double_value, self.bool_value)
        return next(value for value in values if value is not None)


MetadataMessage = dict[str, MetadataValue]


class MemoryMessage(Message):
    """A memory."""

    proto: ClassVar[str] = f"{PACKAGE}.Memory"

    name: str
    fact: str
    scope: Texts
    display_name: str | None = None
    description: str | None = None
    create_time: Timestamp
    update_time: Timestamp
    expire_time: Timestamp | None = None
    topics: ItemList[TopicMessage] | None = None
    metadata: MetadataMessage | None = None
    memory_type: str = NATURAL_LANGUAGE

    @classmethod
    def of(cls, record: MemoryRecord, name: Name) -> "MemoryMessage":
        """`name` is the name of the engine, or of a resource in it."""
        memory = record.memory
        return cls(
            name=str(name.engine.child(MEMORIES, record.memory_id)),
            fact=memory.fact,
            scope=memory.scope,
            display_name=memory.display_name or None,
            description=memory.description or None,
            create_time=record.created_at,
            update_time=record.updated_at,
            expire_time=memory.expires_at,
            topics=[TopicMessage.of(topic) for topic in memory.topics] or None,
            metadata={key: MetadataValue.of(value) for key, value in memory.metadata.items()} or None,
        )


class ExtractedMessage(Message):
    """A fact that a memory was generated from."""

    fact: str
    context: str | None = None


class RevisionMessage(Message):
    """A revision. The revision of a deletion has an empty fact."""

    proto: ClassVar[str] = f"{PACKAGE}.MemoryRevision"

    name: str
    fact: str
    create_time: Timestamp
    expire_time: Timestamp
    labels: Texts | None = None
    extracted_memories: ItemList[ExtractedMessage] | None = None

    @classmethod
    def of(cls, revision: Revision, memory: Name) -> "RevisionMessage":
        extracted = [ExtractedMessage(fact=each.fact, context=each.context) for each in revision.extracted]
        return cls(
            name=str(memory.child(REVISIONS, revision.revision_id)),
            fact=revision.fact,
            create_time=revision.created_at,
            expire_time=revision.expires_at,
            labels=revision.labels or None,
            extracted_memories=extracted or None,
        )


class RevisionParameters(Message):
    """The parameters of the revision that a change leaves."""

    one_of: ClassVar[tuple[tuple[str, ...], ...]] = (("revision_ttl", "revision_expire_time"),)

    disable_memory_revisions: bool | None = None
    revision_labels: Labels | None = None
    revision_ttl: TimeToLive | None = None
    revision_expire_time: Timestamp | None = None

    def revision(self, now: datetime) -> RevisionOptions:
        """The options of the revision. Raises `InvalidEventError`."""
        return RevisionOptions(
            disabled=bool(self.disable_memory_revisions),
            labels=self.revision_labels or {},
            expires_at=expiry(self.revision_ttl, self.revision_expire_time, now, field="revisionExpireTime"),
        )


class _MemoryInput(RevisionParameters):
    """The fields of requests that write a memory."""

    one_of = (*RevisionParameters.one_of, ("ttl", "expire_time"))

    display_name: DisplayName | None = None
    description: Annotated[str, StringConstraints(max_length=10_000)] | None = None
    ttl: TimeToLive | None = None
    expire_time: Timestamp | None = None
    topics: ItemList[TopicMessage] | None = None
    metadata: MetadataMessage | None = None

    def expires_at(self, now: datetime) -> datetime | None:
        """When the memory is to expire, if the request says so. Raises `InvalidEventError`."""
        return expiry(self.ttl, self.expire_time, now, field="expireTime")


class CreateMemory(_MemoryInput):
    """A memory to create."""

    fact: Fact
    scope: Scope

    def memory(self, now: datetime) -> Memory:
        """The memory. Raises pydantic's `ValidationError`, and `InvalidEventError`."""
        return Memory(
            fact=self.fact,
            scope=self.scope,
            topics=topics_of(self.topics),
            metadata=metadata_of(self.metadata),
            display_name=self.display_name,
            description=self.description,
            expires_at=self.expires_at(now),
        )


class UpdateMemory(_MemoryInput):
    """The fields of a memory that change."""

    fact: Fact | None = None
    scope: Texts | None = None


class Rollback(Message):
    """The revision to roll back to: its id, or its name."""

    target_revision_id: Annotated[str, StringConstraints(min_length=1)]


def expiry(ttl: timedelta | None, at: datetime | None, now: datetime, *, field: str) -> datetime | None:
    """The time of expiry. Raises `InvalidEventError` if that is not in the future."""
    if ttl is not None:
        return now + ttl
    if at is not None and at <= now:
        raise InvalidEventError(f"{field}: this time has passed already", field=field)
    return at


def topic_of(managed: str | None, custom: str | None) -> MemoryTopic:
    """The topic. Raises pydantic's `ValidationError`."""
    return MemoryTopic.model_validate({"managed": managed, "custom": custom})


def topics_of(topics: Sequence[TopicMessage] | None) -> tuple[MemoryTopic, ...]:
    return tuple(topic.to_runfold() for topic in topics or [])


def metadata_of(metadata: Mapping[str, MetadataValue] | None) -> dict[str, Any]:
    return {key: value.to_runfold() for key, value in (metadata or {}).items()}


def filter_value(record: MemoryRecord, path: Path) -> Any:
    """The value of a field for a filter."""
    memory = record.memory
    match path:
        case ("fact",):
            return memory.fact
        case ("scope",):
            return memory.scope
        case ("scope", key):
            return memory.scope.get(key)
        case ("display_name",):
            return memory.display_name
        case ("description",):
            return memory.description
        case ("create_time",):
            return record.created_at
        case ("update_time",):
            return record.updated_at
        case _:
            return memory.expires_at
