"""The objects of a body: decoded one by one, they are what decoding the whole body gives."""

import asyncio
import json
import time
from typing import Any

import pytest
from fastapi import HTTPException
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from runfold.api.app import build_app
from runfold.http import items
from runfold.http.bodies import JSON, NDJSON, InvalidItemError, JsonRoute
from runfold.http.items import BATCH_VALUES_MAX, ITEMS_MAX, Item, parse_items
from runfold.settings import Settings
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.outline import DEPTH_MAX, VALUES_MAX, Outline, is_too_deep

_TEXT = st.text(st.sampled_from('ab"\\[]{},:é😀\n/'), max_size=6)
_VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


def parse(body: bytes, media_type: str = JSON) -> list[Item]:
    async def read() -> list[Item]:
        return [item async for item in parse_items(body, media_type)]

    return asyncio.run(read())


@given(
    objects=st.lists(st.dictionaries(_TEXT, _VALUES, max_size=4), min_size=1, max_size=6),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
    pause_bytes=st.integers(1, 40),
)
def test_an_array_in_pieces_is_the_array(
    objects: list[dict[str, Any]], indent: int | None, ascii_only: bool, pause_bytes: int
) -> None:
    body = json.dumps(objects, indent=indent, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "_WHOLE_BYTES_MAX", 0)
        patch.setattr(items, "_PAUSE_BYTES", pause_bytes)

        assert [item.fields for item in parse(body)] == objects


@given(values=st.lists(_VALUES, max_size=4), chunk_bytes=st.integers(1, 20))
def test_an_outline_in_chunks_bounds_the_values(values: list[Any], chunk_bytes: int) -> None:
    text, outline = json.dumps(values).encode(), Outline()
    for begin in range(0, len(text), chunk_bytes):
        outline.feed(text[begin : begin + chunk_bytes])

    assert _count(values) <= outline.values + 1 <= 3 * _count(values)


def _count(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + sum(map(_count, inner))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'[{"a":1} {"b":2}]', "broken JSON"),
        (b'[{"a":1},,{"b":2}]', "broken JSON"),
        (b'[{"a":1},]', "broken JSON"),
        (b'[,{"a":1}]', "broken JSON"),
        (b'[{"a":1}', "broken JSON: EOF while parsing a list at line 1 column 9"),
        (b'[{"a":1}] 2', "broken JSON"),
        (b'[{"a":1},\n {"b":]}]', "line 2: broken JSON: expected value at line 2 column 7"),
        (b'[{"a":1},2]', "[1]: this is not a JSON object"),
        (b'[2,{"a":1}]', "[0]: this is not a JSON object"),
        (b'[{"a":1},[]]', "[1]: this is not a JSON object"),
        (b'[{"a":"\\', "broken JSON"),
        (b'[{"a":"[', "broken JSON"),
    ],
)
def test_a_broken_array_names_the_place(body: bytes, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_WHOLE_BYTES_MAX", 0)

    with pytest.raises(InvalidItemError) as refused:
        parse(body)

    assert problem in str(refused.value)


def test_broken_lines_name_their_number() -> None:
    with pytest.raises(InvalidItemError, match="line 3: broken JSON: expected value at column 6"):
        parse(b'{"a":1}\n\n{"b":]}\n', NDJSON)


def test_a_text_with_many_commas_is_one_value() -> None:
    text = ",[{" * 300_000

    [item] = parse(json.dumps({"text": text}).encode())

    assert item.fields == {"text": text}


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b"[" + b"1," * VALUES_MAX + b"1]", JSON),
        (b'{"a":[' + b"[]," * VALUES_MAX + b"1]}", JSON),
        (b'[{"a":[' + b"[]," * VALUES_MAX + b"1]}]", JSON),
        (b'{"a":[' + b"1," * VALUES_MAX + b"1]}", NDJSON),
        ((b'{"a":[' + b"1," * 180_000 + b"1]}\n") * (BATCH_VALUES_MAX // 180_000 + 1), NDJSON),
        (b"[" + b",".join([b'{"a":[' + b"1," * 180_000 + b"1]}"] * 6) + b"]", JSON),
        (b"{}\n" * (ITEMS_MAX + 1), NDJSON),
        (b"[" + b"{}," * ITEMS_MAX + b"{}]", JSON),
        (b"\n" * (VALUES_MAX + 1), NDJSON),
    ],
)
def test_too_many_values_are_refused(body: bytes, media_type: str) -> None:
    with pytest.raises((HTTPException, InvalidItemError)) as refused:
        parse(body, media_type)

    if isinstance(refused.value, HTTPException):
        assert refused.value.status_code == 413
        assert "more than" in refused.value.detail


@pytest.mark.parametrize("body", [b"[" * 20_000_000, b'[{"a":' * 4_000_000, b'{"a":' * 4_000_000])
def test_deep_nesting_is_refused_at_once(body: bytes) -> None:
    began = time.process_time()

    with pytest.raises((InvalidEventError, HTTPException)):
        parse(body)

    assert time.process_time() - began < 5


def test_the_limit_of_depth_is_exact() -> None:
    def deep(levels: int) -> bytes:
        return b'{"a":' + b"[" * (levels - 1) + b"1" + b"]" * (levels - 1) + b"}"

    assert not is_too_deep(deep(DEPTH_MAX))
    assert is_too_deep(deep(DEPTH_MAX + 1))
    assert not is_too_deep(b"[" + b",".join([deep(DEPTH_MAX - 1)] * 1000) + b"]")
    parse(deep(DEPTH_MAX))
    with pytest.raises(InvalidEventError, match="deeper than 160 levels"):
        parse(deep(DEPTH_MAX + 1))


def test_every_body_is_read_up_to_a_limit() -> None:
    app = build_app(Settings())

    unlimited = [
        route.path
        for route in app.routes
        if isinstance(route, APIRoute) and route.body_field is not None and not isinstance(route, JsonRoute)
    ]

    assert unlimited == []
