"""Makes events of a request's objects: fills in missing fields and refuses invalid ones."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from runfold.http.bodies import InvalidItemError, Item, ItemLocation
from runfold_schemas.codec import event_types, parse_event
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import ENDINGS, LIFECYCLE

EventIds = Callable[[int], str]
"""The event_id for the request's event at this index, if the event has none."""


def events_of(items: Sequence[Item], *, run_id: str, event_ids: EventIds, now: datetime) -> list[AnyEvent]:
    """One event for each item. Raises `InvalidEventError` for the first invalid item, naming its
    field and its line or index.
    """
    events: list[AnyEvent] = []
    for index, item in enumerate(items):
        try:
            _check_not_after_end(events)
            _check_envelope(item.fields, run_id=run_id)
            filled = {"event_id": event_ids(index), "timestamp": now, "run_id": run_id}
            event = parse_event({**item.fields, **_missing(item.fields, filled)})
        except InvalidEventError as error:
            raise located(error, item.location) from error
        events.append(event)
    return events


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
