"""Validation ends at the first fault: the reasons stay those of a validation that collects all."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import SchemaValidator

from runfold_schemas import codec
from runfold_schemas.codec import decode, first_fault
from runfold_schemas.errors import UndecodableError

_ENVELOPE = {
    "event_id": "0190163d-8694-739b-aea5-966c26f8ad91",
    "run_id": "run-1",
    "timestamp": "2030-01-02T03:04:05Z",
}
_MEMORY = {"bank_id": "b", "memory_id": "m", "memory": {"fact": "f", "scope": {"user": "ann"}}}
_TEXT = {"type": "text", "text": "Hello"}


def _collecting(schema: Any) -> Any:
    """The schema without its `fail_fast`."""
    match schema:
        case dict():
            return {key: _collecting(value) for key, value in schema.items() if key != "fail_fast"}
        case list():
            return [_collecting(value) for value in schema]
        case _:
            return schema


COLLECTING = SchemaValidator(_collecting(codec.event_schema()))


def _memory(**fields: Any) -> dict[str, Any]:
    return {**_MEMORY, "memory": {**_MEMORY["memory"], **fields}}  # type: ignore[dict-item]


# For each kind of list, data in which the list begins right and then has faults of several sorts.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("user_message", {"message": "m", "parts": [_TEXT, 1, {}, {"type": "text"}]}, {}),
    ("user_message", {"message": "m", "parts": [_TEXT, {"type": "text", "text": 1}, {"type": "x"}]}, {}),
    ("user_message", {"message": "m", "parts": {"type": "text"}}, {}),
    ("user_message", {"message": 1, "parts": [1]}, {"labels": {"a": 1, "b": 2}}),
    ("user_message", {"message": "m"}, {"labels": {"a": "b", "c": 1, "d": []}}),
    ("user_message", {"message": "m"}, {"labels": {str(index): "" for index in range(65)}}),
    ("user_message", {"message": "m"}, {"labels": {str(index): index for index in range(65)}}),
    ("user_message", {"message": "m"}, {"labels": {"k" * 65: 1, "l" * 65: "v" * 513}}),
    ("user_message", {"message": "m"}, {"state_delta": {"k" * 10_001: 1, "l" * 10_001: 1}}),
    ("user_message", {"message": "m"}, {"state_delta": dict.fromkeys(map(str, range(10_001)), 1)}),
    ("user_message", {"message": "m"}, {"state_delta": [1, 2]}),
    ("tool_result", {"tool_call_id": "c", "attachments": [1, {}, {"type": "image"}]}, {}),
    ("tool_result", {"tool_call_id": "c", "attachments": [{"url": "https://a.b/c"}, {"data": "!"}]}, {}),
    ("event_amended", {"offset": 1, "reason": "r", "stand_ins": [1, {"type": "x"}]}, {}),
    ("event_amended", {"offset": 1, "reason": "r", "stand_ins": [{"type": "thinking", "data": 1}]}, {}),
    ("response_recorded", {"faults": ["a", 1, 2]}, {}),
    ("framework_event", {"framework": "adk", "body": {}, "unset": ["a", 1, 2]}, {}),
    ("memory_created", _memory(scope={"a": 1, "b": "*", "": "c"}), {}),
    ("memory_created", _memory(scope={str(index): "v" for index in range(6)}), {}),
    ("memory_created", _memory(scope={}), {}),
    ("memory_created", _memory(topics=[{"custom": "a"}, {}, 1]), {}),
    ("memory_created", _memory(metadata={"a": 1, "b": [], "c": {"timestamp": "x"}}), {}),
    ("memory_deleted", {**_MEMORY, "extracted": [{"fact": "f"}, {}, 1]}, {}),
    ("memories_generated", {"bank_id": "b", "created": [_MEMORY, {}, 1], "deleted": [1]}, {}),
    ("bank_created", {"bank_id": "b", "config": {"agents": ["a", "", 1], "labels": {"a": 1}}}, {}),
    ("bank_created", {"bank_id": "b", "config": {"customizations": [{"topics": [1, 2]}, 3]}}, {}),
    ("bank_updated", {"bank_id": "b", "config": {"customizations": [{"examples": [{}, {}]}]}}, {}),
]


@pytest.mark.parametrize(("kind", "data", "envelope"), CASES)
def test_the_first_fault_is_the_same(kind: str, data: dict[str, Any], envelope: dict[str, Any]) -> None:
    _check_same({**_ENVELOPE, "type": kind, "data": data, **envelope})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["text", "image", "*"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "fact", "scope", "custom", "data", "url"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(case=st.sampled_from(CASES), items=st.lists(_JSON, max_size=5), in_labels=st.booleans())
def test_the_first_fault_of_any_items_is_the_same(
    case: tuple[str, dict[str, Any], dict[str, Any]], items: list[Any], in_labels: bool
) -> None:
    kind, data, envelope = case
    lists = {name: items for name, value in data.items() if isinstance(value, list)}
    more = {"labels": {str(index): item for index, item in enumerate(items)}} if in_labels else {}

    _check_same({**_ENVELOPE, "type": kind, "data": {**data, **lists}, **envelope, **more})


@pytest.mark.parametrize(
    "fields",
    [
        {"data": {"message": "m", "parts": [{}] * 99_000}},
        {"data": {"message": "m"}, "labels": {str(index): 1 for index in range(99_000)}},
    ],
)
def test_many_faults_take_no_memory(fields: dict[str, Any]) -> None:
    value = json.dumps({**_ENVELOPE, "type": "user_message", **fields}).encode()
    tracemalloc.start()

    with pytest.raises(UndecodableError):
        decode(value)

    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def _check_same(fields: dict[str, Any]) -> None:
    value = json.dumps(fields).encode()
    assert _outcome(lambda: decode(value)) == _outcome(lambda: COLLECTING.validate_json(value))


def _outcome(validate: Callable[[], Any]) -> Any:
    """The event, or the reason for which there is none."""
    try:
        return validate()
    except ValidationError as error:
        return UndecodableError(first_fault(error)[1]).reason
    except UndecodableError as error:
        return error.reason
