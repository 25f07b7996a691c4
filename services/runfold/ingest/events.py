"""From the objects of a request to events of its run: what is missing is filled, what cannot be is
refused.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from runfold.http.bodies import InvalidItemError, Item, Place
from runfold_schemas.codec import event_types, parse_event
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import ENDINGS, LIFECYCLE, AnyEvent

EventIds = Callable[[int], str]
"""The event_id of the request's event at this index, if it brings none."""


def events_of(items: Sequence[Item], *, run_id: str, event_ids: EventIds, now: datetime) -> list[AnyEvent]:
    """One event for each item. Raises `InvalidEventError` for the first that is none, naming its
    field and its place.
    """
    events: list[AnyEvent] = []
    for index, item in enumerate(items):
        try:
            _check_not_after_end(events)
            _check_envelope(item.fields, run_id=run_id)
            filled = {"event_id": event_ids(index), "timestamp": now, "run_id": run_id}
            event = parse_event({**item.fields, **_missing(item.fields, filled)})
        except InvalidEventError as error:
            raise placed(error, item.place) from error
        events.append(event)
    return events


def changes_life(events: Sequence[AnyEvent]) -> bool:
    """Whether one of them changes the status or phase of its run, which no late event can."""
    return any(event.type in LIFECYCLE for event in events)


def _check_envelope(fields: dict[str, Any], *, run_id: str) -> None:
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise InvalidEventError("type: the kind of event is missing or no string", field="type")
    event_types([kind])
    if kind == "run_opened":
        raise InvalidEventError("type: a run is opened by POST /v1/runs", field="type")
    if fields.get("run_id") not in (None, run_id):
        raise InvalidEventError(
            f"run_id: the body says {fields['run_id']!r}, the path {run_id!r}", field="run_id"
        )


def _check_not_after_end(before: Sequence[AnyEvent]) -> None:
    if before and before[-1].type in ENDINGS:
        raise InvalidEventError("type: the run ends with the event before this one", field="type")


def _missing(fields: dict[str, Any], filled: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filled.items() if fields.get(name) is None}


def placed(error: InvalidEventError, place: Place) -> InvalidEventError:
    """`error`, told with the place of its event in the request."""
    if place == Place():
        return error
    return InvalidItemError(error.args[0], place=place, field=error.field)
