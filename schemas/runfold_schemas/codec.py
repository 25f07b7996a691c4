"""Encodes events to bytes, decodes bytes to events, and makes the CloudEvents headers that repeat
the envelope for routing.

The value of a record is the whole event as JSON. If a second `schema_version` is ever needed, this
module converts events of the older version. There is one version so far; events of a newer version
are refused.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from math import isfinite
from typing import Annotated, Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import CoreSchema

from runfold_schemas.data import Data, ItemList
from runfold_schemas.envelope import DataT
from runfold_schemas.errors import InvalidEventError, UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.outline import DEPTH_MAX, VALUES_MAX, has_too_many_values, is_too_deep
from runfold_schemas.topics import RECORD_BYTES_MAX, Partition
from runfold_schemas.whole_texts import whole_value

Headers = tuple[tuple[str, bytes | None], ...]
"""Names and values. Kafka allows headers without a value."""

_FIELD_PART_MAX: Final = 64

_TOO_MANY_VALUES: Final = (
    f"the event has more than {VALUES_MAX:,} values and keys, where arrays and objects count twice"
)


class Record(NamedTuple):
    """One record of a topic, unchanged. `log_time` is the broker's append time in milliseconds
    since 1970.
    """

    offset: int
    log_time: int
    key: bytes | None
    headers: Headers
    value: bytes | None


Row = tuple[int, int, bytes | None, Headers, bytes | None]
"""The fields of a `Record`, which is one too."""


class UnreadableBatch(NamedTuple):
    """Offsets of a partition, from `offset` to `next_offset` (exclusive), whose records cannot be
    unpacked, and the reason.
    """

    partition: Partition
    offset: int
    next_offset: int
    reason: str


# Built at their first use, because they take an eighth of the time of `import runfold`.
_LATER: Final = ConfigDict(defer_build=True)
_EVENTS: Final[TypeAdapter[AnyEvent]] = TypeAdapter(
    Annotated[AnyEvent, Field(discriminator="type")], config=_LATER
)
_EVENT_LISTS: Final[TypeAdapter[list[AnyEvent]]] = TypeAdapter(
    ItemList[Annotated[AnyEvent, Field(discriminator="type")]], config=_LATER
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
        if _is_cut(error):
            return new_data(kind, **whole_value(fields))
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
    value = encode_unchecked(event)
    check_exact(event, value)
    return value


def encode_unchecked(event: AnyEvent) -> bytes:
    """The value of the event's record, before `check_exact`. Raises `InvalidEventError`."""
    try:
        return event.__pydantic_serializer__.to_json(event, exclude_unset=True)
    except (ValueError, RecursionError) as error:
        raise InvalidEventError(f"the event is not JSON: {error}", field="data") from error


def whole_event(event: AnyEvent) -> AnyEvent:
    """The event with U+FFFD for each half of a surrogate pair in its texts. The same object if
    there is none.
    """
    try:
        fields = event.__pydantic_serializer__.to_python(event, exclude_unset=True)
        whole_fields = whole_value(fields)
    except (ValueError, RecursionError):
        return event
    return event if whole_fields == fields else parse_event(whole_fields)


def check_exact(event: AnyEvent, value: bytes) -> None:
    """Raises `InvalidEventError` if the event is not what readers find in its value."""
    try:
        is_exact = _EVENTS.validate_json(value) == event
    except (ValueError, RecursionError) as error:
        reason = first_fault(error)[1] if isinstance(error, ValidationError) else error
        raise InvalidEventError(f"the event is not JSON: {reason}", field="data") from error
    if not is_exact:
        raise InvalidEventError(
            "JSON would change the event: use lists, string keys and finite numbers only",
            field="data",
        )


def check_new(value: bytes) -> None:
    """Raises `InvalidEventError` for the value of a new event that has too many values or is nested
    too deep. Readers take what other producers have nested deeper.
    """
    if has_too_many_values(value):
        raise InvalidEventError(_TOO_MANY_VALUES, field="data")
    if is_too_deep(value):
        raise InvalidEventError(f"the event is nested deeper than {DEPTH_MAX} levels", field="data")


def decode(value: bytes | None) -> AnyEvent:
    """The event in a record's value. Raises `UndecodableError`."""
    if value is None:
        raise UndecodableError("the record has no value")
    if len(value) > RECORD_BYTES_MAX:
        # The topic's limit counts the bytes as they were sent, perhaps compressed.
        raise UndecodableError(f"the event has {len(value):,} bytes; {RECORD_BYTES_MAX:,} are allowed")
    if has_too_many_values(value):
        raise UndecodableError(_TOO_MANY_VALUES)
    try:
        event = _EVENTS.validate_json(value)
    except ValidationError as error:
        raise UndecodableError(first_fault(error)[1]) from error
    if may_have_constants(value):
        _refuse_constants(value)
    outside = (event.state_delta or {}).values(), (event.__pydantic_extra__ or {}).values()
    if not (are_finite(_fields(event.data)) and all(map(are_finite, outside))):
        raise UndecodableError("a number in the event is larger than a float can be")
    return event


def decode_again(values: Sequence[bytes]) -> list[AnyEvent]:
    """The events in values that `decode` accepted before. One call for all values takes two thirds
    of the time.

    Raises `UndecodableError` if a value has changed since.
    """
    try:
        return _EVENT_LISTS.validate_json(b"[%b]" % b",".join(values))
    except ValidationError:
        # The list is a level of its own, which is too much for an event as deep as can be.
        return [decode(value) for value in values]


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


def fault_without_content(record: Record) -> str:
    """What is wrong with a record that cannot be decoded, without any word of the record. "" if the
    record can be decoded.
    """
    try:
        decode_record(record)
    except UndecodableError as error:
        if isinstance(error.__cause__, ValidationError):
            return _place_and_kind(error.__cause__)
        for name in ("ce_id", "ce_type"):
            if error.reason.startswith(f"header {name} "):
                return f"header {name} contradicts the event"
        return "the record cannot be decoded"
    return ""


def _place_and_kind(error: ValidationError) -> str:
    """The path up to the first part that the producer named, and pydantic's name of the fault."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = []
    for part in fault["loc"]:
        if not isinstance(part, int) and part not in _field_names():
            break
        path.append(str(part))
    if path and path[0] in TYPES:
        del path[0]
    return ": ".join(filter(None, (".".join(path), fault["type"])))


@cache
def _field_names() -> frozenset[str]:
    """The names of all fields of events, and of all choices that have a discriminator."""

    def names(schema: Any) -> Iterator[str]:
        if isinstance(schema, Mapping):
            kind = schema.get("type")
            yield from schema["fields"] if kind == "model-fields" else ()
            yield from map(str, schema["choices"] if kind == "tagged-union" else ())
            for part in schema.values():
                yield from names(part)
        elif isinstance(schema, list | tuple):
            for part in schema:
                yield from names(part)

    return frozenset(names(event_schema()))


def event_schema() -> CoreSchema:
    """The schema of an event of any kind, as pydantic-core has it."""
    _EVENTS.rebuild()
    return _EVENTS.core_schema


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


def may_have_constants(value: bytes) -> bool:
    """Whether NaN or Infinity may be among the JSON's values. They may also be part of a text."""
    # Every event passes here, and searching one byte is ten times faster than searching a word.
    return (b"N" in value and b"NaN" in value) or (b"I" in value and b"Infinity" in value)


def _refuse_constants(value: bytes) -> None:
    """Refuses NaN and Infinity, which pydantic's parser accepts and other JSON parsers refuse."""

    def refuse(constant: str) -> None:
        raise UndecodableError(f"Invalid JSON: {constant} is not a number that JSON has")

    json.loads(value, parse_constant=refuse)


def are_finite(values: Iterable[Any]) -> bool:
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
            if not are_finite(value):
                return False
        elif kind is not datetime and not are_finite(value.values() if kind is dict else _fields(value)):
            return False
    return True


def _fields(model: BaseModel) -> Iterable[Any]:
    extra = model.__pydantic_extra__
    return [*model.__dict__.values(), *extra.values()] if extra else model.__dict__.values()


def _validated(fields: dict[str, Any]) -> AnyEvent:
    try:
        return _EVENTS.validate_python(fields)
    except ValidationError as error:
        if _is_cut(error):
            return _validated(whole_value(fields))
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error


def _is_cut(error: ValidationError) -> bool:
    """Whether a text has half of a surrogate pair. Texts without a limit are not looked at here,
    but when the event is encoded.
    """
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return any(fault["type"] == "string_unicode" for fault in faults)
