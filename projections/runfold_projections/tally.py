"""The outcomes of consecutive records of a run's log, as sums: what a page says beside its records,
and what the record of the run takes from them.

Nearly all events of a log change no more than these sums, so `admit_all` makes models of the other
events only.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from runfold_projections.admission import COUNTING, Admission, Admitted, Outcome, is_skipped
from runfold_projections.frameworks import expand
from runfold_projections.state import SHARED_KINDS
from runfold_schemas.codec import Record
from runfold_schemas.event_fields import fields_of
from runfold_schemas.events import AnyEvent, ToolCall, ToolResult
from runfold_schemas.runs import ENDINGS, LIFECYCLE, RunOpened

CHANGING: Final = LIFECYCLE | {"prompt_rendered", "run_labeled", "run_scored", "token_usage"}
"""The kinds that change more of a run's record than the sums."""

_WHOLE: Final = CHANGING | SHARED_KINDS

_TOOL_KINDS: Final = frozenset({"tool_call", "tool_result"})

_FRAMEWORK_TOOLS: Final = (b"functionCall", b"functionResponse", b"_call")
"""Each body of a framework that names a tool contains one of these. Other bodies need no model."""


class ToolFact(NamedTuple):
    """A call of a tool or its result, as the statistics of tools need it."""

    offset: int
    is_call: bool
    tool_call_id: str
    tool_name: str
    timestamp: datetime
    is_error: bool = False
    duration_ms: float | None = None


class Tally:
    """The sums over some records. `add` and `add_fields` add the next record."""

    __slots__ = (
        "copies",
        "counts",
        "ended_at",
        "event_ids",
        "exceptions",
        "last_turn_id",
        "next_offset",
        "not_accepted",
        "tools",
        "turns",
        "undecodable",
        "updated_at",
        "whole",
    )

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """The number of events that count, by type."""
        self.event_ids: list[str] = []
        """The ids of the events that count."""
        self.turns: dict[str, None] = {}
        """The turns of the events that count, in the order of their first events."""
        self.last_turn_id: str | None = None
        self.updated_at: datetime | None = None
        """The time of the last event that counts."""
        self.copies: tuple[int, int] | None = None
        """If the run is a fork and its opening is among these records: the offsets of the first and
        of the last copy.
        """
        self.ended_at: datetime | None = None
        """The time of the first event that ended the run."""
        self.tools: list[ToolFact] = []
        """The calls of tools and their results that count."""
        self.exceptions: list[tuple[int, Outcome, str]] = []
        """The offset, the outcome and the reason of every record that was not accepted."""
        self.undecodable: list[Admitted] = []
        self.whole: list[Admitted] = []
        """The events that may change more than these sums, and perhaps others."""
        self.next_offset: int | None = None
        """The offset after the last record, None without records."""
        self.not_accepted: dict[tuple[str, Outcome], int] = {}
        """The number of records by type and outcome, without the accepted ones. The type of an
        undecodable record is "".
        """

    def add(self, admitted: Admitted) -> None:
        event = admitted.event
        if event is None:
            self.undecodable.append(admitted)
            self._except(admitted.record.offset, admitted.outcome, admitted.reason, kind="")
            return
        self.whole.append(admitted)
        self.add_fields(
            admitted.record.offset,
            admitted.outcome,
            admitted.reason,
            event_id=event.event_id,
            kind=event.type,
            turn_id=event.turn_id,
            timestamp=event.timestamp,
        )
        if not admitted.counts:
            return
        if event.type in _TOOL_KINDS:
            self.tools.append(_tool_fact(admitted.record.offset, event))
        elif event.type == "framework_event":
            self._add_framework_tools(admitted.record, event)
        elif isinstance(event.data, RunOpened) and event.data.forked_from is not None:
            offset = admitted.record.offset
            self.copies = self.copies or (offset + 1, offset + event.data.forked_from.events)
        elif event.type in ENDINGS and self.ended_at is None:
            self.ended_at = event.timestamp

    def add_fields(
        self,
        offset: int,
        outcome: Outcome,
        reason: str,
        *,
        event_id: str,
        kind: str,
        turn_id: str | None,
        timestamp: datetime,
    ) -> None:
        if outcome != "accepted":
            self._except(offset, outcome, reason, kind=kind)
            if outcome not in COUNTING:
                return
        self.next_offset = offset + 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.event_ids.append(event_id)
        self.updated_at = timestamp
        if turn_id is not None:
            self.turns[turn_id] = None
            self.last_turn_id = turn_id

    def _add_framework_tools(self, record: Record, event: AnyEvent) -> None:
        if _may_have_tools(record):
            self.tools += [
                _tool_fact(record.offset, each) for each in expand(event) if each.type in _TOOL_KINDS
            ]

    def _except(self, offset: int, outcome: Outcome, reason: str, *, kind: str) -> None:
        self.exceptions.append((offset, outcome, reason))
        self.not_accepted[kind, outcome] = self.not_accepted.get((kind, outcome), 0) + 1
        self.next_offset = offset + 1


def tally_of(admitted: Iterable[Admitted]) -> Tally:
    tally = Tally()
    for each in admitted:
        tally.add(each)
    return tally


def admit_all(admission: Admission, records: Sequence[Record]) -> Tally:
    """Decides the outcomes of the next records of the log, as `Admission.admit` does."""
    tally, decide, skipped = Tally(), admission.decide, admission.skipped
    for record in records:
        # Skipped records are not decoded, because decoding them may be what fails.
        fields = None if skipped and is_skipped(record.offset, skipped) else fields_of(record)
        if (
            fields is None
            or fields["type"] in _WHOLE
            or fields.get("state_delta") is not None
            or (fields["type"] == "framework_event" and _may_have_tools(record))
        ):
            tally.add(admission.admit(record))
            continue
        event_id, kind = fields["event_id"], fields["type"]
        outcome, reason = decide(
            record.offset,
            run_id=fields["run_id"],
            event_id=event_id,
            kind=kind,
            expected=fields.get("expected_offset"),
        )
        if outcome == "undecodable":
            tally.add(Admitted(record, outcome, None, reason))
            continue
        tally.add_fields(
            record.offset,
            outcome,
            reason,
            event_id=event_id,
            kind=kind,
            turn_id=fields.get("turn_id"),
            timestamp=fields["timestamp"],
        )
        if kind in _TOOL_KINDS and outcome in COUNTING:
            tally.tools.append(_fact_of_fields(record.offset, kind, fields["timestamp"], fields["data"]))
    return tally


def _may_have_tools(record: Record) -> bool:
    return any(name in (record.value or b"") for name in _FRAMEWORK_TOOLS)


def _tool_fact(offset: int, event: AnyEvent) -> ToolFact:
    data = event.data
    if isinstance(data, ToolCall):
        return ToolFact(offset, True, data.tool_call_id, data.tool_name, event.timestamp)
    assert isinstance(data, ToolResult)
    return ToolFact(
        offset,
        False,
        data.tool_call_id,
        data.tool_name,
        event.timestamp,
        data.error is not None,
        data.duration_ms,
    )


def _fact_of_fields(offset: int, kind: str, timestamp: datetime, data: dict[str, Any]) -> ToolFact:
    return ToolFact(
        offset,
        kind == "tool_call",
        data["tool_call_id"],
        data.get("tool_name", ""),
        timestamp,
        data.get("error") is not None,
        data.get("duration_ms"),
    )
