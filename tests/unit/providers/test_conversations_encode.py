"""A hundred real conversations, recorded message by message, are encoded to what they were, and for
every other provider.
"""

from typing import Any

import pytest
from tests.builders import event
from tests.conversations import Chat, plain
from tests.conversations import conversations as read_conversations

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode, recorder, validate
from runfold_schemas.events import AnyEvent, SystemMessage, ToolResult, UserMessage
from runfold_schemas.messages import PROVIDERS, Message


@pytest.fixture(scope="module")
def conversations() -> list[list[Chat]]:
    return [each["messages"] for each in read_conversations()]


@pytest.fixture(scope="module")
def ledgers(conversations: list[list[Chat]]) -> list[list[Message]]:
    return [build_messages_from_events(recorded(conversation)) for conversation in conversations]


def test_recorded_conversations_are_encoded_to_exactly_the_messages_that_they_were(conversations, ledgers):
    for conversation, ledger in zip(conversations, ledgers, strict=True):
        encoded = encode(ledger, "openai-chat")

        assert list(map(plain, encoded.body["messages"])) == list(map(plain, conversation))
        assert (encoded.dropped, encoded.tool_names, encoded.tool_ids) == ([], {}, {})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_they_are_encoded_for_every_provider_without_a_fault(ledgers, provider):
    for ledger in ledgers:
        encoded = encode(ledger, provider)

        assert encoded.dropped == []
        assert faults_of_adapters(ledger, provider) == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_any_beginning_of_one_is_encoded_for_every_provider(ledgers, provider):
    for ledger in ledgers[::10]:
        for end in range(0, len(ledger), 5):
            assert encode(ledger[:end], provider).dropped == []


def test_the_responses_api_gets_every_text_every_argument_and_every_result_in_its_order(
    conversations, ledgers
):
    for conversation, ledger in zip(conversations, ledgers, strict=True):
        items = encode(ledger, "openai-responses").body["input"]

        said = [item.get("content") or item.get("arguments") or item.get("output") or "" for item in items]

        assert said == [text for message in conversation for text in texts(message)]


def faults_of_adapters(ledger: list[Message], provider: str) -> list[Any]:
    """What `validate` finds, without the calls at the very end that the recording left
    unanswered.
    """
    last = len(ledger) - 1
    return [
        fault
        for fault in validate(ledger, provider)
        if not (fault.rule in ("call-has-result", "user-after-calls") and fault.message_index == last)
    ]


def texts(message: Chat) -> list[str]:
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
    said = [message["content"]] if message["content"] or message["role"] == "tool" else []
    return [*said, *calls]


def recorded(conversation: list[Chat]) -> list[AnyEvent]:
    """The events of a conversation whose assistant messages came as responses of Chat
    Completions.
    """
    return [
        one
        for number, message in enumerate(conversation)
        for one in (
            response(message, f"chatcmpl-{number}") if message["role"] == "assistant" else [said(message)]
        )
    ]


def response(message: Chat, message_id: str) -> list[AnyEvent]:
    whole = {
        "id": message_id,
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o",
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
    }
    events = recorder("openai-chat").response(whole)
    return [event(data, message_id=message_id, provider="openai-chat") for data in events]


def said(message: Chat) -> AnyEvent:
    match message["role"]:
        case "system":
            return event(SystemMessage(message=message["content"]))
        case "user":
            return event(UserMessage(message=message["content"]))
        case _:
            return event(ToolResult(tool_call_id=message["tool_call_id"], result=message["content"]))
