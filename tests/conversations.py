"""Recorded OpenAI Chat conversations as events, and back from a ledger. The recordings are no part
of the repository: without their file, generated conversations of the same kind take their place.

As a program, this module publishes some of them:

python -m tests.conversations KAFKA PREFIX FIRST STEP
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runfold import AssistantMessage, Message, Runfold, SystemMessage, ToolCall, ToolResult, UserMessage
from runfold_schemas.data import Data
from runfold_schemas.messages import TextPart, ToolResultPart, ToolUsePart

Chat = dict[str, Any]
"""A message, or a whole conversation with its `id` and `messages`."""

VARIABLE = "RUNFOLD_CONVERSATIONS"
FILE = Path(os.environ.get(VARIABLE) or Path(__file__).parents[2] / "shared" / "data" / "conversations.jsonl")
GENERATED = 20


def source() -> str:
    """Which conversations a session reads, in words for pytest's header."""
    return str(FILE) if FILE.is_file() else f"generated, since {FILE} is missing ({VARIABLE} names another)"


def conversations() -> list[Chat]:
    """The recorded conversations if their file is there, generated ones otherwise."""
    if FILE.is_file():
        return [json.loads(line) for line in FILE.read_text().splitlines()]
    return [{"id": str(number), "messages": generated(number)} for number in range(GENERATED)]


def generated(number: int) -> list[Chat]:
    """Messages with repeated ids, spaced arguments, empty results, and text beside a call."""
    messages: list[Chat] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Höflich, bitte 🙂"},
    ]
    for step in range(3):
        call = {
            "id": f"call_{step % 2}",
            "type": "function",
            "function": {"name": "look", "arguments": '{"n":  1, "ü": "é"}'},
        }
        messages += [
            {"role": "assistant", "content": "I look." if step else None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "name": "look", "content": ""},
        ]
    return [*messages, {"role": "assistant", "content": f"Done {number}."}]


def events_of(message: Chat) -> Iterator[Data]:
    match message["role"]:
        case "system":
            yield SystemMessage(message=message["content"])
        case "user":
            yield UserMessage(message=message["content"])
        case "tool":
            yield ToolResult(
                tool_call_id=message["tool_call_id"], tool_name=message["name"], result=message["content"]
            )
        case _:
            if message["content"]:
                yield AssistantMessage(message=message["content"])
            for call in message.get("tool_calls") or []:
                arguments = call["function"]["arguments"]
                yield ToolCall(
                    tool_call_id=call["id"],
                    tool_name=call["function"]["name"],
                    payload=json.loads(arguments),
                    provider_data={"arguments": arguments},
                )


def chat_of(messages: Sequence[Message]) -> list[Chat]:
    """The ledger as Chat messages with what the conversations have of them."""
    return [chat for message in messages for chat in _chat(message)]


def plain(message: Chat) -> Chat:
    """A recorded message without what says nothing: no calls, no text, a function call of the old
    form.
    """
    wanted = {name: message.get(name) or None for name in ("role", "content", "tool_calls", "tool_call_id")}
    if wanted["role"] == "tool":
        wanted["content"] = message["content"]
    return {name: value for name, value in wanted.items() if value is not None}


def _chat(message: Message) -> Iterator[Chat]:
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    if results:
        yield from (
            {"role": "tool", "content": one.content, "tool_call_id": one.tool_use_id} for one in results
        )
        return
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    calls = [_call(part) for part in message.parts if isinstance(part, ToolUsePart)]
    yield {
        "role": message.role,
        **({"content": text} if text else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def _call(part: ToolUsePart) -> Chat:
    assert part.provider_data is not None
    assert part.input == json.loads(part.provider_data["arguments"])
    return {
        "id": part.id,
        "function": {"name": part.name, "arguments": part.provider_data["arguments"]},
        "type": "function",
    }


async def publish(runfold: Runfold, conversation: Chat) -> None:
    """One run, a turn for each message of the user, awaited and pipelined by turns."""
    async with runfold.run(
        agent_id="airline", session_id="conversations", run_id=str(conversation["id"])
    ) as run:
        turn = 0
        for message in conversation["messages"]:
            turn += message["role"] == "user"
            for data in events_of(message):
                await run.send(data, turn_id=f"turn-{turn}")


async def main(kafka: str, prefix: str, first: int, step: int) -> None:
    async with Runfold(kafka, prefix=prefix) as runfold:
        await asyncio.gather(*(publish(runfold, each) for each in conversations()[first::step]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:5])))
