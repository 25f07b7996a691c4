"""Decides the outcome of each record of a run's log. Every reader uses this rule.

Outcomes: `accepted`; `duplicate` of an event that counted before; `rejected` (a lost
`expected_offset`, a second opening, a lifecycle change after the end); `late` (decodable, after the
end of the run: kept, flagged, part of the ledger); `undecodable`. Only the order of the log
decides, so every replay gives the same outcomes. Pages store the reasons and `runfold verify`
compares them, so the texts of reasons stay the same.
"""

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from runfold_schemas.codec import Record, decode_record
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS, LIFECYCLE

Outcome = Literal["accepted", "duplicate", "rejected", "late", "undecodable"]

COUNTING: Final[frozenset[Outcome]] = frozenset({"accepted", "late"})
"""The outcomes of events that are part of the run's history."""


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

    It holds the id of every event that counted, about 150 bytes for each event.
    """

    def __init__(
        self,
        run_id: str,
        *,
        seen: Iterable[str] = (),
        opened: bool = False,
        ended: bool = False,
        last_offset: int = -1,
    ) -> None:
        self.run_id = run_id
        self.opened = opened
        self.ended = ended
        self.last_offset = last_offset
        """The offset of the last event that counted, -1 before the first."""
        self._seen = set(seen)

    def admit(self, record: Record) -> Admitted:
        """Decides the outcome of the next record of the log, and adds the record to the state."""
        try:
            event = decode_record(record)
        except UndecodableError as error:
            return Admitted(record, "undecodable", None, error.reason)
        if event.run_id != self.run_id:
            return Admitted(record, "undecodable", None, f"run_id: the event belongs to run {event.run_id!r}")
        if event.event_id in self._seen:
            return Admitted(record, "duplicate", event, "an event with this event_id is in the log before")
        if refusal := self._refusal(event, record.offset):
            return Admitted(record, "rejected", event, refusal)
        outcome: Outcome = "late" if self.ended else "accepted"
        self._count(event, record.offset)
        return Admitted(record, outcome, event, "the run had ended" if outcome == "late" else "")

    def replay(self, admitted: Admitted) -> None:
        """Adds a record to the state whose outcome was decided before."""
        if admitted.counts and admitted.event is not None:
            self._count(admitted.event, admitted.record.offset)

    def _count(self, event: AnyEvent, offset: int) -> None:
        self._seen.add(event.event_id)
        self.last_offset = offset
        self.opened = self.opened or event.type == "run_opened"
        self.ended = self.ended or event.type in ENDINGS

    def _refusal(self, event: AnyEvent, offset: int) -> str:
        """The reason to reject the event, "" if there is none."""
        expected = event.expected_offset
        if expected is not None and expected < self.last_offset:
            return f"expected_offset is {expected}, the last accepted event is at {self.last_offset}"
        if expected is not None and expected >= offset:
            return f"expected_offset is {expected}, and this event is at {offset} already"
        if self.ended and event.type in LIFECYCLE:
            return "the run has ended"
        if self.opened and event.type == "run_opened":
            return "the run is open already"
        return ""
