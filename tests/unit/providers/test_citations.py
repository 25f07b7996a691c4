"""Citations and refusals have one form in the ledger, whichever provider they come from."""

from typing import Any

import pytest
from tests.openai_ledgers import ledger_of

from runfold_projections.providers import encode, recorder
from runfold_schemas.data import Data
from runfold_schemas.events import AssistantMessage, ResponseRecorded
from runfold_schemas.messages import Citation, Message, Provider, TextPart

PAGE = {"url": "https://a.example/", "title": "A", "start_index": 3, "end_index": 7}
CITED = Citation(url="https://a.example/", title="A", start=3, end=7)


def chat(**said: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, **said}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def chat_stream(**said: Any) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{name: value} for name, value in said.items()]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    return [{"choices": [choice]} for choice in [*choices, {"delta": {}, "finish_reason": "stop"}]]


def responses(*content: dict[str, Any]) -> dict[str, Any]:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": list(content)}
    return {"object": "response", "status": "completed", "output": [item | {"status": "completed"}]}


def text_part(provider: Provider, response: Any) -> TextPart:
    (message,) = ledger(provider, response)
    (part,) = message.parts
    assert isinstance(part, TextPart)
    return part


def ledger(provider: Provider, response: Any) -> list[Message]:
    return ledger_of(recorded(provider, response), provider)


def recorded(provider: Provider, response: Any) -> list[Data]:
    recording = recorder(provider)
    if not isinstance(response, list):
        return [*recording.response(response)]
    events = [data for chunk in response for data in (*recording.feed(chunk), *recording.blocks.partial())]
    return [*events, *recording.blocks.end()]


@pytest.mark.parametrize(
    ("provider", "response"),
    [
        ("openai-chat", chat(content="As A says", annotations=[{"type": "x", "url_citation": PAGE}])),
        ("openai-chat", chat_stream(content="As A says", annotations=[{"type": "x", "url_citation": PAGE}])),
        (
            "openai-responses",
            responses(
                {
                    "type": "output_text",
                    "text": "As A says",
                    "annotations": [{"type": "url_citation", **PAGE}, {"type": "file_path", "file_id": "f"}],
                }
            ),
        ),
    ],
)
def test_a_text_has_its_sources(provider: Provider, response: Any):
    part = text_part(provider, response)

    assert (part.text, part.citations, part.refusal) == ("As A says", (CITED,), False)


def test_a_file_is_named_as_source():
    annotation = {"type": "file_citation", "file_id": "f", "filename": "a.pdf", "index": 3}
    content = {"type": "output_text", "text": "As A says", "annotations": [annotation, {"title": 1}, None]}

    assert text_part("openai-responses", responses(content)).citations == (Citation(title="a.pdf"),)


GROUNDED = {
    "groundingChunks": [{"web": {"uri": "https://a.example/", "title": "A"}}],
    "groundingSupports": [{"segment": {"startIndex": 3, "endIndex": 7}, "groundingChunkIndices": [0]}],
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("number_of_signatures", [1, 2])
def test_the_sources_of_gemini_stand_on_the_text_before_its_signature(
    number_of_signatures: int, *, is_stream: bool
):
    signature = {"text": "", "thoughtSignature": "AAAA"}
    parts = [{"text": "As A "}, {"text": "says"}, *[signature] * number_of_signatures]
    whole = {"content": {"parts": parts}, "finishReason": "STOP", "groundingMetadata": GROUNDED}
    pieces = [{"content": {"parts": [part]}} for part in parts]
    end = {"finishReason": "STOP", "groundingMetadata": GROUNDED}
    stream = [{"candidates": [candidate]} for candidate in (*pieces, end)]

    (message,) = ledger("gemini", stream if is_stream else {"candidates": [whole]})

    assert [(part.text, part.citations) for part in message.parts if isinstance(part, TextPart)] == [
        ("As A says", (CITED,)),
        *[("", ())] * number_of_signatures,
    ]
    assert encode([message], "gemini").body["contents"][0]["parts"] == [
        {"text": "As A says"},
        *[signature] * number_of_signatures,
    ]


@pytest.mark.parametrize(
    ("provider", "response"),
    [
        ("openai-chat", chat(refusal="I must not.")),
        ("openai-chat", chat_stream(refusal="I must not.")),
        ("openai-chat", chat(content=[{"type": "refusal", "refusal": "I must not."}])),
        ("openai-responses", responses({"type": "refusal", "refusal": "I must not."})),
        (
            "openai-responses",
            [
                {"type": "response.refusal.delta", "output_index": 0, "content_index": 0, "delta": piece}
                for piece in ("I must", " not.")
            ]
            + [{"type": "response.completed", "response": {"status": "completed", "output": []}}],
        ),
    ],
)
def test_a_refusal_is_marked_and_is_text_for_other_providers(provider: Provider, response: Any):
    part = text_part(provider, response)

    assert (part.text, part.refusal) == ("I must not.", True)
    message = Message(role="assistant", parts=[part])
    assert encode([message], "gemini").body["contents"][0]["parts"] == [{"text": "I must not."}]


def anthropic(stop_reason: str) -> dict[str, Any]:
    said = [{"type": "text", "text": "First,"}]
    return {"id": "1", "type": "message", "role": "assistant", "content": said, "stop_reason": stop_reason}


def bedrock(stop_reason: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"text": "First,"}]}
    return {"output": {"message": message}, "stopReason": stop_reason}


def gemini(finish_reason: str) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"text": "First,"}]}, "finishReason": finish_reason}]}


def incomplete(reason: str) -> dict[str, Any]:
    return {"status": "incomplete", "incomplete_details": {"reason": reason}, "output": []}


BLOCKED: dict[str, Any] = {"promptFeedback": {"blockReason": "SAFETY"}}
FILTERED: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter"}]}


@pytest.mark.parametrize(
    ("provider", "response", "is_refused"),
    [
        ("anthropic", anthropic("refusal"), True),
        ("anthropic", anthropic("end_turn"), None),
        ("bedrock", bedrock("guardrail_intervened"), True),
        ("bedrock", bedrock("content_filtered"), True),
        ("bedrock", bedrock("max_tokens"), None),
        ("gemini", gemini("SAFETY"), True),
        ("gemini", gemini("PROHIBITED_CONTENT"), True),
        ("gemini", gemini("MAX_TOKENS"), None),
        ("gemini", BLOCKED, True),
        ("gemini", [BLOCKED], True),
        ("openai-chat", chat(refusal="I must not."), True),
        ("openai-chat", chat_stream(refusal="I must not."), True),
        ("openai-chat", [FILTERED], True),
        ("openai-chat", chat(content="Yes."), None),
        ("openai-responses", responses({"type": "refusal", "refusal": "I must not."}), True),
        ("openai-responses", incomplete("content_filter"), True),
        ("openai-responses", incomplete("max_output_tokens"), None),
    ],
)
def test_the_end_says_whether_the_response_was_refused(
    provider: Provider, response: Any, is_refused: bool | None
):
    (end,) = (data for data in recorded(provider, response) if isinstance(data, ResponseRecorded))

    assert end.refused is is_refused
    assert end.model_dump(exclude_unset=True).get("refused") is is_refused


def test_what_nobody_marked_is_written_as_before():
    data = AssistantMessage(message="Hi", content_index=0)
    (message,) = ledger_of([data], "openai-chat")

    assert data.model_dump(exclude_unset=True) == {"message": "Hi", "content_index": 0}
    assert message.model_dump()["parts"] == ({"type": "text", "text": "Hi"},)
