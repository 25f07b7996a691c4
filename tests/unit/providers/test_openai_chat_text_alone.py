"""Chunks that hold a text alone are recorded on a shorter way, with the same events."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.types.chat import ChatCompletionChunk
from tests.records import modest

from runfold_projections.providers import openai_chat_recording
from runfold_projections.providers.openai_chat_recording import ChatRecorder, text_alone
from runfold_schemas.data import Data

deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": st.sampled_from(["", "a", "b c", None, [{"type": "text", "text": "x"}]]),
        "role": st.sampled_from(["assistant", None]),
        "refusal": st.sampled_from(["no", None, ""]),
        "reasoning_content": st.sampled_from(["hm", None]),
        "tool_calls": st.just([{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]),
        "extra": st.sampled_from(["x", None]),
    },
)
choices = st.fixed_dictionaries(
    {"delta": deltas | st.none()},
    optional={
        "index": st.sampled_from([0, 0, 0, 1, None]),
        "finish_reason": st.sampled_from([None, None, None, "stop", ""]),
        "logprobs": st.sampled_from([None, {"content": [{"token": "a"}]}]),
        "more": st.sampled_from([None, 1]),
    },
)
streams = st.lists(
    st.fixed_dictionaries(
        {"choices": st.lists(choices, min_size=1, max_size=2) | st.just([])},
        optional={
            "id": st.sampled_from(["r", ""]),
            "model": st.just("m"),
            "usage": st.sampled_from([None, {"prompt_tokens": 3, "completion_tokens": 4}]),
            "service_tier": st.just("default"),
            "citations": st.just(["https://a.example"]),
        },
    ),
    max_size=8,
)


def events(chunks: list[Any]) -> list[Data]:
    recorder = ChatRecorder({})
    recorded = [data for chunk in chunks for data in recorder.feed(chunk)]
    return [*recorded, *recorder.blocks.partial(), *recorder.blocks.end()]


def chunk_of(**delta: Any) -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


@modest
@given(streams, st.booleans())
def test_the_shorter_way_records_the_same(stream, as_objects):
    begun = [chunk_of(content="begin "), *stream]
    chunks = (
        [construct_type(type_=ChatCompletionChunk, value=each) for each in begun] if as_objects else begun
    )

    with patch.object(openai_chat_recording, "text_alone", lambda _: None):
        expected = events(chunks)

    assert events(chunks) == expected


@pytest.mark.parametrize("as_object", [False, True])
def test_a_text_alone_takes_the_shorter_way(as_object):
    given_chunk: Any = chunk_of(content="hello")
    chunk = construct_type(type_=ChatCompletionChunk, value=given_chunk) if as_object else given_chunk

    assert text_alone(chunk) == "hello"


def test_an_object_may_compute_its_usage():
    class Computing(SimpleNamespace):
        @property
        def usage(self) -> dict[str, int]:
            return {"prompt_tokens": 3, "completion_tokens": 4}

    choice = SimpleNamespace(index=0, delta=SimpleNamespace(content="x"), finish_reason=None)

    assert text_alone(Computing(id="r", choices=[choice])) is None
