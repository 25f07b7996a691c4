"""The faults of a ledger for which some models of a format would refuse it, and others would not
(`models`).
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from runfold_projections.providers.models import ModelRules
from runfold_projections.validation import Fault
from runfold_schemas.messages import (
    Message,
    OpaquePart,
    Part,
    Provider,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)


class SentMessages:
    """What an encoder sends of a ledger, message by message."""

    def __init__(self, messages: Sequence[Message], omitted: AbstractSet[tuple[int, int]]) -> None:
        self.parts: list[tuple[int, Message, list[Part]]] = []
        """The index of each message, the message, and its parts if there are any."""
        for index, message in enumerate(messages):
            parts = [part for at, part in enumerate(message.parts) if (index, at) not in omitted]
            if parts:
                self.parts.append((index, message, parts))


def faults_of_end(
    sent: SentMessages, provider: Provider, rules: ModelRules, *, broken_off: bool
) -> list[Fault]:
    """The faults of a request that ends with the assistant. A call at the end waits for its result,
    and a block of the provider for the rest of its turn.
    """
    if not sent.parts:
        return []
    index, message, parts = sent.parts[-1]
    waits = any(isinstance(part, ToolUsePart) for part in parts) or (
        isinstance(parts[-1], OpaquePart) and not broken_off
    )
    if message.role != "assistant" or waits:
        return []
    if not rules.continues:
        text = f"{provider}: the model does not continue a message of the assistant"
        return [Fault(rule="last-message-user", text=text, message_index=index)]
    last = parts[-1]
    if not rules.trailing_space and isinstance(last, TextPart) and last.text != last.text.rstrip():
        text = f"{provider}: the message that the model continues ends with white space"
        return [Fault(rule="no-trailing-space", text=text, message_index=index)]
    return []


def faults_of_thinking(sent: SentMessages, provider: Provider) -> list[Fault]:
    """The fault of a last turn with calls that does not start with thinking, although thinking is
    on. A turn goes on after results of tools.
    """
    turn: list[tuple[int, Message, list[Part]]] = []
    for entry in sent.parts:
        _, message, parts = entry
        if message.role == "assistant":
            turn.append(entry)
        elif not all(isinstance(part, ToolResultPart) for part in parts):
            turn = []
    has_calls = any(isinstance(part, ToolUsePart) for _, _, parts in turn for part in parts)
    if not has_calls or isinstance(turn[0][2][0], ThinkingPart):
        return []
    text = f"{provider}: with thinking on, the last turn with calls of tools starts with thinking"
    return [Fault(rule="thinking-first", text=text, message_index=turn[0][0])]
