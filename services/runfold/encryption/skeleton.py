"""The clear part of an event, by the table of `fields.py`."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from runfold.encryption.fields import DATA, ENVELOPE, EXTRACTED, MEMORY, PLACEHOLDER, Form
from runfold.encryption.places import RunPlaces, memory_place, revision_place
from runfold.encryption.sealed_text import MARK
from runfold_projections.run import ERROR_LENGTH_MAX
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.data import APP_PREFIX, TEMP_PREFIX
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent, StandIn
from runfold_schemas.memories import Memory, MemoryChange, memory_key

ModelT = TypeVar("ModelT", bound=BaseModel)

SealText = Callable[[bytes, bytes], str]
"""Makes the ciphertext of a plaintext at a place."""

LIMITS: Final[Mapping[str, int]] = {"label": 512, "display_name": 500}
"""The longest texts of values that events limit. A ciphertext is a third longer than its value."""

_ERROR_BYTES: Final = 2_900
"""Of a run's error, whose ciphertext must fit into the run's record."""

_CLEAR: Final = frozenset(name for name, form in ENVELOPE.items() if form is Form.CLEAR)
_COPIED: Final = frozenset({Form.VALUE, Form.VALUES, Form.MODEL, Form.CHANGES})

_ADK_IDS: Final = ("id", "invocationId", "author", "timestamp", "partial", "turnComplete")


class Skeletons:
    """Makes the skeleton of an event, whose values have their ciphertexts by `seal_text`."""

    def __init__(
        self, event: AnyEvent, seal_text: SealText, places: RunPlaces, clear_labels: Collection[str]
    ) -> None:
        self._event = event
        self._seal_text = seal_text
        self._places = places
        self._clear_labels = clear_labels

    def of_event(self) -> tuple[AnyEvent, bool]:
        """The event's clear part, and whether that lacks anything that has no ciphertext in it."""
        event = self._event
        data, lacks = self._data(event.data)
        fields: dict[str, Any] = {"data": data}
        values = event.__dict__
        for name in event.model_fields_set:
            if name in _CLEAR:
                fields[name] = values[name]
            elif name == "state_delta" and values[name]:
                fields[name] = self._state(values[name])
            elif name == "labels":
                clear = {key: text for key, text in values[name].items() if key in self._clear_labels}
                lacks = lacks or len(clear) < len(values[name])
                if clear:
                    fields[name] = clear
            elif name != "data":
                lacks = lacks or getattr(event, name) is not None
        return _made(type(event), fields), lacks

    def has_copies(self) -> bool:
        """Whether the skeleton has ciphertexts of its own."""
        event = self._event
        table = DATA[event.type]
        return bool(event.state_delta) or any(
            table.get(name) in _COPIED and getattr(event.data, name) for name in event.data.model_fields_set
        )

    def _data(self, data: ModelT, table: Mapping[str, Form] | None = None) -> tuple[ModelT, bool]:
        if table is None:
            table = DATA[TYPE_OF[type(data)]]  # type: ignore[index]  # of an event
        fields: dict[str, Any] = {}
        lacks = False
        for name in data.model_fields_set:
            value, form = getattr(data, name), table.get(name, Form.SEALED)
            if name in table and (form is Form.CLEAR or value is None):
                fields[name] = value
                continue
            match form:
                case Form.VALUE:
                    fields[name] = self._value(name, value)
                    lacks = lacks or name == "error"
                case Form.VALUES:
                    fields[name] = self._labels(name, value, data)
                case Form.MODEL:
                    fields[name] = self._models(data, value)
                case Form.CHANGES:
                    fields[name] = tuple(self._data(change)[0] for change in value)
                case Form.STAND_INS:
                    fields[name] = tuple(map(self._stand_in, value))
                    lacks = True
                case _:
                    lacks = True
                    if form is not Form.SEALED:
                        fields[name] = _placeholder(form, data)
        return _made(type(data), fields), lacks

    def _value(self, name: str, value: str) -> str:
        if name == "error":
            shown = value[:ERROR_LENGTH_MAX].encode(errors="replace")[:_ERROR_BYTES]
            return self._seal_value(shown.decode(errors="ignore"), self._places.of(name, ""))
        return _within(self._seal_value(value, self._places.of(name, "")), name, "display_name")

    def _state(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: value if is_clear_state(key) else self._seal_value(value, self._places.of_state(key))
            for key, value in values.items()
        }

    def _labels(self, name: str, labels: Mapping[str, str], data: BaseModel) -> dict[str, str]:
        return {key: self._label(f"{name}.{key}", key, text, data) for key, text in labels.items()}

    def _label(self, field: str, key: str, text: str, data: BaseModel) -> str:
        if key in self._clear_labels:
            if text.startswith(MARK):
                # A reader would take it for a ciphertext.
                raise InvalidEventError(f"{field}: a clear label cannot begin with {MARK}", field=field)
            return text
        at = self._revision(data, key) if isinstance(data, MemoryChange) else self._places.of("label", key)
        return _within(self._seal_value(text, at), field, "label")

    def _revision(self, change: MemoryChange, label: str | None = None) -> bytes:
        at = memory_key(change.bank_id, change.memory_id)
        return revision_place(self._places.prefix, at, self._event.event_id, label)

    def _seal_value(self, value: Any, at: bytes) -> str:
        return self._seal_text(to_json(value), at)

    def _models(self, change: BaseModel, value: Any) -> Any:
        assert isinstance(change, MemoryChange)
        if isinstance(value, Memory):
            key = memory_key(change.bank_id, change.memory_id)
            return self._model(memory_place(self._places.prefix, key, value.scope), value, MEMORY)
        return tuple(self._model(self._revision(change), each, EXTRACTED) for each in value)

    def _model(self, at: bytes, model: ModelT, table: Mapping[str, Form]) -> ModelT:
        sealed, _ = self._data(model, table)
        plain = model.__pydantic_serializer__.to_json(model, exclude_unset=True)
        return sealed.model_copy(update={"sealed": self._seal_text(plain, at)})

    def _stand_in(self, stand_in: StandIn) -> StandIn:
        data, _ = self._data(stand_in.decode())
        return StandIn(type=stand_in.type, data=data.model_dump(mode="json", exclude_unset=True))


def is_clear_state(key: str) -> bool:
    """Whether values of this key are the tenant's, and are never sealed."""
    return key.startswith((APP_PREFIX, TEMP_PREFIX))


def _made(kind: type[ModelT], fields: dict[str, Any]) -> ModelT:
    """A model with these fields. `model_construct` takes four times as long."""
    model = kind.__new__(kind)
    # In the order of the fields, in which they are encoded.
    values = {name: fields.get(name, default) for name, default in _defaults(kind)}
    object.__setattr__(model, "__dict__", values)
    object.__setattr__(model, "__pydantic_fields_set__", set(fields))
    object.__setattr__(model, "__pydantic_extra__", {})
    object.__setattr__(model, "__pydantic_private__", None)
    return model


@cache
def _defaults(kind: type[BaseModel]) -> tuple[tuple[str, Any], ...]:
    """The fields of a kind with their defaults, which no code changes; None if required."""
    return tuple(
        (name, None if field.is_required() else field.get_default(call_default_factory=True))
        for name, field in kind.model_fields.items()
    )


def _within(text: str, field: str, kind: str) -> str:
    if len(text) > LIMITS[kind]:
        raise InvalidEventError(
            f"{field}: its ciphertext has {len(text)} characters; {LIMITS[kind]} are allowed", field=field
        )
    return text


def _placeholder(form: Form, data: BaseModel) -> Any:
    match form:
        case Form.TEXT:
            return PLACEHOLDER
        case Form.FALSE:
            return False
        case _:
            return skeleton_of_body(data.body)  # type: ignore[attr-defined]  # of a framework's event


def skeleton_of_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """An event of a framework that says nothing. The framework can still read it."""
    clear = {name: body[name] for name in _ADK_IDS if name in body}
    content = body.get("content")
    if isinstance(content, Mapping):
        role = content.get("role")
        return {**clear, "content": {"role": role, "parts": [{"text": PLACEHOLDER}]}}
    if isinstance(body.get("role"), str):
        return {"role": body["role"], "content": PLACEHOLDER}
    return clear
