"""The options and sources of a generation, and its results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from runfold.client.memory import RevisionOptions
from runfold_schemas.data import Labels
from runfold_schemas.memories import ExtractedMemory, MemoryTopic, Metadata

DIRECT_FACTS_MAX: Final = 5

ChangeAction = Literal["CREATED", "UPDATED", "DELETED"]

MetadataMerge = Literal["OVERWRITE", "MERGE", "REQUIRE_EXACT_MATCH"]


class NewFact(BaseModel):
    """A fact to be stored as a memory, with the topics that it belongs to."""

    model_config = ConfigDict(frozen=True)

    text: str
    topics: tuple[MemoryTopic, ...] = ()


class GenerationOptions(BaseModel):
    """How memories are generated; stored in the log with the event that requests the generation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allowed_topics: tuple[MemoryTopic, ...] = ()
    """Only facts of these topics are extracted; if empty, facts of all topics of the bank. Direct
    facts are not restricted.
    """
    disable_consolidation: bool = False
    """Every fact becomes a new memory."""
    metadata: Metadata | None = None
    """For created and updated memories; None: updated memories keep their metadata."""
    metadata_merge: MetadataMerge = "OVERWRITE"
    """OVERWRITE: `metadata` replaces that of an updated memory. MERGE: an updated memory keeps its
    metadata, and keys of `metadata` win. REQUIRE_EXACT_MATCH: facts are consolidated only with
    memories whose metadata is equal to `metadata`.
    """
    disable_revisions: bool = False
    revision_labels: Labels = Field(default_factory=dict)
    revision_expires_at: AwareDatetime | None = None
    revision_ttl_seconds: Annotated[float, Field(gt=0)] | None = None
    """Counted from the generation, maybe later than the request. `revision_expires_at` wins."""

    def revision(self, extracted: Sequence[ExtractedMemory], now: datetime) -> RevisionOptions:
        """The options of the revision that a change at the time `now` leaves."""
        expires_at = self.revision_expires_at
        if expires_at is None and self.revision_ttl_seconds is not None:
            expires_at = now + timedelta(seconds=self.revision_ttl_seconds)
        return RevisionOptions(
            disabled=self.disable_revisions,
            labels=self.revision_labels,
            expires_at=expires_at,
            extracted=extracted,
        )


@dataclass(frozen=True, slots=True)
class DirectFacts:
    """1 to 5 facts, used as they are."""

    facts: Sequence[NewFact]


@dataclass(frozen=True, slots=True)
class Contents:
    """A conversation as Gemini's `Content` objects in JSON: `role` (`user` or `model`) and
    `parts`.
    """

    contents: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SessionSource:
    """A session of Runfold: its events with timestamps from `since` on and before `until`."""

    session_id: str
    since: datetime | None = None
    until: datetime | None = None


Source = DirectFacts | Contents | SessionSource


@dataclass(frozen=True, slots=True)
class StreamContent:
    """A content of a stream: Gemini's `Content` in JSON. Contents with the same `event_id`, which
    may be any text, count once in a stream.
    """

    content: Mapping[str, Any]
    event_id: str | None = None
    event_time: datetime | None = None


class ChangedMemory(NamedTuple):
    """A memory that a generation created, updated or deleted. `previous_revision_id` is the
    memory's revision before that, which is not stored if revisions were disabled.
    """

    memory_id: str
    action: ChangeAction
    previous_revision_id: str | None = None
