"""The `custom_metadata` of ADK's memory service, translated into Runfold's options: the keys that
ADK's service for Vertex AI's Memory Bank knows.

Every other key becomes metadata of the memory.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeVar

from google.adk.errors.input_validation_error import InputValidationError
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from runfold.client.memory import RevisionOptions
from runfold.generation.options import GenerationOptions, MetadataMerge
from runfold.generation.triggers import TriggerRule
from runfold_schemas.codec import first_fault
from runfold_schemas.memories import Memory, MemoryTopic, Moment

_VALUES: Final = frozenset({"bool_value", "double_value", "string_value", "timestamp_value"})

_MANAGED: Final = frozenset(
    {"USER_PERSONAL_INFO", "USER_PREFERENCES", "KEY_CONVERSATION_DETAILS", "EXPLICIT_INSTRUCTIONS"}
)


ModelT = TypeVar("ModelT", bound=BaseModel)


def read_metadata(kind: type[ModelT], *custom_metadata: Mapping[str, object] | None) -> ModelT:
    """The metadata of all these mappings. Of equal keys the last one counts. Raises
    `InputValidationError` with the key of a wrong value.
    """
    merged = {
        key: value
        for mapping in custom_metadata
        for key, value in (mapping or {}).items()
        if value is not None
    }
    return _checked(kind, merged)


def _checked(kind: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        _, message = first_fault(error)
        raise InputValidationError(f"custom_metadata: {message}") from error


def _seconds(value: object) -> object:
    """A time to live, also in Vertex AI's form `"6000s"`."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.removesuffix("s") if isinstance(value, str) else value


def _topic(value: object) -> object:
    """A topic, from its name or from Vertex AI's form."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, str):
        return {"managed" if value in _MANAGED else "custom": value}
    if isinstance(value, Mapping):
        if managed := value.get("managed_memory_topic"):
            name = managed.get("managed_topic_enum") if isinstance(managed, Mapping) else managed
            return {"managed": name}
        if label := value.get("custom_memory_topic_label"):
            return {"custom": label}
    return value


def _metadata(values: object) -> object:
    return {key: _value(value) for key, value in values.items()} if isinstance(values, Mapping) else values


def _value(value: object) -> object:
    match value:
        case bool() | int() | float() | str() | Moment():
            return value
        case datetime():
            return Moment(timestamp=value if value.tzinfo else value.replace(tzinfo=UTC))
        case Mapping() if len(value) == 1 and value.keys() <= _VALUES:
            return _value(next(iter(value.values())))
        case _:
            return str(value)


_Seconds = Annotated[float, Field(gt=0, le=3_000_000_000), BeforeValidator(_seconds)]
_Topics = tuple[Annotated[MemoryTopic, BeforeValidator(_topic)], ...]


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid")

    event_count: int | None = None
    fixed_interval: _Seconds | None = None
    idle_duration: _Seconds | None = None
    overlap_event_count: int = 0


class _Trigger(BaseModel):
    model_config = ConfigDict(extra="forbid", from_attributes=True)

    generation_rule: _Rule = _Rule()

    def rule(self) -> TriggerRule:
        rule = self.generation_rule
        values = {
            "event_count": rule.event_count,
            "interval_seconds": rule.fixed_interval,
            "idle_seconds": rule.idle_duration,
            "overlap_event_count": rule.overlap_event_count,
        }
        return _checked(TriggerRule, values)


class _CustomMetadata(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    metadata: Annotated[dict[str, Any], BeforeValidator(_metadata)] = {}
    disable_memory_revisions: bool = False
    revision_labels: dict[str, str] = {}
    revision_ttl: _Seconds | None = None
    revision_expire_time: AwareDatetime | None = None
    enable_consolidation: StrictBool = False
    wait_for_completion: bool = True
    """Accepted without effect, because every call here waits for its result."""
    http_options: Any = None

    def all_metadata(self) -> dict[str, Any]:
        return {**self.metadata, **{key: _value(value) for key, value in (self.model_extra or {}).items()}}


class GenerationMetadata(_CustomMetadata):
    """Options of a generation."""

    ttl: _Seconds | None = None
    """The time to live of the revisions if there is no `revision_ttl`."""
    allowed_topics: _Topics = ()
    disable_consolidation: bool = False
    metadata_merge_strategy: MetadataMerge | None = None
    stream_id: str | None = None
    force_flush: bool = False
    generation_trigger_config: _Trigger | None = None

    def options(self) -> GenerationOptions:
        values: dict[str, Any] = {
            "allowed_topics": self.allowed_topics,
            "disable_consolidation": self.disable_consolidation,
            "metadata": self.all_metadata() or None,
            "metadata_merge": self.metadata_merge_strategy or "OVERWRITE",
            "disable_revisions": self.disable_memory_revisions,
            "revision_labels": self.revision_labels,
            "revision_ttl_seconds": self.revision_ttl or self.ttl,
            "revision_expires_at": self.revision_expire_time,
        }
        return _checked(GenerationOptions, values)

    def rule(self) -> TriggerRule | None:
        return self.generation_trigger_config.rule() if self.generation_trigger_config is not None else None


class MemoryMetadata(_CustomMetadata):
    """Options of a memory that is added directly."""

    ttl: _Seconds | None = None
    expire_time: AwareDatetime | None = None
    topics: _Topics = ()
    description: str | None = None
    display_name: str | None = None
    memory_id: str | None = None

    def memory(self, fact: str, scope: Mapping[str, str], now: datetime) -> Memory:
        expires_at = self.expire_time or _later(now, self.ttl)
        values: dict[str, Any] = {
            "fact": fact,
            "scope": dict(scope),
            "topics": self.topics,
            "metadata": self.all_metadata(),
            "display_name": self.display_name,
            "description": self.description,
            "expires_at": expires_at,
        }
        return _checked(Memory, values)

    def revision(self, labels: Mapping[str, str], now: datetime) -> RevisionOptions:
        return RevisionOptions(
            disabled=self.disable_memory_revisions,
            labels={**self.revision_labels, **labels},
            expires_at=self.revision_expire_time or _later(now, self.revision_ttl),
        )


def _later(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)
