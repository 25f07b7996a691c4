"""Recorded OpenAI Chat conversations as events, and back from a ledger. Run as a program it
publishes some of them:

python -m tests.conversations KAFKA PREFIX FILE FIRST STEP
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runfold import AssistantMessage, Message, Runfold, SystemMessage, ToolCall, ToolResult, UserMessage
from runfold_schemas.data import Data
from runfold_schemas.messages import TextPart, ToolResultPart, ToolUsePart

Chat = dict[str, Any]


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


async def main(kafka: str, prefix: str, file: str, first: int, step: int) -> None:
    conversations = [json.loads(line) for line in Path(file).read_text().splitlines()][first::step]
    async with Runfold(kafka, prefix=prefix) as runfold:
        await asyncio.gather(*(publish(runfold, conversation) for conversation in conversations))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], *map(int, sys.argv[4:6])))
