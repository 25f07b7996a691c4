"""The kinds of events that change memories and banks. A memory is a fact in a scope, and each
change of a memory is an event. The topic `{prefix}.memories` orders all changes of a memory under
its key, also those that were first published on the topic of a run.

Each change carries the whole memory after the change and the times that apply to it. So a fold
needs neither the bank's configuration nor a clock.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from runfold_schemas.data import (
    Count,
    Data,
    DisplayName,
    EventId,
    Id,
    Items,
    Labels,
    LaterOffset,
    LaterSubject,
    Time,
    TtlSeconds,
)
from runfold_schemas.first_fault import FIRST_FAULT
from runfold_schemas.sessions import joined

NO_RUN: Final = "-"
"""The `run_id` of events that no run caused."""

GENERATION_LOG_PREFIX: Final = "memories-"
"""How the ids of runs begin that are logs of generations."""

_GENERATION_LOG: Final = re.compile(
    rf"{GENERATION_LOG_PREFIX}[0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}"
)

REVISION_TTL: Final = timedelta(days=365)
"""How long a revision is kept by default."""

RESTORABLE: Final = timedelta(hours=48)
"""How long the revisions of a deleted memory are kept, so how long it can be rolled back."""

SCOPE_PAIRS_MAX: Final = 5

USER_KEYS: Final = ("user_id", "user")
"""The keys of a scope whose values name users."""

MemoryId = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00]+$")]
FACT_LENGTH_MAX: Final = 20_000
"""Of a fact, and of a query that is compared with facts, in characters."""

Fact = Annotated[str, StringConstraints(min_length=1, max_length=FACT_LENGTH_MAX)]
TopicLabel = Annotated[str, StringConstraints(min_length=1, max_length=200)]

ManagedTopic = Literal[
    "USER_PERSONAL_INFO", "USER_PREFERENCES", "KEY_CONVERSATION_DETAILS", "EXPLICIT_INSTRUCTIONS"
]
"""The topics that every bank has, with the names that Vertex AI gives them."""


def _without_star(text: str) -> str:
    if "*" in text:
        raise ValueError("a scope has no `*` in it: memories are found by their whole scope")
    return text


_ScopeText = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_without_star)]

Scope = Annotated[dict[_ScopeText, _ScopeText], FIRST_FAULT, Field(min_length=1, max_length=SCOPE_PAIRS_MAX)]
"""The subject of a memory, for example a user and an app. The scope of a memory never changes."""


class _OpenModel(BaseModel):
    """A part of a memory or of a bank's configuration. It keeps unknown fields."""

    model_config = ConfigDict(frozen=True, extra="allow")


class MemoryTopic(_OpenModel):
    """The kind of a fact: one of the managed topics, or the label of a topic of the bank."""

    managed: ManagedTopic | None = None
    custom: TopicLabel | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.managed is None) == (self.custom is None):
            raise ValueError("a topic is either `managed` or `custom`")
        return self


class Moment(_OpenModel):
    """A time as a value of metadata. A plain string would be read as text."""

    timestamp: Time


Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=128)],
        bool | float | Moment | Annotated[str, StringConstraints(max_length=2_000)],
    ],
    FIRST_FAULT,
    Field(max_length=64),
]


class ExtractedMemory(_OpenModel):
    """A fact as the model extracted it from a conversation, before it was merged with memories."""

    fact: Fact
    context: str | None = None


class Memory(_OpenModel):
    """The content of a memory."""

    fact: Fact
    scope: Scope
    topics: Items[MemoryTopic] = ()
    metadata: Metadata = Field(default_factory=dict)
    display_name: DisplayName | None = None
    description: Annotated[str, StringConstraints(max_length=10_000)] | None = None
    expires_at: Time | None = None


class MemoryChange(Data):
    """The fields of every change of a memory. A change leaves a revision with the event's id,
    unless `leaves_revision` is false.
    """

    bank_id: Id
    memory_id: MemoryId
    based_on: EventId | None = None
    """The id of the last change that the publisher has seen. The new change is accepted only if
    that change is still the memory's last, so it overwrites no unseen change.
    """
    leaves_revision: bool = True
    revision_labels: Labels = Field(default_factory=dict)
    revision_expires_at: Time | None = None
    """When the revision expires; by default 365 days after the event's timestamp."""
    extracted: Items[ExtractedMemory] = ()


class MemoryCreated(MemoryChange):
    """The memory exists from this event on. Refused if a memory with this id exists."""

    memory: Memory


class MemoryUpdated(MemoryChange):
    """The memory has this content from this event on. Refused if the memory does not exist or has
    another scope.
    """

    memory: Memory


class MemoryDeleted(MemoryChange):
    """The memory is deleted. For 48 hours it can be rolled back to a revision."""

    erased: LaterSubject = None
    """The user whose erasure deleted the memory. Then its revisions end at once, and no rollback
    restores it. Allowed for a memory that was deleted or has expired before. Only the topic of
    memories has such a deletion: in the log of a run it is a plain one.
    """
    began: LaterOffset = None
    """The offset of the creation of the memory that an erasure deletes. If a later memory has the
    id, only the revisions before the later creation end.
    """


class MemoryRolledBack(MemoryChange):
    """The memory has the content of an earlier revision again. A deleted memory exists again."""

    memory: Memory
    revision_id: EventId
    """The id of the earlier change."""


class GenerationRequested(Data):
    """A request to generate memories from the events of this run's log, from `first_offset` up to
    but not including `end_offset`.
    """

    bank_id: Id
    scope: Scope
    first_offset: Count
    end_offset: Count
    reason: Literal["request", "run_completed", "event_count", "fixed_interval", "idle_duration", "flush"]
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the request, for example labels and expiry of the revisions."""


class MemoriesGenerated(Data):
    """The result of one generation: changes of the memories of one scope. All changes are in one
    event, so they count together and once. Each change is forwarded as an event of its own kind
    with this event's id. A replay reads this event and does not call the model again.
    """

    bank_id: Id
    trigger: EventId | None = None
    """The id of the event that requested the generation."""
    error: str | None = None
    """Why nothing was generated."""
    created: Items[MemoryCreated] = ()
    updated: Items[MemoryUpdated] = ()
    deleted: Items[MemoryDeleted] = ()

    def changes(self) -> Iterator[MemoryCreated | MemoryUpdated | MemoryDeleted]:
        yield from self.created
        yield from self.updated
        yield from self.deleted


class TopicConfig(_OpenModel):
    """A topic of facts that the bank keeps: a managed topic, or its own with a description."""

    topic: MemoryTopic
    description: str = ""


class ConversationMessage(_OpenModel):
    """A message of an example conversation."""

    role: str = "user"
    text: str


class ExampleMemory(_OpenModel):
    """A fact that the bank keeps of an example conversation."""

    fact: Fact
    topics: Items[MemoryTopic] = ()


class Example(_OpenModel):
    """A conversation, and the memories to generate from it."""

    conversation: Items[ConversationMessage]
    memories: Items[ExampleMemory] = ()


class Customization(_OpenModel):
    """Topics and examples for scopes with exactly these keys. A customization without keys applies
    to all other scopes.
    """

    scope_keys: Items[str] = ()
    topics: Items[TopicConfig] = ()
    examples: Items[Example] = ()


class BankConfig(_OpenModel):
    """The configuration of a bank. Times to live are in seconds. Without one, memories never expire
    and revisions expire after 365 days.
    """

    display_name: DisplayName | None = None
    description: str | None = None
    labels: Labels = Field(default_factory=dict)
    disable_revisions: bool = False
    memory_ttl_seconds: TtlSeconds | None = None
    create_ttl_seconds: TtlSeconds | None = None
    generate_created_ttl_seconds: TtlSeconds | None = None
    generate_updated_ttl_seconds: TtlSeconds | None = None
    revision_ttl_seconds: TtlSeconds | None = None
    customizations: Items[Customization] = ()
    agents: Items[Id] = ()
    """The ids of agents. When one of their runs completes, memories are generated from it."""
    foreign: dict[str, Any] = Field(default_factory=dict)
    """Configuration of another system that has no meaning for Runfold. It is returned unchanged."""


class BankFact(Data):
    """The fields of every event about a bank."""

    bank_id: Id


class BankCreated(BankFact):
    """The bank exists from this event on. It has no effect if a bank with this id exists."""

    config: BankConfig


class BankUpdated(BankFact):
    """The bank has this configuration from this event on."""

    config: BankConfig
    based_on: EventId | None = None
    """The id of the last event of the bank that the publisher has seen. The new configuration is
    accepted only if that event is still the bank's last, so it overwrites no unseen change.
    """


class BankDeleted(BankFact):
    """The bank is deleted. Its memories were deleted before, one by one."""


def memory_key(bank_id: str, memory_id: str) -> str:
    """The key of a memory's changes in `{prefix}.memories`."""
    return f"memory:{joined(bank_id, memory_id)}"


def bank_key(bank_id: str) -> str:
    """The key of a bank's events in `{prefix}.banks`."""
    return f"bank:{bank_id}"


def scope_text(scope: Mapping[str, str]) -> str:
    """The scope as text. Equal scopes give equal texts, whatever the order of their pairs."""
    return json.dumps(scope, sort_keys=True, ensure_ascii=False)


def is_generation_log(run_id: str) -> bool:
    """Whether the run with this id is the log of a generation. From such runs no memories are
    generated when they are completed.
    """
    return _GENERATION_LOG.fullmatch(run_id) is not None
