"""Chunks of Gemini that hold a text alone are recorded on a shorter way, with the same events."""

from typing import Any
from unittest.mock import patch

import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from tests.gemini import streamed
from tests.records import modest

from runfold_projections.providers import gemini_recording
from runfold_projections.providers.gemini_recording import text_alone

parts = st.fixed_dictionaries(
    {},
    optional={
        "text": st.sampled_from(["", "a", "b c", None]),
        "thought": st.sampled_from([True, False, None]),
        "thoughtSignature": st.sampled_from(["c2ln", None]),
        "functionCall": st.just({"name": "f", "args": {"x": 1}}),
        "inlineData": st.just({"mimeType": "image/png", "data": "aGk="}),
    },
)
candidates = st.fixed_dictionaries(
    {
        "content": st.none()
        | st.fixed_dictionaries({"parts": st.lists(parts, max_size=2)}, optional={"role": st.just("model")})
    },
    optional={
        "index": st.sampled_from([0, 0, 0, 1, None]),
        "finishReason": st.sampled_from([None, None, "STOP", "MAX_TOKENS"]),
        "finishMessage": st.just("too long"),
        "citationMetadata": st.just({"citations": [{"uri": "https://a.example", "startIndex": 0}]}),
    },
)
counts = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(0, 9) | st.none()
        for name in ("promptTokenCount", "totalTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    },
)
streams = st.lists(
    st.fixed_dictionaries(
        {"candidates": st.lists(candidates, max_size=2)},
        optional={
            "responseId": st.sampled_from(["r", "other"]),
            "modelVersion": st.just("m"),
            "usageMetadata": counts,
            "promptFeedback": st.just({"blockReason": "SAFETY"}),
        },
    ),
    max_size=8,
)


def chunk_of(*texts: str) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": [{"text": text} for text in texts]}, "index": 0}
    return {"candidates": [candidate], "modelVersion": "m", "responseId": "r"}


@modest
@given(streams, st.booleans(), st.booleans())
def test_the_shorter_way_records_the_same(stream: list[Any], as_objects: bool, finished: bool):
    begun = [chunk_of("begin "), *stream]
    chunks: list[Any] = (
        list(map(types.GenerateContentResponse.model_validate, begun)) if as_objects else begun
    )

    with patch.object(gemini_recording, "text_alone", lambda _: None):
        expected = streamed(chunks, finished=finished)

    assert streamed(chunks, finished=finished) == expected


@pytest.mark.parametrize("as_object", [False, True])
def test_a_text_alone_takes_the_shorter_way(as_object: bool):
    fields = chunk_of("hello") | {"usageMetadata": {"promptTokenCount": 3}}
    chunk: Any = types.GenerateContentResponse.model_validate(fields) if as_object else fields

    assert text_alone(chunk) == "hello"


@pytest.mark.parametrize("as_object", [False, True])
def test_two_texts_take_the_longer_way(as_object: bool):
    fields = chunk_of("hello", "again")
    chunk: Any = types.GenerateContentResponse.model_validate(fields) if as_object else fields

    assert text_alone(chunk) is None
