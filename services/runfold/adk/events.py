"""ADK's events in the log, whole, and back as they were: also what nobody set stays unset.

An event is kept as ADK's own JSON. That has every value there is, defaults among them, because some
classes of ADK are told apart by a default; and every None that somebody set. What was filled in by
itself is noted beside it, by its path.
"""

import gc
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, Literal

from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events.event import Event
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from runfold.client.session import Logged
from runfold_projections.state import without_temporary
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.sessions import FrameworkEvent

_JSON_OPTIONS: Final[dict[str, Any]] = {"mode": "json", "by_alias": True}

_INDEX_DIGITS: Final = 10

_log = logging.getLogger(__name__)


class _Logged(BaseModel):
    """What of an event of ours is read: pydantic passes over the rest."""

    class Data(BaseModel):
        framework: Literal["adk"]
        body: Event
        unset: tuple[str, ...] = ()

    data: Data


_LOGGED: Final[TypeAdapter[list[_Logged]]] = TypeAdapter(list[_Logged])


def framework_event(event: Event, delta: Mapping[str, Any]) -> FrameworkEvent:
    """The event as the log keeps it, with `delta` for its change of state. Raises
    `InvalidEventError` for what JSON cannot carry.
    """
    # ADK's actions have serializers of their own, which would store the text of what they cannot
    # serialise in its place.
    json_form(event.actions.agent_state or {}, field="agent_state")
    kept = _with_state_delta(event, delta)
    try:
        values = kept.model_dump(**_JSON_OPTIONS, exclude_none=True)
        given = kept.model_dump(**_JSON_OPTIONS, exclude_unset=True)
    except (PydanticSerializationError, ValueError) as error:
        json_form(event.custom_metadata or {}, field="custom_metadata")
        json_form({"value": event.output}, field="output")
        raise InvalidEventError(f"the event is not JSON: {error}", field="event") from error
    unset: list[str] = []
    body = _joined(values, given, unset, path="")
    return FrameworkEvent(framework="adk", body=body, unset=tuple(unset))


def events_of(logged: Sequence[Logged]) -> list[Event]:
    """ADK's events among those of a log, in their order."""
    values = [one.value for one in logged]
    try:
        with _spared_collector():
            found = _LOGGED.validate_json(b"[%b]" % b",".join(values))
    except ValidationError:
        found = list(_readable(values))
    for one in found:
        for path in one.data.unset:
            _unset(one.data.body, path.split("/"))
    return [one.data.body for one in found]


def time_of(event: Event) -> datetime:
    """When the event happened."""
    try:
        return datetime.fromtimestamp(event.timestamp, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.now(UTC)  # no time that a date can be; ADK's own is kept as it is


@contextmanager
def told_to_adk() -> Iterator[None]:
    """What is wrong with what ADK was given, as ADK's own error."""
    try:
        yield
    except InvalidEventError as error:
        raise InputValidationError(str(error)) from error


@contextmanager
def _spared_collector() -> Iterator[None]:
    """Without the cyclic garbage collector, which took half of the time of reading 3,000 events:
    nothing of them is garbage.
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
    """Those that ADK understands: anybody can append to a log, and a session is to be read all the
    same.
    """
    for value in values:
        try:
            yield _Logged.model_validate_json(value)
        except ValidationError as error:
            _log.warning("an event is not ADK's, and is left out: %s", error)


def state_delta(event: Event) -> dict[str, Any]:
    """What the event changes of stored state. Raises `InvalidEventError` naming the key that JSON
    cannot carry.
    """
    return json_form(without_temporary(event.actions.state_delta or {}), field="state_delta")


def json_form(values: Mapping[str, Any], *, field: str) -> dict[str, Any]:
    """The values as JSON has them: as ADK, which takes a time's text for a time. Raises
    `InvalidEventError` naming the key.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        try:
            found[key] = to_jsonable_python(value, inf_nan_mode="constants")
            json.dumps(found[key], allow_nan=False)
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidEventError(
                f"{field}: the value of {key!r} is not JSON: {error}", field=f"{field}.{key}"
            ) from error
    return found


def _with_state_delta(event: Event, delta: Mapping[str, Any]) -> Event:
    """The event, or a copy whose fields are set as those of the event are."""
    if delta == event.actions.state_delta:
        return event
    kept, actions = event.model_copy(), event.actions.model_copy()
    actions.__dict__["state_delta"] = dict(delta)
    kept.__dict__["actions"] = actions
    return kept


def _joined(values: Any, given: Any, unset: list[str], *, path: str) -> Any:
    """`values` with the Nones of `given`; `unset` gets the paths of what is in `values` alone."""
    if values == given:  # as nearly all of an event is: it saves the way through it
        return given
    if isinstance(values, dict) and isinstance(given, dict):
        joined = dict(given)
        for name, value in values.items():
            if name not in given:
                joined[name] = value
                unset.append(path + name)
            elif value != given[name]:
                joined[name] = _joined(value, given[name], unset, path=f"{path}{name}/")
        return joined
    if isinstance(values, list) and isinstance(given, list) and len(values) == len(given):
        return [
            _joined(value, other, unset, path=f"{path}{index}/")
            for index, (value, other) in enumerate(zip(values, given, strict=True))
        ]
    return values


def _unset(value: Any, steps: Sequence[str]) -> None:
    *way, last = steps
    for step in way:
        value = _inside(value, step)
    if isinstance(value, BaseModel):
        value.__pydantic_fields_set__.discard(_names(type(value)).get(last, last))


def _inside(value: Any, step: str) -> Any:
    """What is behind the step; None where it leads nowhere, since anybody may have noted it."""
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
