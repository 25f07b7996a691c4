"""Finds all faults of a ledger, each with its place and the broken rule.

The folds report faults of a log (a call without a result) with the same type.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from runfold_schemas.messages import Message, ThinkingPart, ToolResultPart, ToolUsePart

Rule = Literal[
    "thinking-first",
    "user-after-calls",
    "no-more-results-than-calls",
    "results-match-calls",
    "call-has-id",
    "call-id-unique",
    "call-has-result",
    "one-result-per-call",
    "result-has-id",
    "result-has-call",
    "result-after-call",
    "first-message-user",
    "last-message-user",
    "no-trailing-space",
    "assistant-after-results",
    "more-than-thinking",
    "input-is-object",
    "text-not-blank",
    "server-call-has-result",
    "server-result-has-call",
    "instructions-within",
    "not-stored",
    "inexpressible",
    "blob-missing",
    "media-is-readable",
    "image-size",
    "arguments-length",
]
"""The name of a broken rule. Names stay the same between versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One broken rule. A fault of messages has a `message_index`, a fault of a log has an `offset`.
    Both count from 0.
    """

    rule: Rule
    text: str
    message_index: int | None = None
    part_index: int | None = None
    offset: int | None = None
    tool_use_id: str | None = None


def validate_bedrock(messages: Sequence[Message], *, thinking: bool) -> list[Fault]:
    """The faults for which Bedrock would refuse the messages, in their order.

    The rules for an assistant message with tool_use: if `thinking` is on, the message starts with
    thinking, which may be empty. The next message is the user's. Its results are no more than the
    calls, and their ids are ids of the calls. Missing results are no fault here, and neither are
    results after a message without calls. Ids are compared as sets, without the empty id.

    The rules, their order and the texts are those of Goa-AI 0.38.0, which reports only the first
    fault.
    """
    return [
        fault
        for index, message in enumerate(messages)
        if message.role == "assistant" and _calls(message)
        for fault in _bedrock_exchange(messages, index, thinking=thinking)
    ]


def validate_strict(messages: Sequence[Message]) -> list[Fault]:
    """The faults that make a ledger incomplete, in the order of the messages.

    Every call has an id that is unique in its message, and exactly one result in the user message
    right after it. Results occur nowhere else. These are Runfold's own rules; a provider may accept
    less.
    """
    return [
        fault
        for index, message in enumerate(messages)
        for fault in (
            *_strict_results(index, _results(message), declared=_calls_before(messages, index)),
            *_strict_calls(index, _calls(message), answered=_results_after(messages, index)),
        )
    ]


def _bedrock_exchange(messages: Sequence[Message], index: int, *, thinking: bool) -> Iterator[Fault]:
    message = messages[index]
    following = messages[index + 1] if index + 1 < len(messages) else None
    if thinking and not isinstance(message.parts[0], ThinkingPart):
        yield Fault(
            rule="thinking-first",
            text="bedrock: assistant message with tool_use must start with thinking",
            message_index=index,
        )
    if following is None or following.role != "user":
        yield Fault(
            rule="user-after-calls",
            text="bedrock: expected user tool_result following assistant tool_use",
            message_index=index,
        )
        return
    yield from _bedrock_results(index + 1, declared=_calls(message), results=_results(following))


def _bedrock_results(index: int, *, declared: list[str], results: list[str]) -> Iterator[Fault]:
    declared_ids = set(declared) - {""}
    # Each id once, in the order of the results.
    result_ids = [tool_id for tool_id in dict.fromkeys(results) if tool_id]
    if len(result_ids) > len(declared_ids):
        yield Fault(
            rule="no-more-results-than-calls",
            text="bedrock: tool_result count exceeds prior assistant tool_use count",
            message_index=index,
        )
    for tool_id in result_ids:
        if tool_id not in declared_ids:
            yield Fault(
                rule="results-match-calls",
                text="bedrock: tool_result id does not match prior assistant tool_use id",
                message_index=index,
                tool_use_id=tool_id,
            )


def _strict_results(index: int, results: list[str], *, declared: set[str]) -> Iterator[Fault]:
    for tool_id, times in Counter(results).items():
        if not tool_id:
            yield _strict(index, "result-has-id", tool_id, f"{times} tool_result without an id")
        elif tool_id not in declared:
            yield _strict(index, "result-has-call", tool_id, f"tool_result {tool_id!r} answers no call")
        elif times > 1:
            yield _strict(index, "one-result-per-call", tool_id, f"{times} tool_result for {tool_id!r}")


def _strict_calls(index: int, calls: list[str], *, answered: set[str]) -> Iterator[Fault]:
    for tool_id, times in Counter(calls).items():
        if not tool_id:
            yield _strict(index, "call-has-id", tool_id, f"{times} tool_use without an id")
            continue
        if times > 1:
            yield _strict(index, "call-id-unique", tool_id, f"{times} tool_use with the id {tool_id!r}")
        if tool_id not in answered:
            yield _strict(index, "call-has-result", tool_id, f"tool_use {tool_id!r} has no result")


def _strict(index: int, rule: Rule, tool_id: str, text: str) -> Fault:
    return Fault(rule=rule, text=text, message_index=index, tool_use_id=tool_id)


def _calls_before(messages: Sequence[Message], index: int) -> set[str]:
    """The ids of the calls that results in the message at `index` may answer."""
    if index == 0 or messages[index].role != "user" or messages[index - 1].role != "assistant":
        return set()
    return set(_calls(messages[index - 1]))


def _results_after(messages: Sequence[Message], index: int) -> set[str]:
    """The ids of the results that may answer calls in the message at `index`."""
    following = index + 1
    if following == len(messages) or not _calls_before(messages, following):
        return set()
    return set(_results(messages[following]))


def _calls(message: Message) -> list[str]:
    return [part.id for part in message.parts if isinstance(part, ToolUsePart)]


def _results(message: Message) -> list[str]:
    return [part.tool_use_id for part in message.parts if isinstance(part, ToolResultPart)]
