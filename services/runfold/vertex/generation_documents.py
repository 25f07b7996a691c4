"""Agent Engine's messages for the generation of memories, and their conversion to Runfold's."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from runfold.generation.options import (
    DIRECT_FACTS_MAX,
    ChangedMemory,
    Contents,
    DirectFacts,
    GenerationOptions,
    MetadataMerge,
    NewFact,
    SessionSource,
    Source,
)
from runfold.generation.streams import StreamContent
from runfold.generation.triggers import TriggerRule
from runfold.vertex.memory_documents import (
    MEMORIES,
    REVISIONS,
    MetadataMessage,
    RevisionParameters,
    TimeToLive,
    TopicMessage,
    expiry,
    metadata_of,
    topics_of,
)
from runfold.vertex.messages import PACKAGE, Fields, Message, Timestamp
from runfold.vertex.names import Name
from runfold.vertex.session_documents import SESSIONS, runfold_id
from runfold_schemas.data import ItemList
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import Fact, Scope

_UNSPECIFIED: Final = "METADATA_MERGE_STRATEGY_UNSPECIFIED"


class DirectMemory(Message):
    fact: Fact
    topics: ItemList[TopicMessage] | None = None


class DirectMemoriesSource(Message):
    direct_memories: Annotated[ItemList[DirectMemory], Field(min_length=1, max_length=DIRECT_FACTS_MAX)]

    def to_runfold(self) -> Source:
        return DirectFacts(
            [NewFact(text=memory.fact, topics=topics_of(memory.topics)) for memory in self.direct_memories]
        )


class ContentEvent(Message):
    content: Fields


class DirectContentsSource(Message):
    events: Annotated[ItemList[ContentEvent], Field(min_length=1)]

    def to_runfold(self) -> Source:
        return Contents([event.content for event in self.events])


class VertexSessionSource(Message):
    """The name of a session, and the times from which and before which its events are read."""

    session: str
    start_time: Timestamp | None = None
    end_time: Timestamp | None = None

    def to_runfold(self) -> Source:
        """The source. Raises `InvalidEventError` if `session` is not the name of a session."""
        name = Name.parse(self.session)
        if name.id_in(SESSIONS) is None:
            raise InvalidEventError(
                f"vertexSessionSource.session: {self.session!r} is not the name of a session",
                field="vertexSessionSource.session",
            )
        return SessionSource(runfold_id(name), since=self.start_time, until=self.end_time)


class GenerationParameters(RevisionParameters):
    """The options of requests that generate memories."""

    metadata: MetadataMessage | None = None
    metadata_merge_strategy: MetadataMerge | Literal["METADATA_MERGE_STRATEGY_UNSPECIFIED"] | None = None

    def option_values(self, now: datetime) -> dict[str, Any]:
        """The options that the request contains."""
        strategy = self.metadata_merge_strategy
        at, ttl = self.revision_expire_time, self.revision_ttl
        values = {
            "metadata": None if self.metadata is None else metadata_of(self.metadata),
            "metadata_merge": strategy if strategy != _UNSPECIFIED else None,
            "disable_revisions": self.disable_memory_revisions,
            "revision_labels": self.revision_labels,
            "revision_expires_at": expiry(None, at, now, field="revisionExpireTime"),
            "revision_ttl_seconds": ttl.total_seconds() if ttl is not None else None,
        }
        return {name: value for name, value in values.items() if value is not None}


class Generate(GenerationParameters):
    """A request to generate memories."""

    one_of = (
        *RevisionParameters.one_of,
        ("direct_memories_source", "direct_contents_source", "vertex_session_source"),
    )

    direct_memories_source: DirectMemoriesSource | None = None
    direct_contents_source: DirectContentsSource | None = None
    vertex_session_source: VertexSessionSource | None = None
    scope: Scope | None = None
    disable_consolidation: bool | None = None
    allowed_topics: ItemList[TopicMessage] | None = None

    def source(self) -> Source:
        """The source. Raises `InvalidEventError` if the request has none."""
        source = self.direct_memories_source or self.direct_contents_source or self.vertex_session_source
        if source is None:
            raise InvalidEventError(
                "one of directMemoriesSource, directContentsSource and vertexSessionSource is needed"
            )
        return source.to_runfold()

    def options(self, now: datetime) -> GenerationOptions:
        """The options of the generation. Raises pydantic's `ValidationError`, and
        `InvalidEventError`.
        """
        return GenerationOptions(
            allowed_topics=topics_of(self.allowed_topics),
            disable_consolidation=bool(self.disable_consolidation),
            **self.option_values(now),
        )


class GeneratedMemory(Message):
    """A memory that was created, updated or deleted."""

    class MemoryName(Message):
        name: str

    memory: MemoryName
    action: str
    previous_revision: str | None = None

    @classmethod
    def of(cls, changed: ChangedMemory, engine: Name) -> "GeneratedMemory":
        name, before = engine.child(MEMORIES, changed.memory_id), changed.previous_revision_id
        return cls(
            memory=cls.MemoryName(name=str(name)),
            action=changed.action,
            previous_revision=str(name.child(REVISIONS, before)) if before else None,
        )


class GenerateResponse(Message):
    """All memories that a generation changed."""

    proto: ClassVar[str] = f"{PACKAGE}.GenerateMemoriesResponse"

    generated_memories: ItemList[GeneratedMemory] | None = None

    @classmethod
    def of(cls, memories: Sequence[ChangedMemory], engine: Name) -> "GenerateResponse":
        return cls(generated_memories=[GeneratedMemory.of(memory, engine) for memory in memories] or None)


class GenerationRule(Message):
    """When memories are generated from a stream."""

    event_count: Annotated[int, Field(ge=1)] | None = None
    fixed_interval: TimeToLive | None = None
    idle_duration: TimeToLive | None = None
    overlap_event_count: Annotated[int, Field(ge=0)] | None = None

    def to_runfold(self) -> TriggerRule:
        """The rule of the stream. Raises pydantic's `ValidationError`."""
        interval, idle = self.fixed_interval, self.idle_duration
        return TriggerRule(
            event_count=self.event_count,
            interval_seconds=interval.total_seconds() if interval is not None else None,
            idle_seconds=idle.total_seconds() if idle is not None else None,
            overlap_event_count=self.overlap_event_count or 0,
        )


class GenerationTriggerConfig(Message):
    generation_rule: GenerationRule | None = None

    def rule(self) -> TriggerRule | None:
        """The rule of the stream. Raises pydantic's `ValidationError`."""
        return self.generation_rule.to_runfold() if self.generation_rule else None


class IngestedEvent(Message):
    content: Fields
    event_id: Annotated[str, StringConstraints(min_length=1)] | None = None
    event_time: Timestamp | None = None

    def to_runfold(self) -> StreamContent:
        return StreamContent(self.content, event_id=self.event_id, event_time=self.event_time)


class IngestedContents(Message):
    events: ItemList[IngestedEvent] | None = None


class IngestEvents(GenerationParameters):
    """Contents for a stream, its rule and its options. Each of them may be missing."""

    scope: Scope
    stream_id: str = ""
    direct_contents_source: IngestedContents = IngestedContents()
    generation_trigger_config: GenerationTriggerConfig | None = None
    force_flush: bool = False

    def rule(self) -> TriggerRule | None:
        """The new rule; None: it does not change. Raises pydantic's `ValidationError`."""
        return self.generation_trigger_config.rule() if self.generation_trigger_config else None

    def options(self, now: datetime) -> GenerationOptions | None:
        """The new options; None: they do not change. Raises pydantic's `ValidationError`, and
        `InvalidEventError`.
        """
        values = self.option_values(now)
        return GenerationOptions(**values) if values else None


class IngestResponse(Message):
    """A message without fields."""

    proto: ClassVar[str] = f"{PACKAGE}.IngestEventsResponse"
