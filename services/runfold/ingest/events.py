"""Makes events of a request's objects: fills in missing fields and refuses invalid ones."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from runfold.http.bodies import InvalidItemError, ItemLocation
from runfold.http.items import Item
from runfold.ids import EventIds
from runfold_schemas.codec import event_types, parse_event
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS, LIFECYCLE


class Batch(NamedTuple):
    """The events of a request, each with its place in the body."""

    events: list[AnyEvent]
    locations: list[ItemLocation]

    @property
    def is_alone(self) -> bool:
        """Whether the body is one event, and not a list."""
        return self.locations == [ItemLocation()]


async def events_of(items: AsyncIterator[Item], *, run_id: str, event_ids: EventIds, now: datetime) -> Batch:
    """One event for each item. Raises `InvalidEventError` for the first invalid item, naming its
    field and its line or index.
    """
    batch = Batch([], [])
    async for item in items:
        try:
            _check_not_after_end(batch.events)
            _check_envelope(item.fields, run_id=run_id)
            filled = {"event_id": event_ids(len(batch.events)), "timestamp": now, "run_id": run_id}
            event = parse_event({**item.fields, **_missing(item.fields, filled)})
        except InvalidEventError as error:
            raise located(error, item.location) from error
        batch.events.append(event)
        batch.locations.append(item.location)
    return batch


def changes_life(events: Sequence[AnyEvent]) -> bool:
    """Whether one of the events changes the status or phase of its run. No late event can."""
    return any(event.type in LIFECYCLE for event in events)


def _check_envelope(fields: dict[str, Any], *, run_id: str) -> None:
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise InvalidEventError("type: the type of the event is missing or is not a string", field="type")
    event_types([kind])
    if kind == "run_opened":
        raise InvalidEventError("type: POST /v1/runs opens a run", field="type")
    if fields.get("run_id") not in (None, run_id):
        raise InvalidEventError(
            f"run_id: the body says {fields['run_id']!r}, the path {run_id!r}", field="run_id"
        )


def _check_not_after_end(before: Sequence[AnyEvent]) -> None:
    if before and before[-1].type in ENDINGS:
        raise InvalidEventError("type: the run ends with the event before this one", field="type")


def _missing(fields: dict[str, Any], filled: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filled.items() if fields.get(name) is None}


def located(error: InvalidEventError, location: ItemLocation) -> InvalidEventError:
    """`error`, with the line or index of its event in the request."""
    if location == ItemLocation():
        return error
    return InvalidItemError(error.args[0], location=location, field=error.field)
