"""Calls of tools that the provider runs, and their results, in ledgers for Anthropic and Bedrock.

Both are opaque parts of the assistant's messages. The provider refuses a call without its result
("`web_search` tool use with id ... was found without a corresponding `web_search_tool_result`
block") and a result without its call, with one exception: the turn of the assistant is not over. A
turn goes on in the next message of the assistant if nothing but results of tools is between the two
messages. Then the result of a call is in a later message, or is still to come:

- a turn that the provider paused ends the conversation with the call, and the next request resumes
  it;
- if the assistant calls a tool of the provider and a tool of the client at once, the provider runs
  its tool after it has the client's result.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from runfold_projections.providers.values import is_blank_part
from runfold_projections.validation import Rule
from runfold_schemas.messages import Message, OpaquePart, Provider, ToolResultPart, ToolUsePart

_RESULT: Final = re.compile(r"\w+_tool_result")

PartPlace = tuple[int, int]
"""The indexes of a message and of a part."""


class RefusedBlocks(NamedTuple):
    """What the provider would refuse."""

    rules: Mapping[PartPlace, Rule]
    """The broken rules, by the places of the calls and results."""
    tool_ids: frozenset[str]
    """The ids of the calls."""


_NOTHING: Final = RefusedBlocks({}, frozenset())


class _ServerBlock(NamedTuple):
    tool_id: str
    is_call: bool


def refused_server_blocks(
    messages: Sequence[Message], provider: Provider, *, instructions_within: bool
) -> RefusedBlocks:
    """The calls without their result, and the results without their call. Unless the model takes
    `instructions_within` the conversation, they are the user's words there.
    """
    # Most ledgers have no such block, and nothing before the first one matters.
    first = next((index for index, message in enumerate(messages) if _has_opaque(message)), None)
    if first is None:
        return _NOTHING
    rules: dict[PartPlace, Rule] = {}
    tool_ids: set[str] = set()
    waiting: dict[str, PartPlace] = {}

    def refuse_waiting(still: Collection[str] = ()) -> None:
        for tool_id in [tool_id for tool_id in waiting if tool_id not in still]:
            rules[waiting.pop(tool_id)] = "server-call-has-result"
            tool_ids.add(tool_id)

    for index in range(first, len(messages)):
        message = messages[index]
        if waiting and _ends_turn(message, instructions_within=instructions_within):
            refuse_waiting()
        if message.role != "assistant":
            continue
        earlier = set(waiting)
        for place, block in _blocks(index, message, provider):
            if block.is_call:
                if block.tool_id in waiting:
                    rules[waiting[block.tool_id]] = "server-call-has-result"
                waiting[block.tool_id] = place
            elif waiting.pop(block.tool_id, None) is None:
                rules[place] = "server-result-has-call"
        if not earlier.isdisjoint(waiting):
            # Of the earlier calls only code goes on that calls further tools.
            refuse_waiting((waiting.keys() - earlier) | set(_callers(message, provider)))
    return RefusedBlocks(rules, frozenset(tool_ids))


def caller_of(block: Any) -> str | None:
    """The id of the call whose code made this call, from the members of Anthropic's block."""
    match block:
        case {"caller": {"tool_id": str() as tool_id}}:
            return tool_id
    return None


def _has_opaque(message: Message) -> bool:
    if message.role == "assistant":
        for part in message.parts:
            if part.type == "opaque":
                return True
    return False


def _ends_turn(message: Message, *, instructions_within: bool) -> bool:
    if message.role == "assistant" or (message.role == "system" and instructions_within):
        return False
    return not all(isinstance(part, ToolResultPart) or is_blank_part(part) for part in message.parts)


def _blocks(index: int, message: Message, provider: Provider) -> Iterator[tuple[PartPlace, _ServerBlock]]:
    for at, part in enumerate(message.parts):
        if isinstance(part, OpaquePart) and part.provider == provider:
            block = _read(part.content)
            if block is not None:
                yield (index, at), block


def _read(content: Any) -> _ServerBlock | None:
    match content:
        case {"type": "server_tool_use" | "mcp_tool_use", "id": str() as tool_id}:
            return _ServerBlock(tool_id, is_call=True)
        case {"type": str() as kind, "tool_use_id": str() as tool_id} if _RESULT.fullmatch(kind):
            return _ServerBlock(tool_id, is_call=False)
        case {"toolUse": {"toolUseId": str() as tool_id}}:
            return _ServerBlock(tool_id, is_call=True)
        case {"toolResult": {"toolUseId": str() as tool_id}}:
            return _ServerBlock(tool_id, is_call=False)
    return None


def _callers(message: Message, provider: Provider) -> Iterator[str]:
    for part in message.parts:
        match part:
            case OpaquePart(content=block):
                caller = caller_of(block)
            case ToolUsePart(provider_data=dict() as by_provider):
                caller = caller_of(by_provider.get(provider))
            case _:
                caller = None
        if caller is not None:
            yield caller
