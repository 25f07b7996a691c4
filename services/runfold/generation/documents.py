"""Generation of memories as JSON: the bodies of requests and answers."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runfold.documents.memories import MemoryDocument, RevisionWanted
from runfold.generation.options import (
    DIRECT_FACTS_MAX,
    ChangeAction,
    ChangedMemory,
    Contents,
    DirectFacts,
    GenerationOptions,
    MetadataMerge,
    NewFact,
    SessionSource,
    Source,
    StreamContent,
)
from runfold.generation.triggers import TriggerRule
from runfold.http.requests import RequestBody
from runfold_schemas import memories
from runfold_schemas.codec import first_fault
from runfold_schemas.data import ItemList, Items, Time
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import MemoryTopic, Metadata, Scope

CONTENTS_MAX: Final = 10_000
"""Contents in one request."""

_Merge = Literal["overwrite", "merge", "require_exact_match"]

_MERGES: Final[dict[_Merge, MetadataMerge]] = {
    "overwrite": "OVERWRITE",
    "merge": "MERGE",
    "require_exact_match": "REQUIRE_EXACT_MATCH",
}

_Action = Literal["created", "updated", "deleted"]

_ACTIONS: Final[dict[ChangeAction, _Action]] = {
    "CREATED": "created",
    "UPDATED": "updated",
    "DELETED": "deleted",
}
_OUTCOMES: Final = {name: action for action, name in _ACTIONS.items()}


class Content(BaseModel):
    """A message, in the form of Gemini's `Content`. Other fields are kept."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: str | None = Field(None, description="`user` or `model`.")
    parts: Annotated[ItemList[dict[str, Any]], Field(min_length=1)]

    def fields(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class FactInput(RequestBody):
    fact: memories.Fact
    topics: Items[MemoryTopic] = ()


class SourceSession(RequestBody):
    """A session as the source: its events from `since` on and before `until`, by their own
    timestamps.
    """

    session_id: Annotated[str, Field(min_length=1)]
    since: Time | None = None
    until: Time | None = None


class _Generating(RequestBody):
    """Options of generated memories, and of the revisions that their changes leave."""

    allowed_topics: Items[MemoryTopic] = Field(
        (),
        description="Only facts of these topics are extracted. Without topics, facts of all"
        " topics of the bank.",
    )
    disable_consolidation: bool = Field(default=False, description="Every fact becomes a new memory.")
    metadata: Metadata | None = Field(
        None,
        description="The metadata of created and updated memories. Without it, updated"
        " memories keep their metadata.",
    )
    metadata_merge: _Merge = Field(
        "overwrite",
        description="`overwrite`: an updated memory has this metadata and no other. `merge`:"
        " it keeps its other"
        " keys. `require_exact_match`: facts are consolidated only with memories of exactly this metadata.",
    )
    revision: RevisionWanted = RevisionWanted()

    def options(self) -> GenerationOptions | None:
        """The options, or None if the request has none. Raises `InvalidEventError` naming the
        field.
        """
        revision = self.revision
        names = self.model_fields_set & {"allowed_topics", "disable_consolidation", "metadata"}
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        if "metadata_merge" in self.model_fields_set:
            options["metadata_merge"] = _MERGES[self.metadata_merge]
        for name in revision.model_fields_set & {"labels", "ttl_seconds", "expires_at"}:
            options[f"revision_{name}"] = getattr(revision, name)
        if "disabled" in revision.model_fields_set:
            options["disable_revisions"] = revision.disabled
        try:
            return GenerationOptions(**options) if options else None
        except ValidationError as error:
            field, message = first_fault(error)
            raise InvalidEventError(message, field=field) from error


class Generate(_Generating):
    """Generate memories from one source: `facts`, `contents` or `session`.

    `scope` is optional for a session only. Its default is `{"user_id": <the session's user>}`.
    """

    scope: Scope | None = None
    facts: Annotated[Items[FactInput], Field(min_length=1, max_length=DIRECT_FACTS_MAX)] | None = None
    contents: Annotated[Items[Content], Field(min_length=1, max_length=CONTENTS_MAX)] | None = None
    session: SourceSession | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        sources = [name for name in ("facts", "contents", "session") if getattr(self, name) is not None]
        if len(sources) != 1:
            message = f"there are {len(sources)} sources: send one of facts, contents and session"
            raise InvalidEventError(message, field=sources[1] if sources else "facts")
        return self

    def source(self) -> Source:
        if self.facts is not None:
            return DirectFacts([NewFact(text=fact.fact, topics=fact.topics) for fact in self.facts])
        if self.contents is not None:
            return Contents([content.fields() for content in self.contents])
        assert self.session is not None
        return SessionSource(self.session.session_id, self.session.since, self.session.until)


class ContentInput(RequestBody):
    content: Content
    event_id: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        None,
        description="An id of any form. If several contents of a stream have the same id, the stream keeps"
        " the first.",
    )
    event_time: Time | None = None


class Ingest(_Generating):
    """Contents for a stream, which bank, scope and `stream_id` identify. The rule and the options
    hold for the stream until a later request sets others.
    """

    stream_id: Annotated[str, Field(min_length=1, max_length=500)]
    scope: Scope
    contents: Annotated[Items[ContentInput], Field(max_length=CONTENTS_MAX)] = ()
    rule: TriggerRule | None = Field(
        None, description="When memories are generated. Without a rule, or with an empty rule: at once."
    )
    flush: bool = Field(default=False, description="Generate memories now, from all pending contents.")

    def ingested(self, default_ids: list[str] | None) -> list[StreamContent]:
        """The contents. A content without an id gets the default id of its index."""
        return [
            StreamContent(
                entry.content.fields(),
                event_id=entry.event_id or (default_ids[index] if default_ids is not None else None),
                event_time=entry.event_time,
            )
            for index, entry in enumerate(self.contents)
        ]


class GeneratedMemory(BaseModel):
    """A memory that was created, updated or deleted."""

    memory_id: str
    action: _Action
    previous_revision_id: str | None = Field(
        description="The id of the change before. That change may have left no revision."
    )
    memory: MemoryDocument | None = Field(description="The memory as it is now. Null if it is gone.")

    @classmethod
    def of(cls, generated: ChangedMemory, memory: MemoryDocument | None) -> Self:
        return cls(
            memory_id=generated.memory_id,
            action=_ACTIONS[generated.action],
            previous_revision_id=generated.previous_revision_id,
            memory=memory,
        )

    def outcome(self) -> ChangedMemory:
        return ChangedMemory(self.memory_id, _OUTCOMES[self.action], self.previous_revision_id)


class GeneratedMemories(BaseModel):
    generated: list[GeneratedMemory]


class StreamPosition(BaseModel):
    """The position of the stream's last content."""

    run_id: str = Field(description="The run whose log is the stream.")
    offset: int | None = Field(description="The offset of the last content. Null if the request had none.")
