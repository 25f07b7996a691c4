"""Records as JSON for the wire, with each event as the very bytes that are in the log."""

import base64
import json
from dataclasses import dataclass
from typing import Any

from runfold.query.history import History, Slice
from runfold_projections.admission import Admitted

_ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Of events in one answer, whatever its limit; one event alone may be larger."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which records to show; what is empty or None does not restrict."""

    types: frozenset[str] = frozenset()
    turn_id: str | None = None
    everything: bool = False
    """Also records that do not count: duplicates, rejected and undecodable ones."""

    def shows(self, one: Admitted) -> bool:
        if not (one.counts or self.everything):
            return False
        if self.types and (one.event is None or one.event.type not in self.types):
            return False
        return self.turn_id is None or (one.event is not None and one.event.turn_id == self.turn_id)

    def skips(self, part: Slice) -> bool:
        """Whether it is known without reading them that none of a slice's records is shown."""
        if self.everything:
            return False
        return (bool(self.types) and self.types.isdisjoint(part.types)) or not self._may_hold_turn(part)

    def _may_hold_turn(self, part: Slice) -> bool:
        return self.turn_id is None or self.turn_id in part.turns


async def events_page(
    history: History, wanted: EventFilter, *, first_offset: int, end: int, limit: int
) -> bytes:
    """One answer of the events route: as many of the wanted records as fit, and where to go on."""
    shown: list[bytes] = []
    size, next_offset = 0, max(first_offset, end)
    async for part in history.slices(first_offset=first_offset, end=end):
        for one in [] if wanted.skips(part) else part.admitted():
            if wanted.shows(one):
                if len(shown) == limit or size > _ANSWER_BYTES_MAX:
                    return _answer(history, shown, next_offset=one.record.offset)
                shown.append(record_json(one))
                size += len(shown[-1])
    return _answer(history, shown, next_offset=next_offset)


def record_json(one: Admitted) -> bytes:
    """A record with its outcome. The event's bytes are not touched, so numbers keep every digit.

    What could not be decoded is no event; its bytes are there as base64.
    """
    record, value = one.record, one.record.value or b""
    facts: dict[str, Any] = {"offset": record.offset, "log_time": record.log_time, "outcome": one.outcome}
    if one.reason:
        facts["reason"] = one.reason
    if one.event is None:
        return json.dumps({**facts, "event": None, "value_base64": base64.b64encode(value).decode()}).encode()
    return b'%b,"event":%b}' % (json.dumps(facts).encode().removesuffix(b"}"), value)


def _answer(history: History, shown: list[bytes], *, next_offset: int) -> bytes:
    head = json.dumps({"run_id": history.run_id, "next_offset": next_offset, "end_offset": history.end})
    return b'%b,"events":[%b]}' % (head.encode().removesuffix(b"}"), b",".join(shown))
