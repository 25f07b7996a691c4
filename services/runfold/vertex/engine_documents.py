"""Engines as messages of Agent Engine's, and how they stand for banks of ours.

What of an engine means something here is in the bank's own fields; all else is kept beside them and
given back as it came.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import AfterValidator, ConfigDict, model_validator

from runfold.generation.triggers import TriggerRule
from runfold.vertex.bank_config import bank_fields, default_rule, is_understood, wire_form
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
"""What engines can be filtered by."""

_CONTEXT: Final = "contextSpec"
_MEMORY: Final = "memoryBankConfig"

_GIVEN_OUT: Final = ("name", "createTime", "updateTime", "etag")
"""Fields that are ours to say."""

_OWN: Final = {"displayName": "display_name", "description": "description", "labels": "labels"}
"""Fields that a bank has as well."""


def _understood(context: dict[str, Any]) -> dict[str, Any]:
    """A configuration that we could not read is refused here, not when it is needed."""
    memory = context.get(_MEMORY) or {}
    if not isinstance(memory, dict):
        raise ValueError("memoryBankConfig is not an object")  # noqa: TRY004  # pydantic's own errors are these
    bank_fields(memory)
    return context


class EngineMessage(Message):
    """An engine, with whatever else it was created with."""

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
        """`name` is that of the location, or of anything in it."""
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
    """An engine to create, or what changes of one."""

    model_config = ConfigDict(extra="allow")

    display_name: DisplayName | None = None
    description: str | None = None
    labels: Labels | None = None
    context_spec: Annotated[Fields, AfterValidator(_understood)] | None = None

    @model_validator(mode="after")
    def _is_not_too_deep(self) -> Self:
        camel(self.model_extra or {})
        return self

    def config(self) -> BankConfig:
        """Of a new bank."""
        return BankConfig(**self.changes(BankConfig(), None))

    def changes(self, before: BankConfig, mask: str | None) -> dict[str, Any]:
        """What changes of a bank's configuration: what the mask names, or, without a mask, what
        there is. Raises `InvalidEventError`.
        """
        given = self._given()
        paths: list[Path] = (
            _paths(mask) if mask and mask != "*" else [(name,) for name in given if name != _CONTEXT]
        )
        changes: dict[str, Any] = {}
        foreign = dict(before.foreign)
        for path in paths:
            if path[0] in _OWN:
                changes[_OWN[path[0]]] = given.get(path[0], {} if path[0] == "labels" else None)
            elif path[0] != _CONTEXT and path[0] not in _GIVEN_OUT:
                foreign.pop(path[0], None)
                foreign |= {path[0]: given[path[0]]} if path[0] in given else {}
        memory = self._memory(given.get(_CONTEXT) or {}, before, paths, merges=not mask or mask == "*")
        if memory is not None:
            foreign[_CONTEXT] = {_MEMORY: memory}
            changes |= bank_fields(memory)
        return {**changes, "foreign": foreign}

    def _given(self) -> dict[str, Any]:
        """The fields that there are, by their names in camelCase."""
        others: dict[str, Any] = camel(self.model_extra or {})
        own = {camel_name(name): getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in (others | own).items() if value is not None}

    def _memory(
        self, context: Mapping[str, Any], before: BankConfig, paths: list[Path], *, merges: bool
    ) -> dict[str, Any] | None:
        """The configuration of the bank after the change; None where it does not change."""
        known = (_context(before) or {}).get(_MEMORY, {})
        told = context.get(_MEMORY) or {}
        if merges:
            return {**known, **told} if told else None
        named = [path[1:] for path in paths if path[0] == _CONTEXT]
        if not named:
            return None
        if any(len(path) <= 1 for path in named):
            return dict(told)
        fields = {path[1] for path in named}
        kept = {name: value for name, value in known.items() if name not in fields}
        return kept | {name: value for name, value in told.items() if name in fields}


class DeleteEngine(Message):
    """With `force`, whatever is in it."""

    force: bool = False


def ingestion_rule(bank: BankRecord) -> TriggerRule | None:
    """When memories are generated of the engine's streams, if it says so."""
    return default_rule((_context(bank.config) or {}).get(_MEMORY, {}))


def filter_value(bank: BankRecord, path: Path) -> Any:
    """What a filter asks for."""
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
    """What is said of memory; Google's client needs it to be whole if it is there."""
    context = config.foreign.get(_CONTEXT)
    given = context.get(_MEMORY) if isinstance(context, dict) else None
    # Our own verbs take whatever they are given there.
    memory = wire_form(config, given if isinstance(given, dict) and is_understood(given) else {})
    return {_MEMORY: memory} if memory else None


def _paths(mask: str) -> list[Path]:
    paths = [tuple(camel_name(step) for step in path.strip().split(".")) for path in mask.split(",")]
    for path in paths:
        if not all(path):
            raise InvalidEventError(f"updateMask: {mask!r} names a field without a name", field="updateMask")
    return paths
