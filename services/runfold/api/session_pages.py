"""Pages of limited size: of a session's events, and of sessions with their state."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from runfold.client.session import RecordedEvent, Session
from runfold.documents.sessions import session_json, sessions_json
from runfold.store.sessions import cursor_after

_BYTES_MAX: Final = 4 * 1024 * 1024
"""The size of one page, whatever its limit. A single event or session may be larger."""

_AT_FIRST: Final = 50
"""Sessions that are read at first, before their size is known."""

Reading = Callable[..., Awaitable[tuple[Sequence[Session], str | None]]]


def count_fitting(events: Sequence[RecordedEvent]) -> int:
    """The number of events that fit into one page, at least one."""
    size = 0
    for number, event in enumerate(events):
        if size > _BYTES_MAX:
            return number
        size += len(event.value)
    return len(events)


async def read_page(read: Reading, limit: int, cursor: str | None) -> bytes:
    """A page of the sessions that `read` returns for `limit` and `cursor`. It reads few sessions
    more than it shows.
    """
    shown: list[bytes] = []
    size, at_a_time = 0, _AT_FIRST
    while True:
        sessions, cursor = await read(limit=min(at_a_time, limit - len(shown)), cursor=cursor)
        for session in sessions:
            shown.append(session_json(session))
            size += len(shown[-1])
            if size > _BYTES_MAX:
                is_last = session is sessions[-1]
                return sessions_json(shown, cursor if is_last else cursor_after(session.record))
        if cursor is None or len(shown) >= limit:
            return sessions_json(shown, cursor)
        # As many as fit, if they are as large as the sessions before.
        at_a_time = 1 + (_BYTES_MAX - size) * len(shown) // size if shown else _AT_FIRST
