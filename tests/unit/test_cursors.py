"""Cursors: reading one gives what was written, and any other text is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from runfold_schemas.cursors import decode_cursor, decode_offset, encode_cursor, encode_offset
from runfold_schemas.errors import InvalidEventError

_PAIR = TypeAdapter[tuple[int, str]](tuple[int, str])


@given(st.integers(), st.text())
def test_a_cursor_gives_the_values_that_were_written(time: int, name: str):
    assert decode_cursor(encode_cursor(time, name), _PAIR) == (time, name)


@given(st.integers(min_value=0, max_value=10**18 - 1))
def test_a_cursor_of_an_offset_gives_the_offset(offset: int):
    assert decode_offset(encode_offset(offset)) == offset


@pytest.mark.parametrize("text", ["", "x", "x!", "e30=", "W10=", "\u00e9", "\ud800", "bm8ganNvbg=="])
def test_another_text_is_refused_as_a_cursor(text: str):
    with pytest.raises(InvalidEventError, match="cursor"):
        decode_cursor(text, _PAIR)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "\u0663", "1" * 19, " 1"])
def test_another_text_is_refused_as_a_cursor_of_an_offset(text: str):
    with pytest.raises(InvalidEventError, match="cursor"):
        decode_offset(text)


@pytest.mark.parametrize("values", [(), (1,), (1, "a", 2), ("a", 1)])
def test_a_cursor_of_another_list_is_refused(values: tuple[object, ...]):
    with pytest.raises(InvalidEventError, match="cursor"):
        decode_cursor(encode_cursor(*values), _PAIR)
