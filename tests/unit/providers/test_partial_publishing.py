"""A growing text is published while its stream goes on. What is published so early changes neither
the ledger nor the next request.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.openai_ledgers import ledger_of

from runfold_projections.providers import encode, recorder
from runfold_schemas.data import Data
from runfold_schemas.events import AssistantMessage
from runfold_schemas.messages import Message, Provider, TextPart

Chunks = list[dict[str, Any]]

# The face is two halves of a surrogate pair, which some servers put into two chunks.
PIECES = ["I lo", "ok\ud83d", "\ude42", " for it", "\ud83d", " \n"]


def chat(*deltas: dict[str, Any], finish_reason: str | None = "stop") -> Chunks:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    end = {"index": 0, "delta": {}, "finish_reason": finish_reason}
    return [{"id": "c-1", "choices": [choice]} for choice in [*choices, end]]


def chat_call(index: int, arguments: str, **begun: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": "look"} if begun else {})}
    return {"tool_calls": [{"index": index, "function": function, **begun}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


CHAT = {
    "reasoning, then text": chat(
        {"reasoning_content": "h"}, {"reasoning_content": "m"}, *({"content": piece} for piece in PIECES)
    ),
    "reasoning and text in one delta": chat(
        {"content": "I ", "reasoning_content": "h"}, {"content": "look"}, {"content": "."}
    ),
    "reasoning between text": chat(
        {"content": "I "},
        {"reasoning": "h"},
        {"content": "look"},
        {"reasoning": "m", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0}]},
        {"content": "."},
    ),
    "calls before and between text": chat(
        chat_call(0, "{", id="a"),
        {"content": "I "},
        chat_call(1, "{}", id="b"),
        {"content": "look"},
        chat_call(0, "}"),
    ),
    "text, refusal and calls": chat(
        {"content": "I "},
        {"refusal": "must "},
        {"content": "look"},
        {"refusal": "not"},
        chat_call(0, "{}", id="a"),
    ),
    "thoughts of Mistral": chat(
        {"content": [thought("h")]}, {"content": [thought("m")]}, {"content": "I "}, {"content": "look"}
    ),
    "Mistral's list": chat(
        {"content": [{"type": "text", "text": "I "}]},
        {"content": [{"type": "reference", "reference_ids": [1]}]},
        {"content": [{"type": "text", "text": "look"}]},
        {"content": "."},
    ),
    "speech and text": chat(
        {"audio": {"id": "a", "transcript": "I "}}, {"content": "x"}, {"audio": {"transcript": "look"}}
    ),
    "annotations": chat(
        {"content": "I "}, {"annotations": [{"type": "x"}], "vendor": 1}, {"content": "look"}
    ),
}


def output(index: int, item: dict[str, Any], *deltas: dict[str, Any]) -> Chunks:
    """The events of an item."""
    return [
        {"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}},
        *({"output_index": index, **delta} for delta in deltas),
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def delta(content_index: int, text: str, kind: str = "output_text") -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "content_index": content_index, "delta": text}


def said(item_id: str, *texts: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": content}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "look", "arguments": "{}"}
COMPLETED = {"type": "response.completed", "response": {"status": "completed", "output": []}}

MESSAGE = output(1, said("msg_1", "I look", "."), delta(0, "I "), delta(0, "look"), delta(1, "."))
SECOND = output(2, said("msg_2", "No", "w"), delta(0, "N"), delta(1, "w"), delta(0, "o"))
CALLED = output(3, CALL, {"type": "response.function_call_arguments.delta", "delta": "{}"})
THOUGHT = output(
    0, REASONING, {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "hm"}
)

RESPONSES = {
    "a message of two parts": [*THOUGHT, *MESSAGE, *CALLED, COMPLETED],
    "parts by turns": [*SECOND, COMPLETED],
    "items by turns": [
        *(chunk for pair in zip(SECOND, MESSAGE, strict=True) for chunk in pair),
        *CALLED,
        COMPLETED,
    ],
    "a call within a message": [*MESSAGE[:3], *CALLED, *MESSAGE[3:], *THOUGHT, COMPLETED],
    "no item is done": [*MESSAGE[:-1], *SECOND[:-1], COMPLETED],
}


def anthropic_block(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> Chunks:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


BLOCKS = [
    anthropic_block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "abcd"},
    ),
    anthropic_block(
        1, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in PIECES)
    ),
    anthropic_block(
        2,
        {"type": "tool_use", "id": "a", "name": "look", "input": {}},
        {"type": "input_json_delta", "partial_json": "{}"},
    ),
    anthropic_block(
        3,
        {"type": "text", "text": "", "citations": []},
        {"type": "text_delta", "text": "As "},
        {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "x"}},
        {"type": "text_delta", "text": "A says"},
    ),
]
ENDED: Chunks = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]

ANTHROPIC = {
    "block after block": [*(chunk for block in BLOCKS for chunk in block), *ENDED],
    "blocks by turns": [
        *(chunk for chunks in zip(*(block[:2] for block in BLOCKS), strict=True) for chunk in chunks),
        *(chunk for block in reversed(BLOCKS) for chunk in block[2:]),
        *ENDED,
    ],
}


def converse(name: str, index: int, **event: Any) -> dict[str, Any]:
    return {name: {"contentBlockIndex": index, **event}}


def converse_delta(index: int, **delta: Any) -> dict[str, Any]:
    return converse("contentBlockDelta", index, delta=delta)


TEXT = [converse_delta(1, text=piece) for piece in PIECES]

BEDROCK = {
    "block after block": [
        {"messageStart": {"role": "assistant"}},
        converse_delta(0, reasoningContent={"text": "hm"}),
        converse_delta(0, reasoningContent={"signature": "abcd"}),
        converse("contentBlockStop", 0),
        *TEXT,
        converse("contentBlockStop", 1),
        converse("contentBlockStart", 2, start={"toolUse": {"toolUseId": "a", "name": "look"}}),
        converse_delta(2, toolUse={"input": "{}"}),
        converse("contentBlockStop", 2),
        {"messageStop": {"stopReason": "tool_use"}},
    ],
    "blocks by turns": [
        {"messageStart": {"role": "assistant"}},
        *TEXT[:2],
        converse_delta(0, reasoningContent={"text": "hm"}),
        *TEXT[2:],
        converse("contentBlockStart", 2, start={"toolUse": {"toolUseId": "a", "name": "look"}}),
        converse_delta(3, text="x"),
        converse_delta(2, toolUse={"input": "{}"}),
        converse_delta(0, reasoningContent={"signature": "abcd"}),
        *(converse("contentBlockStop", index) for index in (2, 3, 0, 1)),
        {"messageStop": {"stopReason": "tool_use"}},
    ],
}


def gemini(*parts: dict[str, Any]) -> Chunks:
    candidates: Chunks = [{"content": {"role": "model", "parts": [part]}, "index": 0} for part in parts]
    return [{"candidates": [one]} for one in [*candidates, {"finishReason": "STOP", "index": 0}]]


GEMINI = {
    "thoughts, texts and calls": gemini(
        {"text": "h", "thought": True},
        {"text": "m", "thought": True},
        *({"text": piece} for piece in PIECES),
        {"text": "", "thoughtSignature": "abcd"},
        {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "abcd"},
        {"text": "x", "thoughtSignature": "abcd"},
        {"executableCode": {"code": "1", "language": "PYTHON"}},
        {"text": "y"},
    )
}

STREAMS: dict[Provider, dict[str, Chunks]] = {
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "bedrock": BEDROCK,
    "gemini": GEMINI,
}
CASES = [(provider, name) for provider, streams in STREAMS.items() for name in streams]


def record(provider: Provider, chunks: Chunks, *, early: Sequence[bool]) -> list[Data]:
    """The events of a stream. `early` says after which chunks the text so far is published."""
    recording = recorder(provider)
    events: list[Data] = []
    for chunk, publishes in zip(chunks, early, strict=True):
        events += recording.feed(chunk)
        events += recording.blocks.partial() if publishes else []
    return events + recording.blocks.end()


def ledger(provider: Provider, chunks: Chunks, *, early: Sequence[bool]) -> list[Message]:
    return ledger_of(record(provider, chunks, early=early), provider)


@pytest.mark.parametrize(("provider", "name"), CASES)
def test_a_text_published_after_every_chunk_is_the_same_request(provider: Provider, name: str):
    chunks = STREAMS[provider][name]

    for end in range(len(chunks) + 1):
        cut = chunks[:end]
        expected = ledger(provider, cut, early=[False] * end)
        early = ledger(provider, cut, early=[True] * end)

        assert early == expected
        assert encode(early, provider, lossy="drop").body == encode(expected, provider, lossy="drop").body


@given(st.sampled_from(CASES), st.data())
def test_a_text_published_after_any_chunks_is_the_same_request(
    case: tuple[Provider, str], data: st.DataObject
):
    provider, name = case
    chunks = STREAMS[provider][name]
    early = data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))

    assert ledger(provider, chunks, early=early) == ledger(provider, chunks, early=[False] * len(chunks))


@given(st.lists(st.sampled_from([chunk for chunks in CHAT.values() for chunk in chunks]), max_size=8))
def test_any_deltas_of_chat_give_the_same_request_when_their_text_is_published_early(chunks: Chunks):
    number = len(chunks)

    assert ledger("openai-chat", chunks, early=[True] * number) == ledger(
        "openai-chat", chunks, early=[False] * number
    )


@given(st.lists(st.sampled_from([chunk for chunks in RESPONSES.values() for chunk in chunks]), max_size=8))
def test_any_events_of_responses_give_the_same_request_when_their_text_is_published_early(chunks: Chunks):
    number = len(chunks)

    assert ledger("openai-responses", chunks, early=[True] * number) == ledger(
        "openai-responses", chunks, early=[False] * number
    )


@pytest.mark.parametrize(
    ("provider", "name"), [case for case in CASES if case[1] != "calls before and between text"]
)
def test_readers_see_a_text_grow(provider: Provider, name: str):
    chunks = STREAMS[provider][name]

    events = record(provider, chunks, early=[True] * len(chunks))

    assert sum(isinstance(event, AssistantMessage) and event.message != "" for event in events) > 1


@pytest.mark.parametrize("provider", ["openai-chat", "anthropic", "bedrock", "gemini"])
def test_halves_of_a_character_in_two_chunks_are_one_character(provider: Provider):
    chunks = next(iter(STREAMS[provider].values()))

    (message,) = ledger(provider, chunks, early=[True] * len(chunks))

    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    assert texts[0] == "I look🙂 for it\ufffd \n"
