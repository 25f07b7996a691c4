"""Whatever a caller hands over as a response, recording raises nothing and every event can be
written.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.openai_ledgers import JSON, ledger_of

from runfold_projections.providers import encode, provider_of, recorder
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AssistantMessage, ResponseRecorded
from runfold_schemas.messages import PROVIDERS, Provider


class Hostile:
    """An object that can be neither read nor compared."""

    def __getattr__(self, name: str) -> Any:
        # The test tool reads members with an underscore.
        raise AttributeError(name) if name.startswith("_") else RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError


class Unprintable(Hostile):
    """The same, and it cannot be printed."""

    def __repr__(self) -> str:
        raise RuntimeError


class Endless:
    """An object that contains itself."""

    type = "chunk"

    @property
    def chunk(self) -> "Endless":
        return self

    @property
    def choices(self) -> list["Endless"]:
        return [self]

    delta = message = content = chunk


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def forms(fields: dict[str, Any]) -> st.SearchStrategy[Any]:
    """The same members as JSON, as an object of the SDK, and as any object."""
    kinds = (dict, SimpleNamespace, ChatCompletion.construct, ChatCompletionChunk.construct)
    return st.integers(0, len(kinds) - 1).map(lambda number: made(kinds[number], fields))


def made(kind: Callable[..., Any], fields: dict[str, Any]) -> Any:
    """An object of this kind, or the members alone if the SDK refuses them. It refuses a mapping
    whose keys are not strings, at any depth, and what it cannot read.
    """
    with suppress(TypeError, RuntimeError):
        return kind(**fields)
    return fields


OF_CHAT = ["choices", "delta", "message", "content", "tool_calls", "function", "arguments", "type", "chunk"]
OF_OTHERS = ["item", "output", "response", "candidates", "parts", "text", "index", "usage", "id", "model"]
OF_STREAMS = [
    "contentBlockDelta",
    "contentBlockIndex",
    "content_block",
    "thinking",
    "logprobs",
    "annotations",
]
NAMES = st.sampled_from([*OF_CHAT, *OF_OTHERS, *OF_STREAMS, "reasoning_details", "annotations"])

OBJECTS: list[Any] = [Hostile(), Endless(), MagicMock(), object(), object, len, {1, 2}, b"\xff", 1j]
NUMBERS: list[Any] = [float("nan"), 10**400, datetime(2026, 1, 1, tzinfo=UTC), {1: 2}, {None: Hostile()}]
WORDS: list[Any] = [
    "text",
    "chunk",
    "thinking",
    "content_block_start",
    "response.output_item.done",
    "message",
]
ODD = [*OBJECTS, *NUMBERS, *WORDS, "message", "\ud83d", nested(150), nested(1_500)]

VALUES = st.recursive(
    st.integers(0, len(ODD) - 1).map(lambda number: ODD[number]) | JSON,
    lambda value: st.lists(value, max_size=3) | st.dictionaries(NAMES, value, max_size=5).flatmap(forms),
    max_leaves=12,
)


@pytest.mark.parametrize("provider", PROVIDERS)
@settings(max_examples=60)
@given(st.lists(VALUES, max_size=3), st.booleans())
def test_no_stream_raises_and_every_event_can_be_written(
    provider: Provider, chunks: list[Any], finished: bool
):
    recording = recorder(provider)

    said = [data for chunk in chunks for data in (*recording.feed(chunk), *recording.blocks.partial())]
    ledger = ledger_of([*said, *recording.blocks.end(finished=finished)], provider)

    encode(ledger, provider, lossy="drop")


@pytest.mark.parametrize("provider", PROVIDERS)
@settings(max_examples=60)
@given(VALUES)
def test_no_response_raises_and_every_event_can_be_written(provider: Provider, response: Any):
    ledger = ledger_of(recorder(provider).response(response), provider)

    encode(ledger, provider, lossy="drop")


@given(VALUES)
def test_an_unknown_object_is_of_no_provider(value: Any):
    with suppress(InvalidEventError):
        assert provider_of(value) in PROVIDERS


@pytest.mark.parametrize("kind", [ChatCompletion, ChatCompletionChunk])
def test_the_sdk_makes_an_object_of_members_that_have_names(kind: Any):
    choice = {"message": {"content": 1j}, "delta": {"text": object()}}

    assert isinstance(made(kind.construct, {"choices": [choice], "chunk": nested(150)}), kind)
    assert made(kind.construct, {"choices": [{1: 2}]}) == {"choices": [{1: 2}]}


def test_what_cannot_be_read_is_a_fault():
    recording = recorder("openai-chat")

    assert recording.feed(Unprintable()) == ()
    assert recording.feed({"choices": [{"delta": {"content": "x", "refusal": [Unprintable()]}}]}) == ()
    said, end = recording.blocks.end()

    assert isinstance(said, AssistantMessage)
    assert isinstance(end, ResponseRecorded)
    assert end.faults == (
        "a Unprintable could not be read: RuntimeError",
        "a dict could not be read: RuntimeError",
    )


def test_a_value_that_is_nested_too_deep_is_kept_as_far_as_an_event_holds_it():
    message = {"role": "assistant", "content": "x", "vendor": nested(150), "tool_calls": []}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}

    said = recorder("openai-chat").response({"choices": [choice]})

    (again,) = encode(ledger_of(said, "openai-chat"), "openai-chat").body["messages"]
    assert again["content"] == "x"
    assert "nested in more than" in str(again["vendor"])


def test_arguments_that_are_nested_too_deep_are_kept_as_text():
    text = "[" * 150 + "]" * 150
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": text}}
    choice = {"index": 0, "message": {"tool_calls": [call]}, "finish_reason": "stop"}

    said = recorder("openai-chat").response({"choices": [choice]})

    (message,) = ledger_of(said, "openai-chat")
    assert encode([message], "openai-chat").body["messages"][0]["tool_calls"] == [call]


def test_streamed_arguments_that_are_nested_too_deep_are_kept_as_far_as_an_event_holds_them():
    piece = {"jsonPath": "$" + ".a" * 200, "stringValue": "x"}
    call = {"functionCall": {"name": "look", "partialArgs": [piece]}}
    candidate = {"content": {"parts": [call]}, "finishReason": "STOP"}

    said = recorder("gemini").response({"candidates": [candidate]})

    (message,) = ledger_of(said, "gemini")
    assert "nested in more than" in str(encode([message], "gemini").body)


def test_the_error_for_a_response_of_no_provider_names_the_providers():
    for response, form in (({"what": 1}, "a value of the type dict"), ({"error": {}}, "an error")):
        with pytest.raises(InvalidEventError, match=f"^{form} is not the .*openai-responses"):
            provider_of(response)


class Broken(SimpleNamespace):
    """An item whose id cannot be read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "id":
            raise RuntimeError
        return super().__getattribute__(name)


MESSAGE = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hi"}],
}
CALLED = {"reasoning_content": "Hm.", "content": "Hi", "tool_calls": [Broken(function=None)]}
PARTS = [
    {"text": "Hm.", "thought": True, "thoughtSignature": "AAAA"},
    {"text": "Hi"},
    {"functionCall": Broken(name="look")},
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("provider", "response", "kinds"),
    [
        (
            "openai-responses",
            {"type": "response.completed", "output": [MESSAGE, Broken(type="function_call")]},
            ["text"],
        ),
        ("openai-chat", {"choices": [{"message": CALLED, "delta": CALLED}]}, ["thinking", "text"]),
        ("gemini", {"candidates": [{"content": {"parts": PARTS}}]}, ["thinking", "text"]),
    ],
)
def test_the_items_before_one_that_cannot_be_read_are_kept(
    provider: Provider, response: dict[str, Any], kinds: list[str], *, is_stream: bool
):
    recording = recorder(provider)

    if is_stream:
        said = [*recording.feed(response | {"response": response}), *recording.blocks.end()]
    else:
        said = [*recording.response(response)]

    end = said[-1]
    assert isinstance(end, ResponseRecorded)
    assert end.faults[0].endswith("could not be read: RuntimeError")
    (message,) = ledger_of(said, provider)
    assert [part.type for part in message.parts if getattr(part, "text", "") != ""] == kinds
