"""Servers that do not answer: one log line when an outage begins, and one with its duration when it
ends.

Clients of servers repeat failed attempts by themselves, so an outage may cause no error at all.
Therefore the lines come from the attempts, and not from errors.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

_PAUSE_SECONDS: Final = 10.0
"""An outage that begins earlier after the last one is logged if it is long."""

_LONG_SECONDS: Final = 1.0

_REASON_MAX: Final = 200

_log = logging.getLogger(__name__)


_NODE: Final = " at "
"""Stands between the kind of a server and the address of one of its nodes."""

_RECENT_SECONDS: Final = 20.0
"""Clients that need a node try it more often than that."""

_FORGOTTEN_SECONDS: Final = 3600.0
"""Whether a server is away is unknown if nobody has asked it for so long."""


class ServerState(NamedTuple):
    """What this process has seen of a server, or of one of its nodes."""

    server: str
    is_away: bool
    since: datetime | None
    """When it went away or came back. None if it was never away."""
    last_error: str | None
    last_error_at: datetime | None


@dataclass
class _Server:
    reason: str | None = None
    failed_at: float | None = None
    answered_at: float | None = None
    began: float | None = None
    ended: float = float("-inf")
    is_logged: bool = False
    short: int = 0
    """Outages without a line since the last line."""


class Outages:
    """The outages that one process sees. May be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._servers: dict[str, _Server] = {}
        self._lock: Final = threading.Lock()

    def failed(self, server: str, reason: str) -> None:
        """Call it after each attempt that failed. `server` names a server, or one of its nodes."""
        with self._lock:
            known, now = self._servers.setdefault(server, _Server()), self._clock()
            known.reason, known.failed_at = reason[:_REASON_MAX], now
            if known.began is None:
                known.began, known.is_logged = now, False
            is_new = now - known.ended >= _PAUSE_SECONDS or now - known.began >= _LONG_SECONDS
            if known.is_logged or not is_new:
                return
            known.is_logged = True
        _log.warning("%s does not answer: %s", server, reason[:_REASON_MAX])

    def answered(self, server: str) -> None:
        """Call it after each attempt that succeeded."""
        with self._lock:
            known = self._servers.setdefault(server, _Server())
            known.answered_at = self._clock()
            if known.began is None:
                return
            known.ended = self._clock()
            seconds, known.began = known.ended - known.began, None
            if not known.is_logged and seconds < _LONG_SECONDS:
                known.short += 1
                return
            short, known.short = known.short, 0
        further = f", and had {short} short outages before" if short else ""
        _log.warning("%s answers again after %.1f s%s", server, seconds, further)

    def forget(self) -> None:
        """Forgets all servers, because others are asked from here on."""
        with self._lock:
            self._servers.clear()

    def states(self) -> list[ServerState]:
        """All servers that were asked, by name. Left out are servers that failed and were not asked
        again for an hour, and nodes that nobody asks any more while others of their kind answer:
        clients begin at an address that may be none of a node.
        """
        with self._lock:
            servers, now = dict(self._servers), self._clock()
        answers: dict[str, float] = {}
        for name, known in servers.items():
            kind = kind_of(name)
            answers[kind] = max(answers.get(kind, float("-inf")), known.answered_at or float("-inf"))
        return [
            _state(name, known, now)
            for name, known in sorted(servers.items())
            if not _is_left(name, known, now, answers[kind_of(name)])
        ]


def kind_of(server: str) -> str:
    """`Kafka` for `Kafka at 10.0.0.7:9092`, and `MongoDB` for `MongoDB's primary`."""
    return server.partition(_NODE)[0].partition("'")[0]


def is_node(server: str) -> bool:
    """Whether this names one node of a server."""
    return _NODE in server


def _is_left(name: str, known: _Server, now: float, answered_at: float) -> bool:
    if known.began is None or known.failed_at is None:
        return False
    if not is_node(name):
        return now - known.failed_at > _FORGOTTEN_SECONDS
    return answered_at > known.failed_at and now - known.failed_at > _RECENT_SECONDS


def _state(name: str, known: _Server, now: float) -> ServerState:
    changed = known.ended if known.began is None else known.began
    return ServerState(
        name,
        known.began is not None,
        _time(changed, now) if changed > float("-inf") else None,
        known.reason,
        _time(known.failed_at, now) if known.failed_at is not None else None,
    )


def _time(at: float, now: float) -> datetime:
    """The wall-clock time of a time of the monotonic clock."""
    return datetime.fromtimestamp(time.time() - (now - at), UTC)


_outages: Final = Outages()

failed: Final = _outages.failed
answered: Final = _outages.answered
states: Final = _outages.states
forget: Final = _outages.forget
