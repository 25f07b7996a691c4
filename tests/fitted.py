"""Logs of conversations, and what remains of them in a budget, for the tests of fitting."""

from typing import Any

from tests.builders import event

from runfold_projections.budget import Budget, Fitted
from runfold_projections.fitting import fit, place_messages
from runfold_projections.message_tokens import TokenCounter
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent, AssistantMessage, ToolCall, ToolResult, UserMessage
from runfold_schemas.messages import Message, Provider, TextPart

LETTERS = TokenCounter("letters", len)
"""One token for each letter, so the tokens of a test can be counted by eye. A message has 4 more, a
call and a result 8.
"""

Log = list[tuple[int, AnyEvent]]


def log(*data: Data | tuple[Data, dict[str, Any]]) -> Log:
    entries = (each if isinstance(each, tuple) else (each, {}) for each in data)
    return [(offset, event(data, **envelope)) for offset, (data, envelope) in enumerate(entries)]


def turn(number: int, *, length: int = 42) -> list[Data]:
    """A question and an answer of 50 tokens together, by letters."""
    return [
        UserMessage(message=f"q{number}".ljust(4)),
        AssistantMessage(message=f"a{number}".ljust(length - 4)),
    ]


def step(number: int) -> list[Data]:
    """A call and its result, which have 64 tokens, by letters."""
    call_id = f"c{number}"
    return [
        ToolCall(tool_call_id=call_id, tool_name="look", payload={"n": number}),
        ToolResult(tool_call_id=call_id, result="r" * 29),
    ]


def fitted(entries: Log, tokens: int, provider: Provider = "anthropic", **budget: Any) -> Fitted:
    return fit(place_messages(entries), Budget(tokens=tokens, **budget), provider, LETTERS)


def texts(messages: list[Message]) -> list[str]:
    return [part.text.strip() for message in messages for part in message.parts if isinstance(part, TextPart)]


def turns(*numbers: int) -> list[str]:
    return [f"{who}{number}" for number in numbers for who in "qa"]
