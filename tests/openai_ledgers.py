"""Ledgers and broken JSON for the tests of OpenAI's two formats."""

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st
from tests.builders import event
from tests.media import png

from runfold_projections.ledger import build_messages_from_events
from runfold_schemas.codec import encode as encode_event
from runfold_schemas.data import Data
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
    Message,
    Part,
    Provider,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

PNG = base64.b64encode(png()).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0").decode()
PDF = base64.b64encode(b"%PDF-1.7").decode()

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda value: st.lists(value, max_size=2) | st.dictionaries(st.text(max_size=3), value, max_size=2),
    max_leaves=4,
)
IDS = st.sampled_from(["call_1", "call_2", "", "terminal:0", "ü" * 9, "x" * 80, "x" * 81, "a b\n"])
NAMES = st.sampled_from(["look", "files.read", "files/read", "ü", "", "n" * 70, "n" * 71])

IMAGES = st.sampled_from(
    [
        ImagePart(media_type="image/png", data=PNG),
        ImagePart(media_type="image/tiff", data=PNG),
        ImagePart(url="https://example.com/a.png"),
        ImagePart(url="s3://bucket/a.png"),
    ]
)
DOCUMENTS = st.sampled_from(
    [
        DocumentPart(media_type="application/pdf", data=PDF, name="bill"),
        DocumentPart(media_type="text/plain", data=PDF),
        DocumentPart(url="https://example.com/bill.pdf"),
        DocumentPart(url="gs://bucket/bill.pdf", media_type="application/pdf"),
    ]
)
TEXTS = st.builds(TextPart, text=st.text(max_size=5))


@st.composite
def ledgers(draw: st.DrawFn) -> list[Message]:
    """Conversations as an agent has them, with what providers differ about: ids, names, thinking,
    media, errors.
    """
    messages = [message("system", "Be kind.")] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 4))):
        messages.append(
            Message(role="user", parts=draw(st.lists(TEXTS | IMAGES | DOCUMENTS, min_size=1, max_size=3)))
        )
        said = draw(st.lists(_said(), min_size=1, max_size=4))
        messages.append(Message(role="assistant", parts=said))
        calls = [part for part in said if isinstance(part, ToolUsePart)]
        if calls:
            messages.append(Message(role="user", parts=[draw(_result(call)) for call in calls]))
    return messages


def _said() -> st.SearchStrategy[Part]:
    return st.one_of(
        TEXTS,
        st.builds(
            ToolUsePart, id=IDS, name=NAMES, input=st.dictionaries(st.text(max_size=3), JSON, max_size=2)
        ),
        st.just(ThinkingPart(text="hm", signature="signed by another")),
    )


def _result(call: ToolUsePart) -> st.SearchStrategy[ToolResultPart]:
    return st.builds(
        ToolResultPart,
        tool_use_id=st.just(call.id),
        content=st.text(max_size=5) | JSON,
        is_error=st.booleans(),
        attachments=st.just(()) | st.tuples(IMAGES) | st.tuples(IMAGES, DOCUMENTS),
    )


def message(role: Any, *parts: Part | str) -> Message:
    return Message(
        role=role, parts=[TextPart(text=part) if isinstance(part, str) else part for part in parts]
    )


def ledger_of(said: Sequence[Data], provider: Provider, message_id: str = "m-1") -> list[Message]:
    """The ledger of a response's events, each of which goes through the log's own bytes."""
    recorded = [event(data, message_id=message_id, provider=provider) for data in said]
    for each in recorded:
        encode_event(each)
    return build_messages_from_events(recorded)


def marked(messages: Iterable[Message]) -> list[Message]:
    """The same messages, with a word of its own in each text, call and result, by which order
    shows.
    """
    numbers = iter(range(10_000))
    return [
        Message(role=one.role, parts=[_marked(part, f"<{next(numbers)}>") for part in one.parts])
        for one in messages
    ]


def _marked(part: Part, mark: str) -> Part:
    match part:
        case TextPart():
            return part.model_copy(update={"text": mark})
        case ToolUsePart():
            return part.model_copy(update={"input": {"mark": mark}})
        case ToolResultPart():
            return part.model_copy(update={"content": mark})
        case _:
            return part


def any_json(names: Sequence[str], words: Sequence[str]) -> st.SearchStrategy[Any]:
    """JSON of any shape, with the names of a format's members and its words where they may hurt."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(), max_size=4),
        st.sampled_from([*words, "\ud83d", '{"a": NaN}', '{"a', "[" * 5_000]),
    )
    return st.recursive(
        leaves,
        lambda value: (
            st.lists(value, max_size=3) | st.dictionaries(st.sampled_from(names), value, max_size=5)
        ),
        max_leaves=12,
    )


def split(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))
