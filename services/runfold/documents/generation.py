"""Generation of memories as JSON: what the routes are asked and answer."""

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
from runfold_schemas.data import Time
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import MemoryTopic, Metadata, Scope

CONTENTS_MAX: Final = 10_000

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
_OUTCOMES: Final = {said: action for action, said in _ACTIONS.items()}


class Content(BaseModel):
    """Something said, as a `Content` of Gemini's; what else it has is kept."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: str | None = Field(None, description="`user` or `model`.")
    parts: Annotated[list[dict[str, Any]], Field(min_length=1)]

    def said(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class GivenFact(RequestBody):
    fact: memories.Fact
    topics: tuple[MemoryTopic, ...] = ()


class SessionWanted(RequestBody):
    """What was said in a session, by the events' own timestamps: from `since` on, and before
    `until`.
    """

    session_id: Annotated[str, Field(min_length=1)]
    since: Time | None = None
    until: Time | None = None


class _Generating(RequestBody):
    """What can be said of memories that are generated, and of the revisions that this leaves."""

    allowed_topics: tuple[MemoryTopic, ...] = Field(
        (), description="Only facts of these topics are extracted; without any, of all that the bank has."
    )
    disable_consolidation: bool = Field(default=False, description="Every fact becomes a new memory.")
    metadata: Metadata | None = Field(
        None, description="Of memories that are created or updated; without it, updated ones keep theirs."
    )
    metadata_merge: _Merge = Field(
        "overwrite",
        description="`overwrite`: an updated memory has this metadata and no other. `merge`: it keeps its own, and these keys"
        " win. `require_exact_match`: only memories with exactly this metadata are consolidated with.",
    )
    revision: RevisionWanted = RevisionWanted()

    def options(self) -> GenerationOptions | None:
        """None where nothing was said of it. Raises `InvalidEventError` naming the field."""
        revision = self.revision
        given = self.model_fields_set & {"allowed_topics", "disable_consolidation", "metadata"}
        said: dict[str, Any] = {name: getattr(self, name) for name in given}
        if "metadata_merge" in self.model_fields_set:
            said["metadata_merge"] = _MERGES[self.metadata_merge]
        for name in revision.model_fields_set & {"labels", "ttl_seconds", "expires_at"}:
            said[f"revision_{name}"] = getattr(revision, name)
        if "disabled" in revision.model_fields_set:
            said["disable_revisions"] = revision.disabled
        try:
            return GenerationOptions(**said) if said else None
        except ValidationError as error:
            field, message = first_fault(error)
            raise InvalidEventError(message, field=field) from error


class Generate(_Generating):
    """Of what memories are to be generated: one of `facts`, `contents` and `session`. Only for a
    session the scope may be left out: then it is `{"user_id": <the session's user>}`.
    """

    scope: Scope | None = None
    facts: Annotated[tuple[GivenFact, ...], Field(min_length=1, max_length=DIRECT_FACTS_MAX)] | None = None
    contents: Annotated[tuple[Content, ...], Field(min_length=1, max_length=CONTENTS_MAX)] | None = None
    session: SessionWanted | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        given = [name for name in ("facts", "contents", "session") if getattr(self, name) is not None]
        if len(given) != 1:
            told = f"{' and '.join(given) or 'nothing'} is given: it is one of facts, contents and session"
            raise InvalidEventError(told, field=given[1] if given else "facts")
        return self

    def source(self) -> Source:
        if self.facts is not None:
            return DirectFacts([NewFact(text=one.fact, topics=one.topics) for one in self.facts])
        if self.contents is not None:
            return Contents([content.said() for content in self.contents])
        assert self.session is not None
        return SessionSource(self.session.session_id, self.session.since, self.session.until)


class GivenContent(RequestBody):
    content: Content
    event_id: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        None, description="Any text: of contents with the same one, a stream has the first."
    )
    event_time: Time | None = None


class Ingest(_Generating):
    """Contents for a stream, which is told by the bank, its scope and `stream_id`. The rule, and
    what is said of the memories, count for the stream until others are given.
    """

    stream_id: Annotated[str, Field(min_length=1, max_length=500)]
    scope: Scope
    contents: Annotated[tuple[GivenContent, ...], Field(max_length=CONTENTS_MAX)] = ()
    rule: TriggerRule | None = Field(
        None, description="When memories are generated. A rule without conditions: at once, as without any."
    )
    flush: bool = Field(default=False, description="Generate memories now, of all that is pending.")

    def ingested(self, default_ids: list[str] | None) -> list[StreamContent]:
        """The contents; those without an id get that of their place."""
        return [
            StreamContent(
                one.content.said(),
                event_id=one.event_id or (default_ids[place] if default_ids is not None else None),
                event_time=one.event_time,
            )
            for place, one in enumerate(self.contents)
        ]


class GeneratedMemory(BaseModel):
    """What became of one memory."""

    memory_id: str
    action: _Action
    previous_revision_id: str | None = Field(
        description="The change before this one, which may have left no revision."
    )
    memory: MemoryDocument | None = Field(description="As it is by now; null where it is gone.")

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
    """Where the stream's last content is."""

    run_id: str = Field(description="The run whose log the stream is.")
    offset: int | None = Field(description="Of the last content; null where none was given.")
