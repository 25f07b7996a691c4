"""Records as JSON. Each event keeps the bytes that it has in the log."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runfold.log.effect_keys import EffectKeys, may_change_others
from runfold.query.as_of import turn_before
from runfold.query.history import History, Slice
from runfold_projections.admission import Admitted
from runfold_projections.as_of import CurrentTurn
from runfold_projections.state import changes_others

_ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""The size of one answer, whatever its limit. A single event may be larger."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which records to show. An empty field, or None, does not restrict."""

    types: frozenset[str] = frozenset()
    turn_id: str | None = None
    everything: bool = False
    """Also records that do not count: duplicates, rejected and undecodable records."""

    def shows(self, admitted: Admitted, turn_id: str | None) -> bool:
        """Whether to show a record of this turn."""
        if not (admitted.counts or self.everything):
            return False
        if self.types and (admitted.event is None or admitted.event.type not in self.types):
            return False
        return self.turn_id is None or (admitted.event is not None and self.turn_id == turn_id)

    def skips(self, slice_: Slice, current: CurrentTurn) -> bool:
        """Whether none of a slice's records can be shown, and none begins or ends the turn. It is
        known without reading them. `current` is the turn before the slice.
        """
        if self.everything:
            return False
        if self.turn_id is not None:
            if self.turn_id not in slice_.turns and current.turn_id != self.turn_id:
                return True
            if slice_.turns:
                return False
        return bool(self.types) and self.types.isdisjoint(slice_.types)


Unsigned = Callable[[Admitted], bool]
"""Whether a record changes its run alone, although its event would change what runs share."""


def unsigned_in(keys: EffectKeys | None, topic: str) -> Unsigned:
    """The test for the records of a run's topic."""

    def is_unsigned(admitted: Admitted) -> bool:
        event = admitted.event
        return (
            admitted.outcome == "accepted"
            and event is not None
            and changes_others(event)
            and not may_change_others(keys, topic, admitted.record)
        )

    return is_unsigned


async def events_page(
    history: History,
    event_filter: EventFilter,
    *,
    first_offset: int,
    end: int,
    limit: int,
    is_unsigned: Unsigned,
) -> bytes:
    """One answer of the events route: as many matching records as fit, and the offset of the
    next.
    """
    shown: list[bytes] = []
    size, next_offset = 0, max(first_offset, end)
    current = CurrentTurn()
    if event_filter.turn_id is not None and first_offset > 0:
        current = await turn_before(history, first_offset)
    async for slice_ in history.slices(first_offset=first_offset, end=end):
        for admitted in [] if event_filter.skips(slice_, current) else slice_.admitted():
            if event_filter.shows(admitted, current.take(admitted)):
                if len(shown) == limit or size > _ANSWER_BYTES_MAX:
                    return _render_page(history, shown, next_offset=admitted.record.offset)
                shown.append(record_json(admitted, is_unsigned=is_unsigned(admitted)))
                size += len(shown[-1])
    return _render_page(history, shown, next_offset=next_offset)


def record_json(admitted: Admitted, *, is_unsigned: bool = False) -> bytes:
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
    if is_unsigned:
        facts["effects"] = "unsigned"
    if admitted.event is None:
        return json.dumps({**facts, "event": None, "value_base64": base64.b64encode(value).decode()}).encode()
    return b'%b,"event":%b}' % (json.dumps(facts).encode().removesuffix(b"}"), value)


def _render_page(history: History, shown: list[bytes], *, next_offset: int) -> bytes:
    head = json.dumps({"run_id": history.run_id, "next_offset": next_offset, "end_offset": history.end})
    return b'%b,"events":[%b]}' % (head.encode().removesuffix(b"}"), b",".join(shown))
