"""Dead letters, as a worker publishes them: records that could not be decoded.

If clients encrypt, a dead letter and its reason have no content, because a record that cannot be
decoded may be in clear. Readers take the record from its log, so nothing of it outlives its run.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from prometheus_client import Counter

from runfold.log.publisher import Outgoing, Publisher, record_size
from runfold.telemetry.log_limit import LimitedLog
from runfold_projections.admission import Admitted, reason_without_content
from runfold_schemas.topics import DEAD_LETTER_BYTES_MAX, RECORD_BYTES_MAX, Topics

_SECONDS: Final = 30.0

_LINES_MAX: Final = 5
"""The number of topics that the log lines of this time name."""

_REASON_MAX: Final = 200

_BURIED: Final = Counter(
    "runfold_dead_letters", "Records that this projector could not decode and kept as dead letters"
)

_log = logging.getLogger(__name__)

HasKeys = Callable[[], Awaitable[bool]]
"""Returns whether the topic of keys exists."""


class DeadLetterTopic:
    """The topic of dead letters of one writer, and the log lines: the first record of each origin,
    and then how many there are.
    """

    def __init__(self, topics: Topics, publisher: Publisher, has_keys: HasKeys) -> None:
        self._topic = topics.dead_letters
        self._publisher = publisher
        self._has_keys = has_keys
        self._lines = DeadLetterLog()

    async def bury(self, undecodable: Sequence[tuple[str, Admitted]]) -> None:
        """Publishes dead letters for undecodable records, each with the name of its origin."""
        if not undecodable:
            return
        # Encryption may have been switched on since the last ones.
        new = dead_letter
        if await self._has_keys():
            new = reference
            undecodable = [
                (origin, admitted._replace(reason=reason_without_content(admitted)))
                for origin, admitted in undecodable
            ]
        acks = [
            await self._publisher.send(self._topic, new(origin, admitted)) for origin, admitted in undecodable
        ]
        for ack in acks:
            await self._publisher.wait(ack)
        _BURIED.inc(len(acks))
        self._lines.report(undecodable)


class DeadLetterLog:
    """The lines of one writer."""

    def __init__(self) -> None:
        self._lines = LimitedLog(
            _log, "dead letters", level=logging.WARNING, lines_max=_LINES_MAX, seconds=_SECONDS
        )

    def report(self, undecodable: Sequence[tuple[str, Admitted]]) -> None:
        """Logs that these records, each with the name of its origin, became dead letters."""
        for origin, admitted in undecodable:
            self._lines.log(origin, _line(origin, admitted))


def dead_letter(origin: str, admitted: Admitted) -> Outgoing:
    """The dead letter of a record: the record with its origin as the key. So copies that are
    published after a crash have the same key.

    A record that was compressed may be too large to be sent again. Then its value is cut; the
    origin still has the whole record.
    """
    record = admitted.record
    # A producer could pretend by such headers that the event was published again.
    headers = [header for header in record.headers if not header[0].startswith("runfold-")]
    own_headers = _own_headers(origin, admitted)
    key = _key(origin, admitted)
    whole = Outgoing(key=key, value=record.value, headers=[*headers, *own_headers])
    if record_size(whole) <= DEAD_LETTER_BYTES_MAX:
        return whole
    value = (record.value or b"")[:RECORD_BYTES_MAX]
    return Outgoing(key=key, value=value, headers=[*own_headers, ("runfold-cut", b"true")])


def reference(origin: str, admitted: Admitted) -> Outgoing:
    """The dead letter of a record without the record. It has a value, although an empty one,
    because compaction would remove the letter otherwise.
    """
    size = str(len(admitted.record.value or b"")).encode()
    headers = [*_own_headers(origin, admitted), ("runfold-record-bytes", size)]
    return Outgoing(key=_key(origin, admitted), value=b"", headers=headers)


def _own_headers(origin: str, admitted: Admitted) -> list[tuple[str, bytes]]:
    return [
        ("runfold-origin-topic", origin.encode()),
        ("runfold-origin-offset", str(admitted.record.offset).encode()),
        ("runfold-reason", admitted.reason.encode()),
    ]


def _key(origin: str, admitted: Admitted) -> bytes:
    return f"{origin}:{admitted.record.offset}".encode()


def _line(origin: str, admitted: Admitted) -> str:
    reason = admitted.reason[:_REASON_MAX]
    return f"the record at offset {admitted.record.offset} of {origin} is a dead letter now: {reason}"
