"""The counts of tokens mean the same, whichever provider counted them.

The responses have the forms of the official packages' types.
"""

from typing import Any

import pytest
from anthropic.types.beta import BetaMessage
from google.genai import types as google
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from runfold_projections.providers.anthropic_recording import AnthropicRecorder
from runfold_projections.providers.bedrock_recording import BedrockRecorder
from runfold_projections.providers.gemini_recording import GeminiRecorder
from runfold_projections.providers.openai_chat_recording import ChatRecorder
from runfold_projections.providers.openai_responses_recording import ResponsesRecorder
from runfold_projections.providers.recording import Recorder
from runfold_projections.providers.token_counts import UsageReader
from runfold_schemas.messages import Provider
from runfold_schemas.usage import TokenUsage

# One prompt of 1,210 tokens, of which 1,000 were read from a cache and 200 written to one, and an
# answer of 50 tokens, of which 30 are reasoning.

ANTHROPIC: dict[str, Any] = {
    "input_tokens": 10,
    "cache_read_input_tokens": 1000,
    "cache_creation_input_tokens": 200,
    "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 150},
    "output_tokens": 50,
    "output_tokens_details": {"thinking_tokens": 30},
    "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
    "service_tier": "standard",
}
BEDROCK: dict[str, Any] = {
    "inputTokens": 10,
    "cacheReadInputTokens": 1000,
    "cacheWriteInputTokens": 200,
    "cacheDetails": [{"ttl": "1h", "inputTokens": 150}, {"ttl": "5m", "inputTokens": 50}],
    "outputTokens": 50,
    "totalTokens": 1260,
}
CHAT: dict[str, Any] = {
    "prompt_tokens": 1210,
    "completion_tokens": 50,
    "total_tokens": 1260,
    "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 200, "audio_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 30, "audio_tokens": 6},
}
RESPONSES: dict[str, Any] = {
    "input_tokens": 1210,
    "input_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 200},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 30},
    "total_tokens": 1260,
}
GEMINI: dict[str, Any] = {
    "promptTokenCount": 1200,
    "toolUsePromptTokenCount": 10,
    "cachedContentTokenCount": 1000,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30,
    "totalTokenCount": 1260,
    "promptTokensDetails": [
        {"modality": "TEXT", "tokenCount": 1192},
        {"modality": "AUDIO", "tokenCount": 8},
    ],
    "candidatesTokensDetails": [{"modality": "AUDIO", "tokenCount": 6}],
}

SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}

WHOLE: dict[Provider, Any] = {
    "anthropic": {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": ANTHROPIC,
    },
    "bedrock": {
        "output": {"message": {"role": "assistant", "content": []}},
        "stopReason": "end_turn",
        "usage": BEDROCK,
        "trace": {"promptRouter": {"invokedModelId": "m"}},
    },
    "openai-chat": {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}],
        "usage": CHAT,
    },
    "openai-responses": {
        "id": "r-1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [SEARCH, {**SEARCH, "id": "ws_2"}],
        "usage": RESPONSES,
    },
    "gemini": {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": "a"}]},
                "finishReason": "STOP",
                "groundingMetadata": {"webSearchQueries": ["a", "b", ""]},
            }
        ],
        "modelVersion": "m",
        "usageMetadata": GEMINI,
    },
}

SAME = {"model": "m", "input_tokens": 1210, "output_tokens": 50, "cache_read_tokens": 1000}
WRITTEN = {"cache_write_tokens": 200}
HOUR = {"cache_write_1h_tokens": 150}
REASONING = {"reasoning_tokens": 30}
AUDIO = {"input_audio_tokens": 8, "output_audio_tokens": 6}
SEARCHES = {"server_tool_requests": {"web_search": 2}}

EXPECTED: dict[Provider, dict[str, Any]] = {
    "anthropic": {**SAME, **WRITTEN, **HOUR, **REASONING, **SEARCHES, "input_includes_cache": True},
    "bedrock": {**SAME, **WRITTEN, **HOUR, "input_includes_cache": True},
    "openai-chat": {**SAME, **WRITTEN, **REASONING, **AUDIO},
    "openai-responses": {**SAME, **WRITTEN, **REASONING, **SEARCHES},
    "gemini": {**SAME, **REASONING, **AUDIO, **SEARCHES},
}


def recorder_of(provider: Provider) -> Recorder:
    recorders: dict[Provider, Any] = {
        "anthropic": AnthropicRecorder,
        "bedrock": BedrockRecorder,
        "openai-chat": ChatRecorder,
        "openai-responses": ResponsesRecorder,
        "gemini": GeminiRecorder,
    }
    return recorders[provider]({})


def usage_of(events: Any) -> TokenUsage:
    (usage,) = (data for data in events if isinstance(data, TokenUsage))
    return usage


@pytest.mark.parametrize("provider", EXPECTED)
def test_one_prompt_counts_the_same_whichever_provider_answered(provider: Provider):
    usage = usage_of(recorder_of(provider).response(WHOLE[provider]))

    assert usage.model_dump(exclude_unset=True) == EXPECTED[provider]


@pytest.mark.parametrize(
    ("provider", "response"),
    [
        ("anthropic", BetaMessage.model_validate(WHOLE["anthropic"])),
        ("openai-chat", ChatCompletion.model_validate(WHOLE["openai-chat"])),
        ("openai-responses", Response.construct(**WHOLE["openai-responses"])),
        ("gemini", google.GenerateContentResponse.model_validate(WHOLE["gemini"])),
    ],
)
def test_objects_of_the_official_packages_count_as_their_json(provider: Provider, response: Any):
    usage = usage_of(recorder_of(provider).response(response))

    assert usage.model_dump(exclude_unset=True) == EXPECTED[provider]


STREAMS: dict[Provider, list[Any]] = {
    "anthropic": [
        {
            "type": "message_start",
            "message": {**WHOLE["anthropic"], "usage": {**ANTHROPIC, "output_tokens": 1}},
        },
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 50, "cache_read_input_tokens": None},
        },
        {"type": "message_stop"},
    ],
    "bedrock": [
        {"messageStart": {"role": "assistant"}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": BEDROCK, "trace": WHOLE["bedrock"]["trace"]}},
    ],
    "openai-chat": [
        {
            "id": "c-1",
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1210, "completion_tokens": 1, "total_tokens": 1211},
        },
        {"id": "c-1", "model": "m", "choices": [], "usage": CHAT},
    ],
    "openai-responses": [
        {"type": "response.created", "response": {"id": "r-1", "model": "m"}},
        {"type": "response.completed", "response": WHOLE["openai-responses"]},
    ],
    "gemini": [
        {"modelVersion": "m", "usageMetadata": {"promptTokenCount": 7, "thoughtsTokenCount": 3}},
        WHOLE["gemini"],
    ],
}


@pytest.mark.parametrize("provider", EXPECTED)
def test_a_stream_counts_as_the_whole_response(provider: Provider):
    recorder = recorder_of(provider)

    events = [data for chunk in STREAMS[provider] for data in recorder.feed(chunk)]
    usage = usage_of([*events, *recorder.blocks.end()])

    assert usage.model_dump(exclude_unset=True) == EXPECTED[provider]


def test_a_stream_that_broke_off_counts_what_it_had_said():
    recorder = recorder_of("anthropic")
    recorder.feed(STREAMS["anthropic"][0])

    usage = usage_of(recorder.blocks.end(finished=False))

    assert (usage.input_tokens, usage.output_tokens) == (1210, 1)


def counted(provider: Provider, usage: Any) -> dict[str, Any]:
    counter = UsageReader(provider)
    counter.take(usage)
    return counter.counts()


def test_the_final_counts_of_an_anthropic_stream_replace_those_of_its_beginning():
    """With server tools, the input grows while the model answers."""
    counter = UsageReader("anthropic")

    counter.take({"input_tokens": 10, "cache_read_input_tokens": 0, "output_tokens": 1})
    counter.take(
        {"input_tokens": 25, "cache_read_input_tokens": 40, "output_tokens": 9, "server_tool_use": None}
    )

    assert counter.counts() == {
        "input_tokens": 65,
        "output_tokens": 9,
        "cache_read_tokens": 40,
        "input_includes_cache": True,
    }


def test_further_calls_of_models_are_events_of_their_own():
    """Anthropic's own counts leave out the request for a summary and the advisor, which may be
    another model. They have the other iterations.
    """
    tokens = {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 5}
    iterations = [
        {"type": "compaction", "cache_creation_input_tokens": 0, **tokens},
        {"type": "message", "cache_creation_input_tokens": 0, **tokens},
        {"type": "advisor_message", "model": "claude-opus", "cache_creation_input_tokens": 0, **tokens},
        {"type": "fallback_message", "model": "other", "cache_creation_input_tokens": 0, **tokens},
        {"type": ["compaction"]},
    ]
    usage = {"input_tokens": 7, "output_tokens": 3, "iterations": iterations}

    for response in (
        {**WHOLE["anthropic"], "usage": usage},
        BetaMessage.construct(**{**WHOLE["anthropic"], "usage": usage}),
    ):
        calls = [
            (data.model, data.input_tokens, data.output_tokens)
            for data in AnthropicRecorder({}).response(response)
            if isinstance(data, TokenUsage)
        ]

        assert calls == [("m", 105, 20), ("claude-opus", 105, 20), ("m", 7, 3)]


def test_reasoning_beside_the_answer_is_counted_with_the_answer():
    """The total says whether the server counts reasoning within the answer, as OpenAI does, or
    beside the answer, as xAI does.
    """
    within = {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}
    beside = {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 30}
    details = {"completion_tokens_details": {"reasoning_tokens": 3}}

    assert counted("openai-chat", {**within, **details})["output_tokens"] == 7
    assert counted("openai-chat", {**beside, **details})["output_tokens"] == 10


@pytest.mark.parametrize("name", ["prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens"])
def test_cached_tokens_are_found_where_other_servers_put_them(name: str):
    counts = counted("openai-chat", {"prompt_tokens": 20, "completion_tokens": 7, name: 15})

    assert counts == {"input_tokens": 20, "output_tokens": 7, "cache_read_tokens": 15}


def test_no_usage_is_no_event_and_a_count_of_zero_is_one():
    assert counted("openai-chat", {"queue_time": 0.5}) == {}
    assert counted("openai-chat", {"prompt_tokens": 0}) == {"input_tokens": 0}
    assert counted("openai-chat", {"prompt_tokens": -1, "completion_tokens": True}) == {}


numbers = st.integers(0, 2**64) | st.none() | st.booleans() | st.text(max_size=2) | st.floats()
wild = st.recursive(
    numbers,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *ANTHROPIC, *BEDROCK, *CHAT, *RESPONSES, *GEMINI, "iterations", "type", "modality",
                    "web_search_requests", "ephemeral_1h_input_tokens", "thinking_tokens", "ttl",
                    "cached_tokens", "audio_tokens", "reasoning_tokens", "output",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.sampled_from(sorted(EXPECTED)), st.lists(wild, max_size=3))
def test_any_counts_can_be_published(provider: Any, usages: list[Any]):
    counter = UsageReader(provider)
    for usage in usages:
        counter.take(usage)

    for counts in [counter.counts(), *counter.further_calls()]:
        counts.pop("model", None)
        assert TokenUsage.model_validate(counts, strict=True).model_dump(exclude_unset=True) == counts
