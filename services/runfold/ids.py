"""UUIDv7 (RFC 9562, section 5.7): ids that sort by the millisecond in which they were made."""

import os
import time
import uuid

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
