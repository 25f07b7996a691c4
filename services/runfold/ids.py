"""UUIDv7 (RFC 9562, section 5.7): ids that sort by the millisecond of their making."""

import os
import time
import uuid
from datetime import datetime

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


def session_run_id(log_id: str) -> str:
    """The id of the run whose log is a session's own. It shows that the run is no other: see `is_session_run`."""
    return str(uuid.UUID(log_id))


def is_session_run(run_id: str, log_id: str) -> bool:
    """Whether the run was opened with a session, to hold what is said in it."""
    return run_id.replace("-", "") == log_id


def made_after(log_id: str, moment: datetime) -> bool:
    """Whether a log's id says that it was made after `moment`. One that is no UUIDv7 does not say."""
    try:
        known = uuid.UUID(log_id)
    except ValueError:
        return False
    return known.version == 7 and known.int >> 80 > int(moment.timestamp() * 1000)
