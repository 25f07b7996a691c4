"""The records of batches, and errors for batches that are too large."""

import asyncio
from datetime import UTC, datetime

import pytest

from runfold.client.records import batch_in_turns
from runfold_schemas.codec import parse_event
from runfold_schemas.errors import EventTooLargeError
from runfold_schemas.events import AnyEvent


def new_event(number: int, text: str) -> AnyEvent:
    return parse_event(
        {
            "type": "user_message",
            "data": {"message": text},
            "run_id": "run-1",
            "event_id": f"00000000-0000-7000-8000-{number:012}",
            "timestamp": datetime.now(UTC).isoformat(),
            "agent_id": "assistant",
        }
    )


def refusal_of(texts: list[str]) -> str:
    events = [new_event(number, text) for number, text in enumerate(texts)]
    with pytest.raises(EventTooLargeError) as caught:
        asyncio.run(batch_in_turns(events, source="test"))
    return str(caught.value)


def test_a_batch_of_many_events_is_refused_with_advice_about_the_batch():
    message = refusal_of(["x" * 1_000_000] * 9)
    assert "the first 9 events of the batch have 9,0" in message
    assert message.endswith("the limit is 8,388,608: publish fewer events in one batch")


def test_a_batch_with_one_event_that_is_too_large_is_refused_with_advice_about_the_event():
    message = refusal_of(["small", "x" * 9_000_000])
    assert message.startswith("the record has 9,0")
    assert "publish a reference" in message
