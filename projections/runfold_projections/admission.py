"""Decides the outcome of each record of a run's log. Every reader uses this rule.

Outcomes: `accepted`; `duplicate` of an event that counted before; `rejected` (a lost
`expected_offset`, a second opening, a lifecycle change after the end); `late` (decodable, after the
end of the run: kept, flagged, part of the ledger); `undecodable`, also if an operator skipped the
record. Only the order of the log and the skips in the catalog decide, so every replay gives the
same outcomes. Pages store the reasons and `runfold verify` compares them, so the texts of reasons
stay the same.
"""

from collections.abc import Collection, Iterable
from typing import Final, Literal, NamedTuple

from runfold_projections.seen_ids import SeenIds
from runfold_schemas.codec import Record, decode_record, fault_without_content
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS, LIFECYCLE

Outcome = Literal["accepted", "duplicate", "rejected", "late", "undecodable"]

COUNTING: Final[frozenset[Outcome]] = frozenset({"accepted", "late"})
"""The outcomes of events that are part of the run's history."""

SKIPPED: Final = "an operator skipped the record"
"""The reason of a record that an operator skipped."""


class Admitted(NamedTuple):
    """A record with its outcome. `event` is None for an undecodable record. `reason` is empty for
    an accepted record.
    """

    record: Record
    outcome: Outcome
    event: AnyEvent | None
    reason: str = ""

    @property
    def counts(self) -> bool:
        """Whether the event is part of the run's history."""
        return self.outcome in COUNTING


class Admission:
    """The state of the rule after a prefix of one run's log.

    It holds the id of every event that counted. `skipped` has the offsets that an operator skipped.
    """

    __slots__ = ("_seen", "ended", "last_offset", "opened", "run_id", "skipped")

    def __init__(
        self,
        run_id: str,
        *,
        seen: Iterable[str] = (),
        opened: bool = False,
        ended: bool = False,
        last_offset: int = -1,
        skipped: Collection[range] = (),
    ) -> None:
        self.run_id = run_id
        self.opened = opened
        self.ended = ended
        self.last_offset = last_offset
        """The offset of the last event that counted, -1 before the first."""
        self._seen = SeenIds(seen)
        self.skipped = skipped

    def admit(self, record: Record) -> Admitted:
        """Decides the outcome of the next record of the log, and adds the record to the state."""
        # Checked before decoding, because decoding the record may be what fails.
        if self.skipped and is_skipped(record.offset, self.skipped):
            return Admitted(record, "undecodable", None, SKIPPED)
        try:
            event = decode_record(record)
        except UndecodableError as error:
            return Admitted(record, "undecodable", None, error.reason)
        outcome, reason = self.decide(
            record.offset,
            run_id=event.run_id,
            event_id=event.event_id,
            kind=event.type,
            expected=event.expected_offset,
        )
        return Admitted(record, outcome, event if outcome != "undecodable" else None, reason)

    def decide(
        self, offset: int, *, run_id: str, event_id: str, kind: str, expected: int | None
    ) -> tuple[Outcome, str]:
        """The outcome and the reason of the next event, given by the fields that decide. Adds the
        event to the state.
        """
        if run_id != self.run_id:
            return "undecodable", f"run_id: the event belongs to run {run_id!r}"
        if event_id in self._seen:
            return "duplicate", "an event with this event_id is in the log before"
        # For nearly all events neither holds, and every event passes here.
        is_conditional = expected is not None or kind in LIFECYCLE
        if is_conditional and (refusal := self._refusal(kind, expected, offset)):
            return "rejected", refusal
        has_ended = self.ended
        self._count(event_id, kind, offset)
        return ("late", "the run had ended") if has_ended else ("accepted", "")

    def pack(self) -> None:
        """Keeps the ids of events in little room. Call it when the run is quiet."""
        self._seen.pack()

    def replay(self, admitted: Admitted) -> None:
        """Adds a record to the state whose outcome was decided before."""
        if admitted.counts and admitted.event is not None:
            self._count(admitted.event.event_id, admitted.event.type, admitted.record.offset)

    def _count(self, event_id: str, kind: str, offset: int) -> None:
        self._seen.add(event_id)
        self.last_offset = offset
        if kind in LIFECYCLE:
            self.opened = self.opened or kind == "run_opened"
            self.ended = self.ended or kind in ENDINGS

    def _refusal(self, kind: str, expected: int | None, offset: int) -> str:
        """The reason to reject the event, "" if there is none."""
        if expected is not None:
            if expected < self.last_offset:
                return f"expected_offset is {expected}, the last accepted event is at {self.last_offset}"
            if expected >= offset:
                return f"expected_offset is {expected}, and this event is at {offset} already"
        if kind in LIFECYCLE:
            if self.ended:
                return "the run has ended"
            if self.opened and kind == "run_opened":
                return "the run is open already"
        return ""


def is_skipped(offset: int, skipped: Collection[range]) -> bool:
    """Whether one of the ranges contains the offset."""
    return any(offset in offsets for offsets in skipped)


def reason_without_content(admitted: Admitted) -> str:
    """The reason of an undecodable record without any word of the record."""
    if admitted.reason == SKIPPED:  # decoding the record may be what fails
        return SKIPPED
    return fault_without_content(admitted.record) or "the event has no place in this topic"
