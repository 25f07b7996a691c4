"""Gemini, for any ledger and any response: what always holds."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import events
from tests.gemini import (
    assistant,
    messages_of,
    recorded,
    response,
    result,
    streamed,
    system,
    user,
    valid,
)

from runfold_projections.providers import gemini
from runfold_schemas.codec import decode
from runfold_schemas.codec import encode as encode_event
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

BYTES = st.binary(min_size=1, max_size=6).map(lambda data: base64.b64encode(data).decode())
IDS = st.sampled_from(["c", "c", "call 1", "é" * 70, "x" * 600, "c-2"]) | st.text(min_size=1, max_size=5)
NAMES = st.sampled_from(["look", "1st", "a b", "a_b", "n" * 200, "n" * 64, "", "mcp:find.it"]) | st.text(
    max_size=5
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=2)
OWN = st.none() | st.builds(lambda signature: {"gemini": {"thoughtSignature": signature}}, BYTES)
TEXTS = st.builds(TextPart, text=st.text(max_size=8), provider_data=OWN)
MEDIA = st.builds(ImagePart, media_type=st.sampled_from(["image/png", "image/gif"]), data=BYTES) | st.builds(
    DocumentPart,
    media_type=st.sampled_from(["application/pdf", ""]),
    url=st.sampled_from(["gs://b/o", "https://e.com/x", "s3://b/o"]),
)
THINKING = st.builds(
    ThinkingPart, text=st.text(max_size=5), signature=st.sampled_from(["", "anthropic's"]), provider_data=OWN
)
CALLS = st.builds(ToolUsePart, id=IDS, name=NAMES, input=OBJECTS | JSON, provider_data=OWN)
OPAQUE = st.builds(
    OpaquePart,
    provider=st.sampled_from(["gemini", "bedrock"]),
    content=st.just({"executableCode": {"code": "1"}}),
)


@st.composite
def ledgers(draw: st.DrawFn) -> list[Message]:
    messages = [system(text) for text in draw(st.lists(st.text(min_size=1, max_size=5), max_size=2))]
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            messages.append(user(*draw(st.lists(TEXTS | MEDIA, min_size=1, max_size=2))))
        said = draw(st.lists(TEXTS | THINKING | CALLS | OPAQUE, min_size=1, max_size=4))
        messages.append(assistant(*said))
        answers = [
            result(
                draw(JSON),
                part.id,
                is_error=draw(st.booleans()),
                attachments=tuple(draw(st.lists(MEDIA, max_size=1))),
            )
            for part in said
            if isinstance(part, ToolUsePart) and draw(st.integers(0, 5))
        ]
        if answers:
            messages.append(user(*answers))
        if not draw(st.integers(0, 9)):
            messages.append(system("late"))
    return messages


@given(ledgers())
def test_a_ledger_encodes_to_a_valid_request_or_says_what_does_not(ledger: list[Message]):
    request = valid(gemini.encode(ledger, {"lossy": "drop"}))
    refused = [fault for fault in request.dropped if fault.rule != "text-not-blank"]

    if refused:
        with pytest.raises(InexpressibleError) as error:
            gemini.encode(ledger, {"lossy": "refuse"})
        first = refused[0]
        assert (error.value.message_index, error.value.part_index) == (first.message_index, first.part_index)
    else:
        assert gemini.encode(ledger, {"lossy": "refuse"}) == request


@given(ledgers())
def test_order_is_kept_and_ids_of_a_message_are_unique(ledger: list[Message]):
    request = gemini.encode(ledger, {"lossy": "drop"})
    dropped = {(fault.message_index, fault.part_index) for fault in request.dropped}
    restated = {(fault.message_index, fault.part_index) for fault in request.restated}

    kept = [
        TextPart(text=f"[Instructions] {part.text}") if (number, index) in restated else part
        for number, message in enumerate(ledger)
        for index, part in enumerate(message.parts)
        if (message.role != "system" or (number, index) in restated) and (number, index) not in dropped
    ]
    # A result whose attachment alone is dropped stands there still.
    written = [part for content in request.body["contents"] for part in content["parts"]]
    assert [brief(part) for part in written if "functionResponse" not in part] == [
        brief_of(part) for part in kept if not isinstance(part, ToolResultPart)
    ]


def brief(part: dict[str, Any]) -> Any:
    return part.get(
        "text", part.get("functionCall", {}).get("args", part.get("inlineData", part.get("fileData")))
    )


def brief_of(part: Part) -> Any:
    match part:
        case ToolUsePart():
            return part.input or {}
        case ImagePart() | DocumentPart() if part.data:
            return {"mimeType": part.media_type, "data": part.data}
        case ImagePart() | DocumentPart():
            return {"fileUri": part.url} | ({"mimeType": part.media_type} if part.media_type else {})
        case _:
            return getattr(part, "text", None)


@given(ledgers(), st.data())
def test_a_prefix_encodes_to_a_prefix(ledger: list[Message], data: st.DataObject):
    end = data.draw(st.integers(0, len(ledger)))

    short, long = (
        gemini.encode(messages, {"lossy": "drop"}).body["contents"] for messages in (ledger[:end], ledger)
    )

    def flat(body: list[dict[str, Any]]) -> list[Any]:
        return [(content["role"], part) for content in body for part in content["parts"]]

    assert flat(long)[: len(flat(short))] == flat(short)


@given(ledgers())
def test_decoding_an_encoded_message_gives_what_it_says(ledger: list[Message]):
    for message in ledger:
        if message.role == "assistant":
            request = gemini.encode([message], {"lossy": "drop"})
            for content in request.body["contents"]:
                said = recorded(response(*content["parts"]), **request.tool_names)
                [decoded] = messages_of(said) or [assistant()]
                again = gemini.encode([decoded], {"lossy": "refuse"}).body["contents"]
                assert again == joined_texts(request.body["contents"])


def joined_texts(body: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a stream would have it: adjacent texts without a signature are one."""
    joined = []
    for content in body:
        parts: list[dict[str, Any]] = []
        for part in content["parts"]:
            if parts and set(part) == set(parts[-1]) == {"text"}:
                parts[-1] = {"text": parts[-1]["text"] + part["text"]}
            else:
                parts.append(part)
        joined.append({**content, "parts": parts})
    return joined


PARTS = (
    st.builds(
        lambda text, thought: {"text": text} | ({"thought": True} if thought else {}),
        st.text(),
        st.booleans(),
    )
    | st.builds(lambda text, signature: {"text": text, "thoughtSignature": signature}, st.text(), BYTES)
    | st.builds(lambda name, args: {"functionCall": {"name": name, "args": args}}, NAMES, OBJECTS)
    | st.just({"executableCode": {"language": "PYTHON", "code": "1"}})
)


@given(st.lists(PARTS, max_size=6), st.data())
def test_any_chunks_of_a_stream_give_the_ledger_of_the_whole(
    parts: list[dict[str, Any]], data: st.DataObject
):
    chunks = []
    for part in parts:
        cut = data.draw(st.integers(0, len(part.get("text", ""))))
        if "text" in part and "thoughtSignature" not in part:
            chunks += [part | {"text": part["text"][:cut]}, part | {"text": part["text"][cut:]}]
        else:
            chunks.append(part)
    answers = [response(chunk, candidates=[{"content": {"parts": [chunk]}}]) for chunk in chunks]

    said = streamed([*answers, response()])

    assert said == recorded(response(*parts))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["\ud83d", "STOP", "$.a", 10**40]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "candidates",
                    "content",
                    "parts",
                    "text",
                    "thought",
                    "thoughtSignature",
                    "functionCall",
                    "name",
                    "args",
                    "id",
                    "partialArgs",
                    "jsonPath",
                    "stringValue",
                    "willContinue",
                    "finishReason",
                    "usageMetadata",
                    "promptTokenCount",
                    "promptFeedback",
                    "index",
                    "responseId",
                ]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(ANYTHING, st.lists(ANYTHING, max_size=3))
def test_whatever_a_provider_sends_is_recorded(said: Any, parts: list[Any]):
    whole = [*recorded(said), *recorded(response(*parts))]
    chunks = streamed([said, response(*parts), *parts], finished=False)

    made = events(*whole, *chunks, message_id="r-1", provider="gemini")
    assert [decode(encode_event(event)) for event in made] == made
    messages_of(whole)
