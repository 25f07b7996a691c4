"""UUIDv7 (RFC 9562, section 5.7): ids that sort by the millisecond in which they were made."""

import json
import os
import time
import uuid
from collections.abc import Callable
from typing import Final

EventIds = Callable[[int], str]
"""The event_id of the event at this index, among events that belong together."""

RepeatableId = Callable[[str], str]
"""The id that every process derives from a name, for what may be published again."""

_NAMESPACE: Final = uuid.UUID("5a1c7c0e-6a52-4c52-8f0b-3b9f6a6c2d17")

_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62


def uuid7() -> uuid.UUID:
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10))
    return uuid.UUID(
        int=milliseconds << 80
        | _VERSION_7
        | (random >> 68 << 64) & (0xFFF << 64)
        | _VARIANT
        | random & (1 << 62) - 1
    )


def new_event_id() -> str:
    return str(uuid7())


def new_log_id() -> str:
    return uuid7().hex


def recording_ids(run_id: str, recording_id: str) -> RepeatableId:
    """The ids of the events of a response. Every process derives the same ids, as UUIDv5."""
    return lambda name: str(uuid.uuid5(_NAMESPACE, json.dumps([run_id, recording_id, name])))
