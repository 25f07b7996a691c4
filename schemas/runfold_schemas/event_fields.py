"""The fields of an event in a record, validated as its model does it, without making the model.

Making models is more than half of the time of decoding. A fold of a run needs the envelope of
nearly all events, and the data of few.
"""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, Final, NotRequired, TypedDict

from pydantic import ValidationError
from pydantic_core import CoreSchema, SchemaValidator

from runfold_schemas.codec import Record, are_finite, event_schema, may_have_constants
from runfold_schemas.data import FIRST_TIME, TIME_END, check_year
from runfold_schemas.outline import has_too_many_values
from runfold_schemas.topics import RECORD_BYTES_MAX


class EventFields(TypedDict):
    """The fields that the JSON of an event has. A field that is absent has its default."""

    event_id: str
    run_id: str
    type: str
    timestamp: datetime
    data: Any
    turn_id: NotRequired[str | None]
    expected_offset: NotRequired[int | None]
    state_delta: NotRequired[dict[str, Any] | None]


_REQUIRED: Final = len(EventFields.__required_keys__)


def fields_of(record: Record) -> EventFields | None:
    """The fields of the event in a record. None if `decode_record` must decide, which alone knows
    the reasons: then the record is no event, or one that is decoded so rarely that its cost does
    not matter.
    """
    value = record.value
    if value is None or len(value) > RECORD_BYTES_MAX or has_too_many_values(value):
        return None
    try:
        fields: EventFields = _validate()(value)
    except ValidationError:
        return None
    if may_have_constants(value) or not _are_finite(fields):
        return None
    header_values = dict(record.headers)
    event_id, kind = header_values.get("ce_id"), header_values.get("ce_type")
    if event_id is not None and event_id != fields["event_id"].encode():
        return None
    if kind is not None and kind != fields["type"].encode():
        return None
    return fields


def _are_finite(fields: EventFields) -> bool:
    data = fields["data"]
    # Most events have the required fields alone, of which only the data can hold numbers.
    if len(fields) == _REQUIRED and type(data) is dict:
        return are_finite(data.values())
    return are_finite(fields.values())


@cache
def _validate() -> Callable[[bytes], EventFields]:
    """Validates JSON. Made at the first use, because most programs only publish."""
    schema: Any = event_schema()
    union = schema["schema"] if schema["type"] == "definitions" else schema
    choices = {kind: _without_model(choice, levels=2) for kind, choice in union["choices"].items()}
    union = {**union, "choices": choices}
    return SchemaValidator(
        {**schema, "schema": union} if schema["type"] == "definitions" else union
    ).validate_json


_OF_FIELDS: Final = ("validation_alias", "metadata")


def _without_model(schema: Any, *, levels: int) -> CoreSchema:
    """The schema of a dictionary in the place of a model's. It accepts the same JSON. A model with
    validators of its own stays.
    """
    if schema["type"] != "model" or schema["schema"]["type"] != "model-fields" or _is_special(schema):
        return schema  # type: ignore[no-any-return]  # schemas are dictionaries of many forms
    fields = {}
    for name, field in schema["schema"]["fields"].items():
        inner, is_required = _without_default(field["schema"])
        if levels > 1:
            inner = _with_limits(_without_model(inner, levels=levels - 1))
        fields[name] = {
            "type": "typed-dict-field",
            "schema": inner,
            "required": is_required,
            **{key: field[key] for key in _OF_FIELDS if key in field},
        }
    config = schema.get("config", {})
    behavior = config.get("extra_fields_behavior", "ignore")
    return {"type": "typed-dict", "fields": fields, "extra_behavior": behavior, "config": config}


def _is_special(schema: Any) -> bool:
    return any(schema.get(key) for key in ("root_model", "custom_init", "post_init"))


def _without_default(schema: Any) -> tuple[Any, bool]:
    """The schema of a field's value, and whether the field is required."""
    if schema["type"] != "default":
        return schema, True
    if schema.get("validate_default") or schema.get("on_error", "raise") != "raise":
        return schema, False
    return schema["schema"], False


def _with_limits(schema: Any) -> Any:
    """The limits of times as part of the schema, because a call of Python would take as long as all
    other fields together.
    """
    if schema["type"] == "function-after" and schema["function"].get("function") is check_year:
        return {**schema["schema"], "ge": FIRST_TIME, "lt": TIME_END}
    return schema
