"""Agent Engine's messages for engines, and their conversion to banks.

The fields of an engine that Runfold uses are fields of the bank. All other fields are stored beside
them, and returned as they came.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, ConfigDict, model_validator

from runfold.generation.triggers import TriggerRule
from runfold.vertex.bank_config import bank_fields, default_rule, is_valid, wire_form
from runfold.vertex.filters import Kind, Path
from runfold.vertex.messages import PACKAGE, Fields, Message, Timestamp, camel, camel_name, rfc3339
from runfold.vertex.names import ENGINES, Name
from runfold_projections.memory import BankRecord
from runfold_schemas.data import DisplayName, Labels
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.memories import BankConfig

FILTER_FIELDS: Final[Mapping[str, Kind]] = {
    "display_name": "text",
    "description": "text",
    "labels": "map",
    "create_time": "time",
    "update_time": "time",
}
"""The fields that engines can be filtered by."""

_CONTEXT: Final = "contextSpec"
_MEMORY: Final = "memoryBankConfig"

_OUTPUT_ONLY: Final = ("name", "createTime", "updateTime", "etag")
"""Fields that a client cannot set."""

_BANK_FIELDS: Final = {"displayName": "display_name", "description": "description", "labels": "labels"}
"""Fields that a bank has too."""


def _check_memory_config(context: dict[str, Any]) -> dict[str, Any]:
    """Refuses an invalid configuration when it is written, instead of when it is used."""
    memory = context.get(_MEMORY) or {}
    if not isinstance(memory, dict):
        raise ValueError("memoryBankConfig is not an object")  # noqa: TRY004  # pydantic's own errors are these
    bank_fields(memory)
    return context


class EngineMessage(Message):
    """An engine, with all fields that it was created with."""

    model_config = ConfigDict(extra="allow")

    proto: ClassVar[str] = f"{PACKAGE}.ReasoningEngine"

    name: str
    display_name: str | None = None
    description: str | None = None
    labels: dict[str, str] | None = None
    create_time: Timestamp
    update_time: Timestamp
    etag: str
    context_spec: dict[str, Any] | None = None

    @classmethod
    def of(cls, bank: BankRecord, name: Name) -> "EngineMessage":
        """`name` is the name of the location, or of a resource in it."""
        config = bank.config
        message = cls(
            name=str(Name(((ENGINES, bank.bank_id),), name.project, name.location)),
            display_name=config.display_name or None,
            description=config.description or None,
            labels=config.labels or None,
            create_time=bank.created_at,
            update_time=bank.updated_at,
            etag=rfc3339(bank.updated_at),
            context_spec=_context(config),
        )
        known = {*cls.model_fields, *map(camel_name, cls.model_fields)}
        others = {key: value for key, value in config.foreign.items() if key not in known}
        return message.model_copy(update=others)


class EngineInput(Message):
    """The fields of an engine to create, or of an engine that change."""

    model_config = ConfigDict(extra="allow")

    display_name: DisplayName | None = None
    description: str | None = None
    labels: Labels | None = None
    context_spec: Annotated[Fields, AfterValidator(_check_memory_config)] | None = None

    @model_validator(mode="after")
    def _is_not_too_deep(self) -> Self:
        camel(self.model_extra or {})
        return self

    def config(self) -> BankConfig:
        """The configuration of a new bank."""
        return BankConfig(**self.changes(BankConfig(), None))

    def changes(self, before: BankConfig, mask: str | None) -> dict[str, Any]:
        """The changes of a bank's configuration: the fields that the mask names; without a mask,
        all fields of the message. Raises `InvalidEventError`.
        """
        fields = self._fields()
        paths: list[Path] = (
            _paths(mask) if mask and mask != "*" else [(name,) for name in fields if name != _CONTEXT]
        )
        changes: dict[str, Any] = {}
        foreign = dict(before.foreign)
        for path in paths:
            if path[0] in _BANK_FIELDS:
                changes[_BANK_FIELDS[path[0]]] = fields.get(path[0], {} if path[0] == "labels" else None)
            elif path[0] != _CONTEXT and path[0] not in _OUTPUT_ONLY:
                foreign.pop(path[0], None)
                foreign |= {path[0]: fields[path[0]]} if path[0] in fields else {}
        memory = self._memory_config(
            fields.get(_CONTEXT) or {}, before, paths, merges=not mask or mask == "*"
        )
        if memory is not None:
            foreign[_CONTEXT] = {_MEMORY: memory}
            changes |= bank_fields(memory)
        return {**changes, "foreign": foreign}

    def _fields(self) -> dict[str, Any]:
        """The fields with a value, by their names in camelCase."""
        others: dict[str, Any] = camel(self.model_extra or {})
        own = {camel_name(name): getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in (others | own).items() if value is not None}

    def _memory_config(
        self, context: Mapping[str, Any], before: BankConfig, paths: list[Path], *, merges: bool
    ) -> dict[str, Any] | None:
        """The bank's configuration after the change; None if it does not change."""
        old = (_context(before) or {}).get(_MEMORY, {})
        new = context.get(_MEMORY) or {}
        if merges:
            return {**old, **new} if new else None
        masked = [path[1:] for path in paths if path[0] == _CONTEXT]
        if not masked:
            return None
        if any(len(path) <= 1 for path in masked):
            return dict(new)
        fields = {path[1] for path in masked}
        kept = {name: value for name, value in old.items() if name not in fields}
        return kept | {name: value for name, value in new.items() if name in fields}


class DeleteEngine(Message):
    """A request to delete an engine. With `force`, its memories and sessions are deleted too."""

    force: bool = False


def ingestion_rule(bank: BankRecord) -> TriggerRule | None:
    """The rule of the engine's streams without a rule of their own, if the engine has one."""
    return default_rule((_context(bank.config) or {}).get(_MEMORY, {}))


def filter_value(bank: BankRecord, path: Path) -> Any:
    """The value of a field for a filter."""
    config = bank.config
    match path:
        case ("display_name",):
            return config.display_name
        case ("description",):
            return config.description
        case ("labels",):
            return config.labels
        case ("labels", key):
            return config.labels.get(key)
        case ("create_time",):
            return bank.created_at
        case _:
            return bank.updated_at


def _context(config: BankConfig) -> dict[str, Any] | None:
    """The engine's context with its memory configuration. Google's client needs the whole
    configuration, or none.
    """
    context = config.foreign.get(_CONTEXT)
    received = context.get(_MEMORY) if isinstance(context, dict) else None
    # Runfold's own API stores any value in this field.
    memory = wire_form(config, received if isinstance(received, dict) and is_valid(received) else {})
    return {_MEMORY: memory} if memory else None


def _paths(mask: str) -> list[Path]:
    paths = [tuple(camel_name(step) for step in path.strip().split(".")) for path in mask.split(",")]
    for path in paths:
        if not all(path):
            raise InvalidEventError(f"updateMask: {mask!r} contains an empty name", field="updateMask")
    return paths
