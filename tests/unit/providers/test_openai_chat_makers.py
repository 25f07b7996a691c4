"""Chat Completions of makers other than OpenAI: their forms of reasoning, and what they put beside
the message. Streams give the same as whole responses.
"""

from typing import Any

import pytest
from tests.openai_ledgers import ledger_of

from runfold_projections.providers import encode, recorder
from runfold_schemas.data import Data
from runfold_schemas.events import AssistantMessage, ResponseRecorded, Thinking
from runfold_schemas.messages import Citation, TextPart, ThinkingPart

Chat = dict[str, Any]


def completion(message: Chat, **members: Any) -> Chat:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"id": "c-1", "choices": [choice], **members}


def stream(*deltas: Chat, **members: Any) -> list[Chat]:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return [{"id": "c-1", "choices": [choice], **members} for choice in [*choices, end]]


def record(response: Any) -> list[Data]:
    recording = recorder("openai-chat")
    if not isinstance(response, list):
        return list(recording.response(response))
    events = [data for chunk in response for data in (*recording.feed(chunk), *recording.blocks.partial())]
    return [*events, *recording.blocks.end()]


def again(response: Any, **options: Any) -> Chat:
    (message,) = encode(ledger_of(record(response), "openai-chat"), "openai-chat", **options).body["messages"]
    return message


def beside(response: Any) -> Any:
    last = record(response)[-1]
    assert isinstance(last, ResponseRecorded)
    assert last.faults == ()
    return (last.provider_data or {}).get("openai-chat")


def thought(text: str, **members: Any) -> Chat:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}], **members}


DETAILS = [
    {"type": "reasoning.summary", "summary": "I count.", "index": 0, "format": "openai-responses-v1"},
    {"type": "reasoning.encrypted", "data": "abcd", "id": "rs_1", "index": 0},
    {"type": "reasoning.text", "text": "2 + 2", "signature": "c2ln", "index": 1},
]


@pytest.mark.parametrize(
    ("message", "deltas"),
    [
        pytest.param(
            {"reasoning_content": "2 + 2", "content": "4."},
            [{"reasoning_content": "2 +"}, {"reasoning_content": " 2"}, {"content": "4"}, {"content": "."}],
            id="deepseek",
        ),
        pytest.param(
            {"reasoning": "2 + 2", "reasoning_details": DETAILS, "content": "4."},
            [
                {
                    "reasoning": "2 +",
                    "reasoning_details": [{**DETAILS[0], "summary": "I "}, {**DETAILS[2], "text": "2 +"}],
                },
                {"reasoning_details": [{"type": "reasoning.summary", "summary": "count.", "index": 0}]},
                {"reasoning_details": [{**DETAILS[1]}]},
                {
                    "reasoning": " 2",
                    "reasoning_details": [{"type": "reasoning.text", "text": " 2", "index": 1}],
                },
                {"content": "4"},
                {
                    "reasoning_details": [{"type": "reasoning.text", "signature": None, "index": 1}],
                    "content": ".",
                },
            ],
            id="openrouter",
        ),
        pytest.param(
            {
                "reasoning_content": "2 + 2",
                "thinking_blocks": [
                    {"type": "thinking", "thinking": "2 + 2", "signature": "c2ln"},
                    {"type": "thinking", "thinking": "so 4", "signature": "c2lo"},
                    {"type": "redacted_thinking", "data": "abcd"},
                ],
                "content": "4.",
            },
            [
                {
                    "reasoning_content": "2 +",
                    "thinking_blocks": [{"type": "thinking", "thinking": "2 +", "signature": ""}],
                },
                {"reasoning_content": " 2", "thinking_blocks": [{"type": "thinking", "thinking": " 2"}]},
                {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "c2ln"}]},
                {"thinking_blocks": [{"type": "thinking", "thinking": "so 4"}]},
                {"thinking_blocks": [{"type": "thinking", "signature": "c2lo"}]},
                {"thinking_blocks": [{"type": "redacted_thinking", "data": "abcd"}]},
                {"content": "4."},
            ],
            id="litellm",
        ),
        pytest.param(
            {"content": [thought("2 + 2", closed=True), {"type": "text", "text": "4."}]},
            [
                {"content": [thought("2 +", closed=True)]},
                {"content": [thought(" 2", closed=True)]},
                {"content": "4"},
                {"content": "."},
            ],
            id="mistral",
        ),
        pytest.param(
            {
                "content": [
                    thought("2"),
                    {"type": "text", "text": "4"},
                    thought("3"),
                    {"type": "text", "text": "."},
                ]
            },
            [{"content": [thought("2")]}, {"content": "4"}, {"content": [thought("3")]}, {"content": "."}],
            id="mistral-by-turns",
        ),
    ],
)
def test_reasoning_goes_back_as_it_came(message: Chat, deltas: list[Chat]):
    expected = {"role": "assistant", **message}
    streamed = again(stream(*deltas))
    details = "reasoning_details"
    if details in expected:
        # The order of items of one index is that of their first pieces.
        assert sorted(streamed[details], key=str) == sorted(expected[details], key=str)
        streamed[details] = expected[details]

    assert again(completion(message)) == expected
    assert streamed == expected


@pytest.mark.parametrize(
    "message",
    [
        {"content": "4", "reasoning_content": "2 + 2"},
        {"content": "4", "reasoning": "2 + 2", "reasoning_details": DETAILS},
        {
            "content": "4",
            "reasoning_content": "2",
            "thinking_blocks": [{"type": "thinking", "thinking": "2"}],
        },
        {"content": [thought("2 + 2"), {"type": "text", "text": "4"}]},
        {"content": "4", "reasoning_details": DETAILS},
    ],
)
def test_no_form_of_reasoning_goes_back_if_thinking_is_left_out(message: Chat):
    assert again(completion(message), with_thinking=False) == {"role": "assistant", "content": "4"}


def test_thoughts_of_mistral_are_one_thinking_and_no_part_of_the_text():
    chunks = stream(*({"content": [thought(piece)]} for piece in "abc"), {"content": "4"}, {"content": "."})

    events = record(chunks)

    assert [type(event) for event in events] == [
        Thinking,
        AssistantMessage,
        AssistantMessage,
        ResponseRecorded,
    ]
    (message,) = ledger_of(events, "openai-chat")
    thinking, text = message.parts
    assert isinstance(thinking, ThinkingPart)
    assert isinstance(text, TextPart)
    assert (thinking.text, text.text) == ("abc", "4.")


def test_a_thought_with_references_goes_back_unchanged():
    mixed = {"type": "thinking", "thinking": [{"type": "text", "text": "x"}, {"type": "reference"}]}

    message = {"content": [mixed, {"type": "text", "text": "4"}]}

    assert again(completion(message)) == {"role": "assistant", **message}


@pytest.mark.parametrize("streams", [False, True])
def test_what_stands_beside_the_message_is_kept_and_is_no_fault(streams: bool):
    members = {
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "citations": ["https://a.example/"],
        "search_results": [{"title": "A", "url": "https://a.example/", "date": None}],
        "provider": "Perplexity",
        "usage": None,
        "warning": "",
    }

    kept = beside(stream({"content": "4"}, **members) if streams else completion({"content": "4"}, **members))

    assert kept == {name: value for name, value in members.items() if value}


@pytest.mark.parametrize("streams", [False, True])
def test_what_a_usage_has_beside_its_counts_is_kept(streams: bool):
    # OpenRouter's and OpenAI's members.
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "total_tokens": 30,
        "cost": 0.00014,
        "is_byok": False,
        "cost_details": {"upstream_inference_cost": None, "upstream_inference_prompt_cost": 0.0001},
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0, "video_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 7, "accepted_prediction_tokens": 5},
    }
    response: Any = completion({"content": "4"}, usage=usage)
    if streams:
        response = [*stream({"content": "4"}), {"id": "c-1", "choices": [], "usage": usage}]

    assert beside(response) == {
        "usage": {
            "cost": 0.00014,
            "cost_details": {"upstream_inference_cost": None, "upstream_inference_prompt_cost": 0.0001},
            "prompt_tokens_details": {"video_tokens": 3},
            "completion_tokens_details": {"accepted_prediction_tokens": 5},
        }
    }


@pytest.mark.parametrize(
    ("members", "citation"),
    [
        ({"citations": ["https://a.example/"]}, Citation(url="https://a.example/")),
        (
            {
                "citations": ["https://a.example/"],
                "search_results": [{"title": "A", "url": "https://a.example/"}],
            },
            Citation(url="https://a.example/", title="A"),
        ),
    ],
)
def test_sources_beside_the_message_are_citations_of_its_text(members: Chat, citation: Citation):
    for response in (completion({"content": "4"}, **members), stream({"content": "4"}, **members)):
        (message,) = ledger_of(record(response), "openai-chat")
        (part,) = message.parts
        assert isinstance(part, TextPart)
        assert part.citations == (citation,)


def test_log_probabilities_of_a_stream_are_joined():
    chunks = stream({"content": "a"}, {"content": "b"})
    for number, chunk in enumerate(chunks[:2]):
        chunk["choices"][0]["logprobs"] = {
            "content": [{"token": "ab"[number], "logprob": -1}],
            "refusal": None,
        }

    assert beside(chunks) == {
        "logprobs": {"content": [{"token": "a", "logprob": -1}, {"token": "b", "logprob": -1}]}
    }


def test_what_is_too_large_for_an_event_is_a_fault():
    tokens = [{"token": "x" * 100, "logprob": -1}] * 10_000

    last = record({**completion({"content": "x"}), "prompt_logprobs": tokens, "provider": "x"})[-1]

    assert isinstance(last, ResponseRecorded)
    assert last.provider_data == {"openai-chat": {"provider": "x"}}
    assert last.faults == ("prompt_logprobs has more than 1048576 bytes and is not kept",)


def test_further_choices_of_a_stream_are_joined():
    chunks = stream({"content": "first"})
    further = [
        {"index": 1, "delta": {"role": "assistant", "content": "sec"}, "finish_reason": None},
        {"index": 2, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{"}}]}},
        {"index": 1, "delta": {"content": "ond"}, "finish_reason": "stop"},
        {"index": 2, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}},
    ]

    assert beside([{"choices": [choice]} for choice in further] + chunks) == {
        "choices": [
            {"index": 1, "message": {"role": "assistant", "content": "second"}, "finish_reason": "stop"},
            {
                "index": 2,
                "message": {"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]},
            },
        ]
    }
    (message,) = ledger_of(record([{"choices": [choice]} for choice in further] + chunks), "openai-chat")
    assert [part.text for part in message.parts if isinstance(part, TextPart)] == ["first"]


def test_annotations_behind_the_text_are_kept():
    late = {"choices": [{"index": 0, "delta": {"annotations": [{"type": "x"}]}, "finish_reason": "stop"}]}

    assert beside([*stream({"content": "4"}), late]) == {"annotations": [{"type": "x"}]}


def test_halves_of_a_character_in_two_deltas_are_one_in_every_member():
    def halves(*names: str) -> list[Chat]:
        return [{name: half} for name in names for half in ("\ud83d", "\ude42")]

    chunks = stream(
        *halves("reasoning_content", "content", "vendor"),
        *({"reasoning_details": [{"text": half, "index": 0}]} for half in ("\ud83d", "\ude42")),
    )

    assert again(chunks) == {
        "role": "assistant",
        "reasoning_content": "🙂",
        "content": "🙂",
        "vendor": "🙂",
        "reasoning_details": [{"text": "🙂", "index": 0}],
    }


@pytest.mark.parametrize("model", ["deepseek-v4-pro", "deepseek/deepseek-v4-flash"])
def test_each_message_of_the_assistant_has_reasoning_for_models_that_ask_for_it(model: str):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    thinking = {"content": None, "reasoning_content": "Look first.", "tool_calls": [call]}

    assert again(completion({"content": "4"}), model=model)["reasoning_content"] == " "
    assert again(completion(thinking), model=model)["reasoning_content"] == "Look first."
    assert again(completion(thinking), model=model, with_thinking=False)["reasoning_content"] == " "
    assert "reasoning_content" not in again(completion({"content": "4"}), model="deepseek-v3.2")
