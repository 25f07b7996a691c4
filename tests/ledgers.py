"""Ledgers of any kind for the laws of adapters, and JSON as it may come from a provider that has
lost its mind.
"""

from base64 import b64encode
from typing import Any

from hypothesis import strategies as st
from tests.builders import events
from tests.media import png

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import Encoded
from runfold_schemas.codec import encode as encode_event
from runfold_schemas.data import Data
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
    Message,
    OpaquePart,
    Part,
    Provider,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

PNG = ImagePart(media_type="image/png", data=b64encode(png()).decode())
PDF = DocumentPart(media_type="application/pdf", data=b64encode(b"%PDF-1.7").decode(), name="a_report.pdf")

words = st.text(min_size=1, max_size=12)
ids = st.sampled_from(["1", "call_1", "call_1", "functions.look:0", "", "Ä ö", "x" * 90]) | words
names = st.sampled_from(["search", "weather.now", "weather_now", "", "größe", "n" * 200]) | words
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(words, values, max_size=3)
base64s = st.binary(min_size=1, max_size=9).map(lambda data: b64encode(data).decode())

texts = st.builds(TextPart, text=st.sampled_from(["", " \n", "hello", "hello"]) | words)
signed = st.builds(ThinkingPart, text=st.text(max_size=9), signature=words)
redacted = st.builds(ThinkingPart, redacted=base64s)
foreign = st.builds(
    ThinkingPart,
    text=words,
    signature=words,
    provider_data=st.just({"gemini": {"thought_signature": "c2ln"}}),
)
calls = st.builds(ToolUsePart, id=ids, name=names, input=objects)
broken_calls = st.builds(ToolUsePart, id=ids, name=names, input=values)
images = st.just(PNG) | st.builds(
    ImagePart,
    media_type=st.sampled_from(["", "image/jpeg", "image/tiff"]),
    url=st.sampled_from(["https://example.com/a.png", "s3://bucket/a.png", "gs://bucket/a.jpg"]),
)
documents = st.builds(
    DocumentPart,
    media_type=st.sampled_from(["application/pdf", "text/plain", "text/markdown", "application/zip"]),
    data=base64s | st.just(b64encode(b"a text").decode()),
    name=words | st.sampled_from(["", "a_report.pdf", "a   b"]),
)
opaque = st.builds(
    OpaquePart,
    provider=st.sampled_from(["openai-responses", "gemini"]),
    content=values,
)
any_parts = st.one_of(
    texts, signed, redacted, foreign, calls, broken_calls, images, documents, opaque,
    st.builds(ToolResultPart, tool_use_id=ids, content=values),
)  # fmt: skip


@st.composite
def exchanges(draw: st.DrawFn) -> list[Message]:
    """What the user asks, what the assistant does, and the results of some of it."""
    asked = draw(st.lists(st.one_of(texts, images, documents), max_size=2))
    parts = draw(
        st.lists(st.one_of(texts, signed, redacted, foreign, calls, calls, broken_calls, opaque), max_size=4)
    )
    results = [
        ToolResultPart(
            tool_use_id=part.id,
            content=draw(values | objects),
            is_error=draw(st.booleans()),
            attachments=draw(st.sampled_from([(), (), (PNG,)])),
        )
        for part in parts
        if isinstance(part, ToolUsePart) and draw(st.integers(0, 9))
    ]
    messages = [("user", asked), ("assistant", parts), ("user", results)]
    return [Message(role=role, parts=tuple(said)) for role, said in messages if said]


system = st.lists(st.builds(TextPart, text=words), min_size=1, max_size=2).map(
    lambda parts: Message(role="system", parts=tuple(parts))
)

ledgers = st.builds(
    lambda head, tail: [*head, *(message for exchange in tail for message in exchange)],
    st.lists(system, max_size=2),
    st.lists(exchanges(), max_size=4),
)
"""As folds make them."""

wild_ledgers = st.lists(
    st.builds(
        lambda role, parts: Message(role=role, parts=tuple(parts)),
        st.sampled_from(["system", "user", "assistant"]),
        st.lists(any_parts, max_size=4),
    ),
    max_size=6,
)
"""As nobody makes them but by hand."""


def wild_json(*vocabulary: str) -> st.SearchStrategy[Any]:
    """Any JSON, mostly with these words at random places."""
    word = st.sampled_from(vocabulary) | st.text(max_size=5)
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | word | st.just("\ud83d") | base64s
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=4),
        max_leaves=12,
    )


def ledger_of(said: list[Data], provider: Provider) -> list[Message]:
    """The ledger of the events of one response, which can all be published."""
    recorded = events(*said, provider=provider, message_id="message-1")
    for event in recorded:
        encode_event(event)
    return build_messages_from_events(recorded)


def kept(messages: list[Message], encoded: Encoded) -> list[tuple[str, Part]]:
    """The parts that were not dropped, in their order, with the roles that say them."""
    dropped = {(fault.message_index, fault.part_index) for fault in encoded.dropped}
    return [
        (message.role, part)
        for index, message in enumerate(messages)
        for place, part in enumerate(message.parts)
        if (index, place) not in dropped
    ]
