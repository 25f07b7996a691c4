"""Encodes events to bytes, decodes bytes to events, and makes the CloudEvents headers that repeat
the envelope for routing.

The value of a record is the whole event as JSON. If a second `schema_version` is ever needed, this
module converts events of the older version. There is one version so far; events of a newer version
are refused.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import isfinite
from typing import Annotated, Any, Final, NamedTuple, get_args

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from runfold_schemas.data import Data
from runfold_schemas.errors import InvalidEventError, UndecodableError
from runfold_schemas.events import AnyEvent, DataT
from runfold_schemas.topics import RECORD_BYTES_MAX

Headers = tuple[tuple[str, bytes], ...]

_FIELD_PART_MAX: Final = 64


class Record(NamedTuple):
    """One record of a topic, unchanged. `log_time` is the broker's append time in milliseconds
    since 1970.
    """

    offset: int
    log_time: int
    key: bytes | None
    headers: Headers
    value: bytes | None


_EVENTS: Final[TypeAdapter[AnyEvent]] = TypeAdapter(Annotated[AnyEvent, Field(discriminator="type")])
_EVENT_LISTS: Final[TypeAdapter[list[AnyEvent]]] = TypeAdapter(
    list[Annotated[AnyEvent, Field(discriminator="type")]]
)

TYPE_OF: Final[dict[type[Data], str]] = {
    event.model_fields["data"].annotation: get_args(event.model_fields["type"].annotation)[0]
    for event in get_args(AnyEvent)
}
"""The name of the kind for each class of data."""

TYPES: Final = frozenset(TYPE_OF.values())


def new_event(data: Data, **envelope: Any) -> AnyEvent:
    """An event with `data` and the fields of `envelope`, validated.

    Raises `InvalidEventError`, which names the wrong field.
    """
    return _validated({"type": TYPE_OF[type(data)], "data": data, **envelope})


def new_data(kind: type[DataT], **fields: Any) -> DataT:
    """The data of an event of one kind, validated. Raises `InvalidEventError`, which names the
    wrong field.
    """
    try:
        return kind(**fields)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error


def parse_event(fields: dict[str, Any]) -> AnyEvent:
    """The event in decoded JSON, for example of an HTTP body. Raises `InvalidEventError`, which
    names the wrong field.
    """
    return _validated(fields)


def encode(event: AnyEvent) -> bytes:
    """The value of the event's record. Raises `InvalidEventError` for values that JSON cannot hold
    exactly: NaN, tuples, keys that are not strings.
    """
    try:
        value = event.model_dump_json(exclude_unset=True).encode()
        is_exact = _EVENTS.validate_json(value) == event
    except (ValueError, RecursionError) as error:
        reason = first_fault(error)[1] if isinstance(error, ValidationError) else error
        raise InvalidEventError(f"the event is not JSON: {reason}", field="data") from error
    if not is_exact:
        raise InvalidEventError(
            "JSON would change the event: use lists, string keys and finite numbers only",
            field="data",
        )
    return value


def decode(value: bytes | None) -> AnyEvent:
    """The event in a record's value. Raises `UndecodableError`."""
    if value is None:
        raise UndecodableError("the record has no value")
    if len(value) > RECORD_BYTES_MAX:
        # The topic's limit counts the bytes as they were sent, perhaps compressed.
        raise UndecodableError(f"the event has {len(value):,} bytes; {RECORD_BYTES_MAX:,} are allowed")
    try:
        event = _EVENTS.validate_json(value)
    except ValidationError as error:
        raise UndecodableError(first_fault(error)[1]) from error
    # Every event passes here, and searching one byte is ten times faster than searching a word.
    if (b"N" in value and b"NaN" in value) or (b"I" in value and b"Infinity" in value):
        _refuse_constants(value)
    outside = (event.state_delta or {}).values(), (event.__pydantic_extra__ or {}).values()
    if not (_are_finite(_fields(event.data)) and all(map(_are_finite, outside))):
        raise UndecodableError("a number in the event is larger than a float can be")
    return event


def decode_again(values: Sequence[bytes]) -> list[AnyEvent]:
    """The events in values that `decode` accepted before. One call for all values takes two thirds
    of the time.

    Raises `UndecodableError` if a value has changed since.
    """
    try:
        return _EVENT_LISTS.validate_json(b"[%b]" % b",".join(values))
    except ValidationError as error:
        raise UndecodableError(first_fault(error)[1]) from error


def decode_record(record: Record) -> AnyEvent:
    """The event in a record. Raises `UndecodableError`, also if a header contradicts the event.

    Headers repeat the event for routing, so a header may be absent or null.
    """
    event = decode(record.value)
    header_values = dict(record.headers)
    for name, expected in (("ce_id", event.event_id), ("ce_type", event.type)):
        if header_values.get(name) not in (None, expected.encode()):
            raise UndecodableError(f"header {name} is {header_values[name]!r}, the event says {expected!r}")
    return event


def headers(event: AnyEvent, *, source: str) -> list[tuple[str, bytes]]:
    """CloudEvents 1.0 attributes in the binary mode for Kafka. `source` is the URI reference of the
    producer.
    """
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", event.event_id.encode()),
        ("ce_type", event.type.encode()),
        ("ce_source", source.encode()),
        ("ce_time", event.timestamp.isoformat().encode()),
        ("content-type", b"application/json"),
    ]


def event_types(names: Iterable[str]) -> frozenset[str]:
    """`names` as a set. Raises `InvalidEventError` for a name that is not a kind of event."""
    unknown = sorted(set(names) - TYPES)
    if unknown:
        raise InvalidEventError(
            f"unknown event type {unknown[0]!r}; the types are {', '.join(sorted(TYPES))}", field="type"
        )
    return frozenset(names)


def first_fault(error: ValidationError) -> tuple[str, str]:
    """The first fault of a validation: the dotted path of the field, and a sentence about it."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # The discriminated union puts the kind in front of every path. No field has such a name.
    path = fault["loc"][1:] if fault["loc"] and fault["loc"][0] in TYPES else fault["loc"]
    # A key of a dictionary may be part of the path, and have any length.
    field = ".".join(str(part)[:_FIELD_PART_MAX] for part in path)
    return field, f"{field}: {fault['msg']}" if field else fault["msg"]


def _refuse_constants(value: bytes) -> None:
    """Refuses NaN and Infinity, which pydantic's parser accepts and other JSON parsers refuse."""

    def refuse(constant: str) -> None:
        raise UndecodableError(f"Invalid JSON: {constant} is not a number that JSON has")

    json.loads(value, parse_constant=refuse)


def _are_finite(values: Iterable[Any]) -> bool:
    """Whether no number among `values` is infinite, because Python reads the JSON number 1e999 as
    infinity. The loop is written for speed, because every value of every event passes here.
    """
    for value in values:
        kind = type(value)
        if kind is str or kind is int or kind is bool or value is None:
            continue
        if kind is float:
            if not isfinite(value):
                return False
        elif kind is list or kind is tuple:
            if not _are_finite(value):
                return False
        elif kind is not datetime and not _are_finite(value.values() if kind is dict else _fields(value)):
            return False
    return True


def _fields(model: BaseModel) -> Iterable[Any]:
    extra = model.__pydantic_extra__
    return [*model.__dict__.values(), *extra.values()] if extra else model.__dict__.values()


def _validated(fields: dict[str, Any]) -> AnyEvent:
    try:
        return _EVENTS.validate_python(fields)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error
