"""The events of a log as they stand in its ledger: what is amended stands as other events, and so
does what an agent framework said, in its own form. Whatever folds a log to messages folds what
`expand_log` or `standing` gives.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from runfold_projections.frameworks import expand, replace_event
from runfold_schemas.codec import TYPE_OF
from runfold_schemas.events import AnyEvent, EventAmended
from runfold_schemas.sessions import FrameworkEvent

Place = int | tuple[int, int]
"""Where an event stands: the offset of its record. Where others stand for what the record holds,
each of them has the offset and its number among them, from 0.
"""

Amendments = Mapping[int, EventAmended]
"""By the offset of what is amended."""

_EXPANDED_KINDS: Final = (EventAmended, FrameworkEvent)

EXPANDED_TYPES: Final = frozenset(TYPE_OF[kind] for kind in _EXPANDED_KINDS)
"""A log without these kinds stands as it is."""


def offset_of(place: Place) -> int:
    return place if isinstance(place, int) else place[0]


def is_first(place: Place) -> bool:
    """Whether nothing of the same record stands before it."""
    return isinstance(place, int) or place[1] == 0


def in_order(place: Place) -> tuple[int, int]:
    """What places are sorted by."""
    return (place, 0) if isinstance(place, int) else place


def expand_log(log: Sequence[tuple[int, AnyEvent]]) -> Sequence[tuple[Place, AnyEvent]]:
    """The events of a whole log as they stand in the ledger."""
    if not any(isinstance(event.data, _EXPANDED_KINDS) for _, event in log):
        return log
    return list(expand_events(log, amendments_of(log)))


def amendments_of(events: Iterable[tuple[int, AnyEvent]]) -> dict[int, EventAmended]:
    """What is amended in a log; the last amendment of an offset counts."""
    return {event.data.offset: event.data for _, event in events if isinstance(event.data, EventAmended)}


def expand_events(
    events: Iterable[tuple[int, AnyEvent]], amendments: Amendments
) -> Iterator[tuple[Place, AnyEvent]]:
    """The events as they stand in the ledger. Those that stand for one event share its offset and
    its envelope.
    """
    for offset, event in events:
        if offset in amendments and not isinstance(event.data, EventAmended):
            data = [stand_in.decode() for stand_in in amendments[offset].stand_ins]
            yield from _numbered(offset, replace_event(event, data))
        elif isinstance(event.data, FrameworkEvent):
            yield from _numbered(offset, expand(event))
        else:
            yield offset, event


def event_at(place: Place, event: AnyEvent, amendments: Amendments) -> AnyEvent:
    """The event that stands at `place`, given the one in the record there."""
    return dict(expand_events([(offset_of(place), event)], amendments))[place]


def _numbered(offset: int, events: Iterable[AnyEvent]) -> Iterator[tuple[Place, AnyEvent]]:
    for index, event in enumerate(events):
        yield (offset, index), event
