"""Records as JSON. Each event keeps the bytes that it has in the log."""

import base64
import json
from dataclasses import dataclass
from typing import Any

from runfold.query.history import History, Slice
from runfold_projections.admission import Admitted

_ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""The size of one answer, whatever its limit. A single event may be larger."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which records to show. An empty field, or None, does not restrict."""

    types: frozenset[str] = frozenset()
    turn_id: str | None = None
    everything: bool = False
    """Also records that do not count: duplicates, rejected and undecodable records."""

    def shows(self, admitted: Admitted) -> bool:
        if not (admitted.counts or self.everything):
            return False
        if self.types and (admitted.event is None or admitted.event.type not in self.types):
            return False
        return self.turn_id is None or (admitted.event is not None and admitted.event.turn_id == self.turn_id)

    def skips(self, slice_: Slice) -> bool:
        """Whether none of a slice's records can be shown. It is known without reading them."""
        if self.everything:
            return False
        return (bool(self.types) and self.types.isdisjoint(slice_.types)) or not self._may_hold_turn(slice_)

    def _may_hold_turn(self, slice_: Slice) -> bool:
        return self.turn_id is None or self.turn_id in slice_.turns


async def events_page(
    history: History, event_filter: EventFilter, *, first_offset: int, end: int, limit: int
) -> bytes:
    """One answer of the events route: as many matching records as fit, and the offset of the
    next.
    """
    shown: list[bytes] = []
    size, next_offset = 0, max(first_offset, end)
    async for slice_ in history.slices(first_offset=first_offset, end=end):
        for admitted in [] if event_filter.skips(slice_) else slice_.admitted():
            if event_filter.shows(admitted):
                if len(shown) == limit or size > _ANSWER_BYTES_MAX:
                    return _render_page(history, shown, next_offset=admitted.record.offset)
                shown.append(record_json(admitted))
                size += len(shown[-1])
    return _render_page(history, shown, next_offset=next_offset)


def record_json(admitted: Admitted) -> bytes:
    """A record with its outcome. The event's bytes stay as they are, so numbers keep every digit.

    A record that cannot be decoded has no event, and its bytes are given as base64.
    """
    record, value = admitted.record, admitted.record.value or b""
    facts: dict[str, Any] = {
        "offset": record.offset,
        "log_time": record.log_time,
        "outcome": admitted.outcome,
    }
    if admitted.reason:
        facts["reason"] = admitted.reason
    if admitted.event is None:
        return json.dumps({**facts, "event": None, "value_base64": base64.b64encode(value).decode()}).encode()
    return b'%b,"event":%b}' % (json.dumps(facts).encode().removesuffix(b"}"), value)


def _render_page(history: History, shown: list[bytes], *, next_offset: int) -> bytes:
    head = json.dumps({"run_id": history.run_id, "next_offset": next_offset, "end_offset": history.end})
    return b'%b,"events":[%b]}' % (head.encode().removesuffix(b"}"), b",".join(shown))
