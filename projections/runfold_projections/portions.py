"""A ledger that is folded portion by portion, and the offset from which it can be folded again."""

from collections.abc import Iterable
from typing import Final

from runfold_projections.amendments import Place, is_first, offset_of
from runfold_projections.exchanges import ResultPlan
from runfold_projections.ledger import Draft, LedgerStream
from runfold_schemas.events import SystemMessage, UserMessage
from runfold_schemas.ledger_events import LedgerEvent

_FROM_OUTSIDE: Final = frozenset({UserMessage, SystemMessage})


class PortionFold:
    """Turns portions of a log into drafts, in the order of the log.

    `offset` is that of the last record before which no message was open, and `closed` is the number
    of drafts before it. A fold of the later events alone, from `offset` on, gives the drafts after
    these.
    """

    def __init__(self, plan: ResultPlan) -> None:
        self.offset = 0
        self.closed = 0
        self._stream = LedgerStream(plan)
        self._count = 0

    def feed(self, events: Iterable[tuple[Place, LedgerEvent]]) -> list[Draft]:
        """The drafts that these events close."""
        stream, drafts = self._stream, list[Draft]()
        for place, event in events:
            is_from_outside = type(event.data) in _FROM_OUTSIDE
            if is_from_outside:
                drafts += stream.finish()
            finished = stream.feed(place, event)
            # Only whole records are read again, so a fold never begins within a record.
            if (is_from_outside or finished) and is_first(place):
                self.offset = offset_of(place)
                self.closed = self._count + len(drafts) + (0 if is_from_outside else len(finished))
            drafts += finished
        self._count += len(drafts)
        return drafts

    def finish(self) -> list[Draft]:
        """The drafts that the end of the log closes."""
        return list(self._stream.finish())
