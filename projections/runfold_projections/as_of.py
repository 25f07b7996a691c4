"""Prefixes of a log, which show a run as it was: up to an offset, a time or a turn, or before a
turn.

A turn lasts until the next one begins: an event without a `turn_id` belongs to the turn of the
event before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from runfold_projections.admission import Admitted
from runfold_schemas.errors import InvalidEventError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class AsOf:
    """The end of a prefix by at most one of these fields; without any, the whole run. Raises
    `InvalidEventError` for two fields.
    """

    offset: int | None = None
    time: datetime | None = None
    turn: str | None = None
    before_turn: str | None = None

    def __post_init__(self) -> None:
        values = {
            "as_of_offset": self.offset,
            "as_of_time": self.time,
            "as_of_turn": self.turn,
            "before_turn": self.before_turn,
        }
        names = [name for name, value in values.items() if value is not None]
        if len(names) > 1:
            raise InvalidEventError(f"only one of {' and '.join(names)} can be given", field=names[1])

    @property
    def milliseconds(self) -> int | None:
        """The time since 1970."""
        return None if self.time is None else (self.time - _EPOCH) // _MILLISECOND

    def end(self, run_id: str, log: Sequence[Admitted], *, log_end: int) -> int:
        """The end of the prefix, given all records of the log before `log_end`. Raises
        `InvalidEventError` for a turn that the run does not have.
        """
        if self.offset is not None:
            return min(self.offset + 1, log_end)
        if self.milliseconds is not None:
            later = (each for each in log if each.record.log_time > self.milliseconds)
            first = next(later, None)
            return log_end if first is None else first.record.offset
        if (turn := self.named_turn) is not None:
            for each in log:
                turn.take(each)
            return self.end_by(turn, run_id, log_end=log_end)
        return log_end

    @property
    def named_turn(self) -> "TurnBounds | None":
        """The bounds of the turn that is named, before the log is read."""
        turn_id = self.turn if self.turn is not None else self.before_turn
        return None if turn_id is None else TurnBounds(turn_id)

    def end_by(self, turn: "TurnBounds", run_id: str, *, log_end: int) -> int:
        """The end of the prefix, given the bounds of the turn in the log. Raises
        `InvalidEventError`.
        """
        if turn.begin is None:
            field = "as_of_turn" if self.before_turn is None else "before_turn"
            raise InvalidEventError(f"run {run_id!r} has no turn {turn.turn_id!r}", field=field)
        if self.before_turn is not None:
            return turn.begin
        return log_end if turn.end is None else turn.end


class CurrentTurn:
    """The turn of each event of a log that is read in its order."""

    __slots__ = ("turn_id",)

    def __init__(self, turn_id: str | None = None) -> None:
        self.turn_id = turn_id
        """The turn of the last event; None before the first turn."""

    def take(self, admitted: Admitted) -> str | None:
        """The turn of the next record. A record that does not count begins no turn."""
        own = admitted.event.turn_id if admitted.event is not None else None
        if own is not None and admitted.counts:
            self.turn_id = own
        return self.turn_id if own is None else own


class TurnBounds:
    """Where one turn begins and ends, in a log that is read in its order."""

    __slots__ = ("begin", "end", "is_open", "turn_id")

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.begin: int | None = None
        """The offset of its first event."""
        self.end: int | None = None
        """The offset of the event that begins the next turn; None if there is none."""
        self.is_open = False
        """Whether the turn goes on behind the records that were taken."""

    def take(self, admitted: Admitted) -> None:
        """Takes the next record. Records without a turn change nothing."""
        if not admitted.counts or admitted.event is None or admitted.event.turn_id is None:
            return
        offset = admitted.record.offset
        if admitted.event.turn_id == self.turn_id:
            self.begin = offset if self.begin is None else self.begin
            self.end, self.is_open = None, True
        elif self.is_open:
            self.end, self.is_open = offset, False
