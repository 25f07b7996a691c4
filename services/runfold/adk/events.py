"""ADK's events as the log stores them, and back without a difference: a field that was not set is
not set afterwards either.

An event is stored as ADK's own JSON with all its values. Defaults are among them, because some
classes of ADK differ only by a default; so is every None that was set explicitly. The paths of
fields that were filled in by a default are stored beside the JSON.
"""

import gc
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from typing import Any, Final, Literal

from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events.event import Event
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from runfold.client.session import RecordedEvent
from runfold_projections.state import without_temporary
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.sessions import FrameworkEvent

_JSON_OPTIONS: Final[dict[str, Any]] = {"mode": "json", "by_alias": True}

_INDEX_DIGITS: Final = 10

_log = logging.getLogger(__name__)


class _Logged(BaseModel):
    """The part of a stored event that ADK's event is made from. Pydantic ignores the rest."""

    class Data(BaseModel):
        framework: Literal["adk"]
        body: Event
        unset: tuple[str, ...] = ()

    data: Data


_LOGGED: Final[TypeAdapter[list[_Logged]]] = TypeAdapter(list[_Logged])


def framework_event(event: Event, delta: Mapping[str, Any]) -> FrameworkEvent:
    """The event as the log stores it, with `delta` as its change of state. Raises
    `InvalidEventError` for a value that JSON cannot carry.
    """
    changed = _with_actions(event, delta)
    try:
        values = changed.model_dump(**_JSON_OPTIONS, exclude_none=True)
        set_values = changed.model_dump(**_JSON_OPTIONS, exclude_unset=True)
    except (PydanticSerializationError, ValueError) as error:
        _check_json(event.custom_metadata or {}, field="custom_metadata")
        _check_json({"value": event.output}, field="output")
        raise InvalidEventError(f"the event is not JSON: {error}", field="event") from error
    unset: list[str] = []
    body = _merged(values, set_values, unset, path="")
    return FrameworkEvent(framework="adk", body=body, unset=tuple(unset))


def events_of(logged: Sequence[RecordedEvent]) -> list[Event]:
    """ADK's events among the events of a log, in their order."""
    values = [event.value for event in logged]
    try:
        with _paused_collector():
            decoded = _LOGGED.validate_json(b"[%b]" % b",".join(values))
    except ValidationError:
        decoded = list(_readable(values))
    for event in decoded:
        for path in event.data.unset:
            _unset(event.data.body, path.split("/"))
    return [event.data.body for event in decoded]


def time_of(event: Event) -> datetime:
    """When the event happened. A number that no date has becomes the present time; the stored
    event has ADK's own number in any case.
    """
    try:
        return datetime.fromtimestamp(event.timestamp, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.now(UTC)


@contextmanager
def adk_errors() -> Iterator[None]:
    """Raises ADK's own error for an invalid value."""
    try:
        yield
    except InvalidEventError as error:
        raise InputValidationError(str(error)) from error


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Pauses Python's cyclic garbage collector for one call that decodes events: it takes half of
    the time of reading 3,000 events and finds nothing. A collector that the program has switched
    off stays off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _readable(values: Sequence[bytes]) -> Iterator[_Logged]:
    """The values that ADK understands. Any program can append to a log, and its events must not
    make a session unreadable.
    """
    for value in values:
        try:
            yield _Logged.model_validate_json(value)
        except ValidationError as error:
            _log.warning("an event is not one of ADK's and is skipped: %s", error)


def state_delta(event: Event) -> dict[str, Any]:
    """The event's change of the stored state, as `json_form` has it."""
    return json_form(without_temporary(event.actions.state_delta or {}), field="state_delta")


def json_form(values: Mapping[str, Any], *, field: str) -> dict[str, Any]:
    """The values as JSON, in which a time is its text, as in ADK. A value that JSON cannot carry is
    replaced by its text, with a warning, as ADK's own services do. Raises `InvalidEventError` with
    the key of a value that has no text either.
    """
    converted: dict[str, Any] = {}
    for key, value in values.items():
        try:
            converted[key] = _json_value(value)
        except (PydanticSerializationError, ValueError):
            converted[key] = _text_form(value, key, field=field)
    return converted


def _json_value(value: Any) -> Any:
    converted = to_jsonable_python(value, inf_nan_mode="constants")
    json.dumps(converted, allow_nan=False)
    return converted


def _text_form(value: Any, key: str, *, field: str) -> Any:
    try:
        text = _with_finite_numbers(to_jsonable_python(value, serialize_unknown=True))
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidEventError(
            f"{field}: the value of {key!r} is not JSON: {error}", field=f"{field}.{key}"
        ) from error
    _log.warning("%s: JSON cannot carry a part of the value of %r: its text is stored", field, key)
    return text


def _with_finite_numbers(value: Any) -> Any:
    """The value with the texts of its numbers that are not finite."""
    if isinstance(value, float) and not isfinite(value):
        return json.dumps(value)
    if isinstance(value, list):
        return [_with_finite_numbers(member) for member in value]
    if isinstance(value, dict):
        return {key: _with_finite_numbers(member) for key, member in value.items()}
    return value


def _check_json(values: Mapping[str, Any], *, field: str) -> None:
    """Raises `InvalidEventError` with the key of a value that JSON cannot carry."""
    for key, value in values.items():
        try:
            _json_value(value)
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidEventError(
                f"{field}: the value of {key!r} is not JSON: {error}", field=f"{field}.{key}"
            ) from error


def _with_actions(event: Event, delta: Mapping[str, Any]) -> Event:
    """The event with this change of state, and with an agent's state that JSON can carry. A copy
    has the same fields set as the event.
    """
    agent_state = event.actions.agent_state
    stored_agent_state = agent_state and json_form(agent_state, field="agent_state")
    if delta == event.actions.state_delta and stored_agent_state == agent_state:
        return event
    changed, actions = event.model_copy(), event.actions.model_copy()
    actions.__dict__ |= {"state_delta": dict(delta), "agent_state": stored_agent_state}
    changed.__dict__["actions"] = actions
    return changed


def _merged(values: Any, set_values: Any, unset: list[str], *, path: str) -> Any:
    """`values` with each None of `set_values`. The paths of fields that only `values` has are added
    to `unset`.
    """
    if values == set_values:  # true for nearly all parts of an event, which saves the walk
        return set_values
    if isinstance(values, dict) and isinstance(set_values, dict):
        merged = dict(set_values)
        for name, value in values.items():
            if name not in set_values:
                merged[name] = value
                unset.append(path + name)
            elif value != set_values[name]:
                merged[name] = _merged(value, set_values[name], unset, path=f"{path}{name}/")
        return merged
    if isinstance(values, list) and isinstance(set_values, list) and len(values) == len(set_values):
        return [
            _merged(value, set_value, unset, path=f"{path}{index}/")
            for index, (value, set_value) in enumerate(zip(values, set_values, strict=True))
        ]
    return values


def _unset(value: Any, steps: Sequence[str]) -> None:
    *parents, last = steps
    for step in parents:
        value = _inside(value, step)
    if isinstance(value, BaseModel):
        value.__pydantic_fields_set__.discard(_names(type(value)).get(last, last))


def _inside(value: Any, step: str) -> Any:
    """The value behind the step, or None if there is none: any program may have stored the path."""
    if isinstance(value, BaseModel):
        name = _names(type(value)).get(step)
        return None if name is None else getattr(value, name)
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and len(step) < _INDEX_DIGITS:
        index = int(step)
        return value[index] if index < len(value) else None
    return None


@cache
def _names(kind: type[BaseModel]) -> dict[str, str]:
    """The names of a model's fields by their aliases."""
    return dict(_aliases(kind.model_fields.items()))


def _aliases(fields: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, field in fields:
        yield field.serialization_alias or field.alias or name, name
