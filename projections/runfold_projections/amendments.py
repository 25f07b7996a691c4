"""Expands the events of a log to the events of its ledger. The stand-ins of an amendment replace
the amended event, and Runfold's own kinds of events replace the event of an agent framework. Every
fold from a log to messages folds expanded events.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from runfold_projections.frameworks import expand, replace_event
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.events import AnyEvent, EventAmended
from runfold_schemas.ledger_events import LedgerEvent, whole_event
from runfold_schemas.sessions import FrameworkEvent

Place = int | tuple[int, int]
"""The position of an event in the ledger: the offset of its record. Events that replace the event
of a record have that offset and their index among the replacements, counted from 0.
"""

Amendments = Mapping[int, EventAmended]
"""Amendments by the offset of the amended event."""

_EXPANDED_KINDS: Final = (EventAmended, FrameworkEvent)

EventT = TypeVar("EventT", bound=LedgerEvent)

EXPANDED_TYPES: Final = frozenset(TYPE_OF[kind] for kind in _EXPANDED_KINDS)
"""The types of events that expansion handles. A log without these types is its own expansion."""


def offset_of(place: Place) -> int:
    """The offset of the record that holds the event at `place`."""
    return place if isinstance(place, int) else place[0]


def is_first(place: Place) -> bool:
    """Whether `place` is the first place of its record."""
    return isinstance(place, int) or place[1] == 0


def order_key(place: Place) -> tuple[int, int]:
    """The sort key of places."""
    return (place, 0) if isinstance(place, int) else place


def expand_log(log: Sequence[tuple[int, EventT]]) -> Sequence[tuple[Place, EventT | AnyEvent]]:
    """The events of a whole log, expanded, each with its place."""
    if not any(isinstance(event.data, _EXPANDED_KINDS) for _, event in log):
        return log
    return list(expand_events(log, amendments_of(log)))


def amendments_of(events: Iterable[tuple[int, LedgerEvent]]) -> dict[int, EventAmended]:
    """The amendments in a log. The last amendment of an offset counts."""
    return {event.data.offset: event.data for _, event in events if type(event.data) is EventAmended}


def expand_events(
    events: Iterable[tuple[int, EventT]], amendments: Amendments
) -> Iterator[tuple[Place, EventT | AnyEvent]]:
    """The events of a part of a log, expanded, each with its place. `amendments` are those of the
    whole log, and the events that they amend are whole. Events that replace an event have its
    offset and its envelope.
    """
    for offset, event in events:
        kind = type(event.data)
        if offset in amendments and kind is not EventAmended:
            data = [stand_in.decode() for stand_in in amendments[offset].stand_ins]
            yield from _numbered(offset, replace_event(whole_event(event), data))
        elif kind is FrameworkEvent:
            yield from _numbered(offset, expand(whole_event(event)))
        else:
            yield offset, event


def event_at(place: Place, event: AnyEvent, amendments: Amendments) -> AnyEvent:
    """The expanded event at `place`, given the event of the record."""
    return dict(expand_events([(offset_of(place), event)], amendments))[place]


def _numbered(offset: int, events: Iterable[AnyEvent]) -> Iterator[tuple[Place, AnyEvent]]:
    for index, event in enumerate(events):
        yield (offset, index), event
