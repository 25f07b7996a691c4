"""Expands the events of a log to the events of its ledger. Runfold's own kinds of events replace
the event of an agent framework, and `live` says what stands in the place of events that were
amended or undone. Every fold from a log to messages folds expanded events.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from runfold_projections.frameworks import expand, replace_event
from runfold_projections.live import LivePlanner, Replacements
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.events import AnyEvent, EventAmended
from runfold_schemas.ledger_events import LedgerEvent, whole_event
from runfold_schemas.sessions import FrameworkEvent

Place = int | tuple[int, int]
"""The position of an event in the ledger: the offset of its record. Events that replace the event
of a record have that offset and their index among the replacements, counted from 0.
"""

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
    return list(expand_events(log, replacements_of(log)))


def replacements_of(events: Iterable[tuple[int, LedgerEvent]]) -> Replacements:
    """What stands in the place of events of a whole log."""
    planner = LivePlanner()
    for offset, event in events:
        planner.feed(offset, event)
    return planner.replacements()


def expand_events(
    events: Iterable[tuple[int, EventT]], replacements: Replacements
) -> Iterator[tuple[Place, EventT | AnyEvent]]:
    """The events of a part of a log, expanded, each with its place. `replacements` are those of the
    whole log, and the events that they replace are whole. Events that replace an event have its
    offset and its envelope.
    """
    for offset, event in events:
        kind = type(event.data)
        if offset in replacements and kind is not EventAmended:
            yield from _numbered(offset, replace_event(whole_event(event), replacements[offset]))
        elif kind is FrameworkEvent:
            yield from _numbered(offset, expand(whole_event(event)))
        else:
            yield offset, event


def event_at(place: Place, event: AnyEvent, replacements: Replacements) -> AnyEvent:
    """The expanded event at `place`, given the event of the record."""
    return dict(expand_events([(offset_of(place), event)], replacements))[place]


def _numbered(offset: int, events: Iterable[AnyEvent]) -> Iterator[tuple[Place, AnyEvent]]:
    for index, event in enumerate(events):
        yield (offset, index), event
