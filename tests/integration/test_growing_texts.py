"""Texts that are published while their stream goes on: readers see them grow, and the model gets
its own message back.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from runfold import Runfold, UserMessage
from runfold.client import recording
from runfold_schemas.events import AssistantMessage

DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"reasoning_content": "2 +"},
    {"reasoning_content": " 2"},
    *({"content": piece} for piece in ("It", " is", " fo", "ur", "\ud83d", "\ude42", ".")),
]
THOUGHTS = [
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "2 +"}]}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " 2"}]}]},
    *DELTAS[3:],
]


@pytest.mark.parametrize(
    ("deltas", "said"),
    [
        (DELTAS, {"content": "It is four🙂.", "reasoning_content": "2 + 2"}),
        (
            THOUGHTS,
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "2 + 2"}]},
                    {"type": "text", "text": "It is four🙂."},
                ]
            },
        ),
    ],
)
async def test_reasoning_precedes_a_text_that_was_published_while_it_grew(
    kafka: str, monkeypatch: pytest.MonkeyPatch, deltas: list[dict[str, Any]], said: dict[str, Any]
):
    monkeypatch.setattr(recording, "_PARTIAL_SECONDS", 0)

    async with Runfold(kafka, prefix=f"t{uuid4().hex[:8]}", create_topics=True) as runfold:
        run = await runfold.open_run(agent_id="sums")
        await run.publish(UserMessage(message="2 + 2?"))
        async for _ in run.record_stream(chunks(deltas), provider="openai-chat"):
            pass
        said_events = [event.data async for event in run.events()]
        request = await run.ledger("openai-chat")

    assert sum(isinstance(data, AssistantMessage) for data in said_events) > 1
    assert request.body["messages"] == [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", **said},
    ]


async def chunks(deltas: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for delta in deltas:
        # The model takes its time, and what has arrived is published meanwhile.
        await asyncio.sleep(0.05)
        yield {"id": "c-1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {"id": "c-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
