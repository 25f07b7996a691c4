"""Events that stand as others in the ledger: how an `event_amended` is applied before a log is folded to messages."""

from collections.abc import Iterable, Iterator, Mapping

from runfold_schemas.codec import new_event
from runfold_schemas.events import AnyEvent, EventAmended

Amendments = Mapping[int, EventAmended]
"""By the offset of what is amended."""


def amendments_of(events: Iterable[tuple[int, AnyEvent]]) -> dict[int, EventAmended]:
    """What is amended in a log; the last amendment of an offset counts."""
    return {event.data.offset: event.data for _, event in events if isinstance(event.data, EventAmended)}


def amended(events: Iterable[tuple[int, AnyEvent]], amendments: Amendments) -> Iterator[tuple[int, AnyEvent]]:
    """The events as they stand in the ledger. Those that stand for one event have its offset and its envelope."""
    for offset, event in events:
        if offset not in amendments or isinstance(event.data, EventAmended):
            yield offset, event
        else:
            for stand_in in amendments[offset].stand_ins:
                envelope = {name: getattr(event, name) for name in event.model_fields_set - {"type", "data"}}
                yield offset, new_event(stand_in.said(), **envelope)
