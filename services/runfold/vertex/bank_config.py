"""Agent Engine's configuration of a Memory Bank, and its conversion to `BankConfig`.

Runfold uses a part of the configuration. All of it is stored and returned as it came, except for
fields that were changed through Runfold's own API since.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final

from pydantic import ValidationError

from runfold.generation.triggers import TriggerRule
from runfold.vertex.generation_documents import GenerationTriggerConfig
from runfold.vertex.memory_documents import TimeToLive, TopicMessage, topic_of, topics_of
from runfold.vertex.messages import PACKAGE, Message
from runfold_schemas.data import TTL_SECONDS_MAX, ItemList, Items
from runfold_schemas.memories import (
    BankConfig,
    ConversationMessage,
    Customization,
    Example,
    ExampleMemory,
    TopicConfig,
)

BankFields = dict[str, Any]
"""Values of `BankConfig`, by field."""


class GranularTtl(Message):
    create_ttl: TimeToLive | None = None
    generate_created_ttl: TimeToLive | None = None
    generate_updated_ttl: TimeToLive | None = None


class TtlConfig(Message):
    default_ttl: TimeToLive | None = None
    granular_ttl_config: GranularTtl | None = None
    memory_revision_default_ttl: TimeToLive | None = None


class ManagedTopic(Message):
    managed_topic_enum: str


class CustomTopic(Message):
    label: str
    description: str | None = None


class BankTopic(Message):
    managed_memory_topic: ManagedTopic | None = None
    custom_memory_topic: CustomTopic | None = None

    def to_runfold(self) -> TopicConfig:
        custom, managed = self.custom_memory_topic, self.managed_memory_topic
        topic = topic_of(managed.managed_topic_enum if managed else None, custom.label if custom else None)
        return TopicConfig(topic=topic, description=(custom.description if custom else None) or "")


class _Text(Message):
    text: str | None = None


class _Content(Message):
    role: str | None = None
    parts: Items[_Text] = ()


class ExampleEvent(Message):
    content: _Content = _Content()

    def to_runfold(self) -> ConversationMessage:
        text = "\n".join(part.text for part in self.content.parts if part.text)
        return ConversationMessage(role=self.content.role or "user", text=text)


class ConversationSource(Message):
    events: Items[ExampleEvent] = ()


class ExampleMemoryMessage(Message):
    fact: str
    topics: ItemList[TopicMessage] | None = None

    def to_runfold(self) -> ExampleMemory:
        return ExampleMemory(fact=self.fact, topics=topics_of(self.topics))


class ExampleMessage(Message):
    conversation_source: ConversationSource = ConversationSource()
    generated_memories: ItemList[ExampleMemoryMessage] | None = None

    def to_runfold(self) -> Example:
        return Example(
            conversation=tuple(event.to_runfold() for event in self.conversation_source.events),
            memories=tuple(memory.to_runfold() for memory in self.generated_memories or []),
        )


class CustomizationConfig(Message):
    scope_keys: ItemList[str] | None = None
    memory_topics: ItemList[BankTopic] | None = None
    generate_memories_examples: ItemList[ExampleMessage] | None = None

    def to_runfold(self) -> Customization:
        return Customization(
            scope_keys=tuple(self.scope_keys or []),
            topics=tuple(topic.to_runfold() for topic in self.memory_topics or []),
            examples=tuple(example.to_runfold() for example in self.generate_memories_examples or []),
        )

    @classmethod
    def of(cls, customization: Customization) -> "CustomizationConfig":
        return cls(
            scope_keys=list(customization.scope_keys) or None,
            memory_topics=[_bank_topic(each) for each in customization.topics] or None,
            generate_memories_examples=[_example(each) for each in customization.examples] or None,
        )


class GenerationConfig(Message):
    generation_trigger_config: GenerationTriggerConfig | None = None


class MemoryBankConfig(Message):
    """The fields of the configuration that Runfold uses."""

    proto: ClassVar[str] = f"{PACKAGE}.ReasoningEngineContextSpec.MemoryBankConfig"

    disable_memory_revisions: bool | None = None
    ttl_config: TtlConfig | None = None
    customization_configs: ItemList[CustomizationConfig] | None = None
    generation_config: GenerationConfig | None = None

    def to_runfold(self) -> BankFields:
        ttl = self.ttl_config or TtlConfig()
        granular = ttl.granular_ttl_config or GranularTtl()
        return {
            "disable_revisions": bool(self.disable_memory_revisions),
            "memory_ttl_seconds": _seconds(ttl.default_ttl),
            "create_ttl_seconds": _seconds(granular.create_ttl),
            "generate_created_ttl_seconds": _seconds(granular.generate_created_ttl),
            "generate_updated_ttl_seconds": _seconds(granular.generate_updated_ttl),
            "revision_ttl_seconds": _seconds(ttl.memory_revision_default_ttl),
            "customizations": tuple(each.to_runfold() for each in self.customization_configs or []),
        }

    @classmethod
    def of(cls, config: BankConfig) -> "MemoryBankConfig":
        granular = GranularTtl(
            create_ttl=_length(config.create_ttl_seconds),
            generate_created_ttl=_length(config.generate_created_ttl_seconds),
            generate_updated_ttl=_length(config.generate_updated_ttl_seconds),
        )
        ttl = TtlConfig(
            default_ttl=_length(config.memory_ttl_seconds),
            granular_ttl_config=granular if granular != GranularTtl() else None,
            memory_revision_default_ttl=_length(config.revision_ttl_seconds),
        )
        return cls(
            disable_memory_revisions=config.disable_revisions or None,
            ttl_config=ttl if ttl != TtlConfig() else None,
            customization_configs=[CustomizationConfig.of(each) for each in config.customizations] or None,
        )


_BANK_FIELDS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "disableMemoryRevisions": ("disable_revisions",),
    "ttlConfig": (
        "memory_ttl_seconds",
        "create_ttl_seconds",
        "generate_created_ttl_seconds",
        "generate_updated_ttl_seconds",
        "revision_ttl_seconds",
    ),
    "customizationConfigs": ("customizations",),
}


def bank_fields(configuration: Mapping[str, Any]) -> BankFields:
    """The configuration as fields of `BankConfig`. Raises pydantic's `ValidationError`."""
    default_rule(configuration)
    return MemoryBankConfig.model_validate(configuration).to_runfold()


def is_valid(configuration: Mapping[str, Any]) -> bool:
    try:
        bank_fields(configuration)
    except ValidationError:
        return False
    return True


def default_rule(configuration: Mapping[str, Any]) -> TriggerRule | None:
    """The rule of streams without a rule of their own, if the configuration has one."""
    config = MemoryBankConfig.model_validate(configuration).generation_config
    return config.generation_trigger_config.rule() if config and config.generation_trigger_config else None


def wire_form(config: BankConfig, received: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as it was received, with the fields that were changed through Runfold's own
    API since.
    """
    before, now = bank_fields(received), MemoryBankConfig.of(config).json_form()
    form = dict(received)
    for field, names in _BANK_FIELDS_OF.items():
        if any(before[name] != getattr(config, name) for name in names):
            form.pop(field, None)
            form |= {field: now[field]} if field in now else {}
    return form


def _bank_topic(config: TopicConfig) -> BankTopic:
    if config.topic.managed is not None:
        return BankTopic(managed_memory_topic=ManagedTopic(managed_topic_enum=config.topic.managed))
    assert config.topic.custom is not None
    custom = CustomTopic(label=config.topic.custom, description=config.description or None)
    return BankTopic(custom_memory_topic=custom)


def _example(example: Example) -> ExampleMessage:
    events = tuple(
        ExampleEvent(content=_Content(role=message.role, parts=(_Text(text=message.text),)))
        for message in example.conversation
    )
    memories = [
        ExampleMemoryMessage(
            fact=memory.fact, topics=[TopicMessage.of(topic) for topic in memory.topics] or None
        )
        for memory in example.memories
    ]
    return ExampleMessage(
        conversation_source=ConversationSource(events=events), generated_memories=memories or None
    )


def _seconds(length: timedelta | None) -> float | None:
    return length.total_seconds() if length is not None else None


def _length(seconds: float | None) -> timedelta | None:
    """Seconds as a duration. The protocol has no duration as short or as long as ours may be."""
    return timedelta(seconds=min(max(seconds, 1e-6), TTL_SECONDS_MAX)) if seconds is not None else None
