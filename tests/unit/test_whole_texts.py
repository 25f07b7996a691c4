"""Texts without halves of surrogate pairs."""

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event

from runfold_schemas.codec import decode, encode, whole_event
from runfold_schemas.events import ToolCall
from runfold_schemas.whole_texts import whole, whole_value

texts = st.text(st.characters(codec=None) | st.sampled_from("\ud83d\ude00\udfff"), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@given(texts)
def test_a_text_becomes_what_utf_8_can_carry_and_stays_if_it_could_before(text: str):
    mended = whole(text)

    mended.encode()
    assert whole(mended) == mended
    assert len(mended) <= len(text)
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert mended == text


@given(values)
def test_a_value_is_mended_as_its_json_in_utf_16_would_be(value: object):
    assert whole_value(value) == whole_value(json.loads(json.dumps(value)))
    json.dumps(whole_value(value), ensure_ascii=False).encode()


@given(values)
def test_an_event_is_the_same_object_unless_a_text_was_cut(value: object):
    one = event(ToolCall(tool_call_id="c", tool_name="t", payload=value))

    mended = whole_event(one)

    assert decode(encode(mended)).data.payload == whole_value(value)
    assert (mended is one) == (whole_value(value) == value)
    assert mended.event_id == one.event_id
