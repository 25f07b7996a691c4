"""What happens to memories: facts in a scope, each change an event. `{prefix}.memories` orders the
changes of a memory under its key, wherever they were published first.

Each change carries all that the memory holds afterwards, and what was decided about times when it
was made: a fold asks no configuration and no clock.
"""

import json
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

from runfold_schemas.data import Count, Data, DisplayName, EventId, Id, Labels, Time, TtlSeconds
from runfold_schemas.sessions import joined

NO_RUN: Final = "-"
"""The `run_id` of events that no run has caused."""

REVISION_TTL: Final = timedelta(days=365)
"""How long a revision is kept where nobody has said so."""

RESTORABLE: Final = timedelta(hours=48)
"""How long the revisions of a deleted memory are kept: for so long it can be rolled back."""

SCOPE_PAIRS_MAX: Final = 5

MemoryId = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00]+$")]
Fact = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]
TopicLabel = Annotated[str, StringConstraints(min_length=1, max_length=200)]

ManagedTopic = Literal[
    "USER_PERSONAL_INFO", "USER_PREFERENCES", "KEY_CONVERSATION_DETAILS", "EXPLICIT_INSTRUCTIONS"
]
"""Topics that every bank knows, by the names that Vertex AI gives them."""


def _without_star(text: str) -> str:
    if "*" in text:
        raise ValueError("a scope has no `*` in it: memories are found by their whole scope")
    return text


_ScopeText = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_without_star)]

Scope = Annotated[dict[_ScopeText, _ScopeText], Field(min_length=1, max_length=SCOPE_PAIRS_MAX)]
"""Whom or what a memory is about: a user and an app, for example. It never changes."""


class _Part(BaseModel):
    """A part of a memory or of a bank's configuration; what it does not know it keeps."""

    model_config = ConfigDict(frozen=True, extra="allow")


class MemoryTopic(_Part):
    """What kind of fact it is: one of the managed topics, or the label of one of the bank's own."""

    managed: ManagedTopic | None = None
    custom: TopicLabel | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.managed is None) == (self.custom is None):
            raise ValueError("a topic is either `managed` or `custom`")
        return self


class Moment(_Part):
    """A time as a value of metadata, which JSON could not tell from a text."""

    timestamp: Time


Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(max_length=128)],
        bool | float | Moment | Annotated[str, StringConstraints(max_length=2_000)],
    ],
    Field(max_length=64),
]


class ExtractedMemory(_Part):
    """What was found in a conversation before it was consolidated with what was known."""

    fact: Fact
    context: str | None = None


class Memory(_Part):
    """All that a memory holds."""

    fact: Fact
    scope: Scope
    topics: tuple[MemoryTopic, ...] = ()
    metadata: Metadata = Field(default_factory=dict)
    display_name: DisplayName | None = None
    description: Annotated[str, StringConstraints(max_length=10_000)] | None = None
    expires_at: Time | None = None


class MemoryChange(Data):
    """What every change of a memory says. It leaves a revision, which has the event's id, unless
    that is switched off.
    """

    bank_id: Id
    memory_id: MemoryId
    based_on: EventId | None = None
    """Accept this change only if that one was the memory's last: nothing that its publisher has not
    seen is lost.
    """
    leaves_revision: bool = True
    revision_labels: Labels = Field(default_factory=dict)
    revision_expires_at: Time | None = None
    """By default 365 days after the event's timestamp."""
    extracted: tuple[ExtractedMemory, ...] = ()


class MemoryCreated(MemoryChange):
    """A memory is there from here on, unless one of that id is."""

    memory: Memory


class MemoryUpdated(MemoryChange):
    """The memory holds this from here on. Refused of one that is not there, and where the scope is
    another.
    """

    memory: Memory


class MemoryDeleted(MemoryChange):
    """The memory is gone; what it was can be restored for 48 hours."""


class MemoryRolledBack(MemoryChange):
    """The memory holds what it held after an earlier change; one that was deleted is there
    again.
    """

    memory: Memory
    revision_id: EventId
    """Of the earlier change."""


class GenerationRequested(Data):
    """From what stands in this run's log from `first_offset` to before `end_offset`, memories are
    to be generated.
    """

    bank_id: Id
    scope: Scope
    first_offset: Count
    end_offset: Count
    reason: Literal["request", "run_completed", "event_count", "fixed_interval", "idle_duration", "flush"]
    options: dict[str, Any] = Field(default_factory=dict)
    """As the request had them, in our words: labels and times of the revisions, for example."""


class MemoriesGenerated(Data):
    """What was learned, and has become of the memories of one scope: a generation's answers, all in
    one event, so that they count together and once. Each is forwarded as an event of its own kind
    with this event's id. No replay asks a model.
    """

    bank_id: Id
    trigger: EventId | None = None
    """The event that asked for it."""
    error: str | None = None
    """Why nothing was generated."""
    created: tuple[MemoryCreated, ...] = ()
    updated: tuple[MemoryUpdated, ...] = ()
    deleted: tuple[MemoryDeleted, ...] = ()

    def changes(self) -> Iterator[MemoryCreated | MemoryUpdated | MemoryDeleted]:
        yield from self.created
        yield from self.updated
        yield from self.deleted


class TopicConfig(_Part):
    """A topic that the bank remembers: a managed one, or one of its own with what belongs to it."""

    topic: MemoryTopic
    description: str = ""


class Said(_Part):
    """Something said in an example."""

    role: str = "user"
    text: str


class ExampleMemory(_Part):
    fact: Fact
    topics: tuple[MemoryTopic, ...] = ()


class Example(_Part):
    """A conversation and what is to be remembered of it."""

    conversation: tuple[Said, ...]
    memories: tuple[ExampleMemory, ...] = ()


class Customization(_Part):
    """What is remembered in scopes of these keys; without keys, in all others."""

    scope_keys: tuple[str, ...] = ()
    topics: tuple[TopicConfig, ...] = ()
    examples: tuple[Example, ...] = ()


class BankConfig(_Part):
    """How a bank keeps its memories. Times to live in seconds; None: for ever, for revisions 365
    days.
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
    customizations: tuple[Customization, ...] = ()
    agents: tuple[Id, ...] = ()
    """Whose runs are remembered when they complete."""
    foreign: dict[str, Any] = Field(default_factory=dict)
    """Configuration of another system's words that has no meaning here: it is given back as it
    came.
    """


class BankFact(Data):
    """What every fact of a bank says."""

    bank_id: Id


class BankCreated(BankFact):
    """A bank is there from here on, unless one of that id is."""

    config: BankConfig


class BankUpdated(BankFact):
    """The bank has this configuration from here on."""

    config: BankConfig
    based_on: EventId | None = None
    """Accept this only if that fact was the bank's last: nothing that its publisher has not seen is
    lost.
    """


class BankDeleted(BankFact):
    """The bank is gone. Its memories are deleted one by one before."""


def memory_key(bank_id: str, memory_id: str) -> str:
    """The key of a memory's changes in `{prefix}.memories`."""
    return f"memory:{joined(bank_id, memory_id)}"


def bank_key(bank_id: str) -> str:
    """The key of a bank's facts in `{prefix}.banks`."""
    return f"bank:{bank_id}"


def scope_text(scope: Mapping[str, str]) -> str:
    """The scope as a text that is the same for the same pairs, in whatever order."""
    return json.dumps(scope, sort_keys=True, ensure_ascii=False)
