"""What a generation is asked for, and what it answers."""

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
    """What was learned, with the topics that it belongs to."""

    model_config = ConfigDict(frozen=True)

    text: str
    topics: tuple[MemoryTopic, ...] = ()


class GenerationOptions(BaseModel):
    """What is wanted of a generation; it stands in the log with the event that asked for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allowed_topics: tuple[MemoryTopic, ...] = ()
    """Only facts of these topics are extracted; without any, of all that the bank has. Facts given
    directly are not asked.
    """
    disable_consolidation: bool = False
    """Every fact becomes a new memory."""
    metadata: Metadata | None = None
    """Of the memories that are created or updated; None leaves that of updated ones as it is."""
    metadata_merge: MetadataMerge = "OVERWRITE"
    """OVERWRITE: an updated memory has the given metadata and no other. MERGE: it keeps its own,
    and given keys win. REQUIRE_EXACT_MATCH: only memories whose metadata is exactly the given one
    are consolidated with.
    """
    disable_revisions: bool = False
    revision_labels: Labels = Field(default_factory=dict)
    revision_expires_at: AwareDatetime | None = None
    revision_ttl_seconds: Annotated[float, Field(gt=0)] | None = None
    """From the generation on, which may be later than the request. `revision_expires_at` wins."""

    def revision(self, extracted: Sequence[ExtractedMemory], now: datetime) -> RevisionOptions:
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
    """1 to 5 facts as they are."""

    facts: Sequence[NewFact]


@dataclass(frozen=True, slots=True)
class Contents:
    """A conversation as Gemini's `Content` objects in their JSON form: `role` (`user` or `model`)
    and `parts`.
    """

    contents: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SessionSource:
    """What was said in a session of ours, by the events' own timestamps: from `since` on, and
    before `until`.
    """

    session_id: str
    since: datetime | None = None
    until: datetime | None = None


Source = DirectFacts | Contents | SessionSource


@dataclass(frozen=True, slots=True)
class StreamContent:
    """A content of a stream, as Gemini's `Content` in its JSON form. One `event_id`, any text,
    counts once in a stream.
    """

    content: Mapping[str, Any]
    event_id: str | None = None
    event_time: datetime | None = None


class ChangedMemory(NamedTuple):
    """What became of one memory. `previous_revision_id` is that of the state before, which may have
    left no revision.
    """

    memory_id: str
    action: ChangeAction
    previous_revision_id: str | None = None
