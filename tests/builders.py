"""Events for tests: every field has a good default, and a test names only what matters to it.

Ids and timestamps come from a counter, so no event is like another and a run of the tests repeats
the last one's.
"""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from runfold_schemas.codec import new_event
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AnyEvent,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The timestamp of event number 0; each further event is a second later."""

_numbers = count()


def event(data: Data, **envelope: Any) -> AnyEvent:
    """The event that says `data`, with whatever fields of the envelope the test cares about."""
    number = next(_numbers)
    defaults = {
        "event_id": event_id(number),
        "run_id": "run-1",
        "timestamp": EPOCH + timedelta(seconds=number),
    }
    return new_event(data, **(defaults | envelope))


def events(*data: Data, **envelope: Any) -> list[AnyEvent]:
    """One event for each of `data`, all with the same `envelope`."""
    return [event(each, **envelope) for each in data]


def event_id(number: int) -> str:
    """A UUIDv7 by its shape, made of `number`: the higher the number, the later it sorts."""
    return f"{number >> 16:08x}-{number & 0xFFFF:04x}-7000-8000-{number:012x}"
