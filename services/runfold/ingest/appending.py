"""Appending the events of a request to a run's log, and the answers that name their offsets."""

from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse, Response
from prometheus_client import Counter

from runfold.client.appender import Position
from runfold.client.run import Run
from runfold.http.idempotency import RepeatableRequest
from runfold.ids import EventIds, new_event_id
from runfold.ingest.events import changes_life
from runfold.permissions.permissions import Permissions
from runfold_schemas.errors import RunEndedError
from runfold_schemas.events import AnyEvent

_PUBLISHED = Counter("runfold_published_events", "Events that the ingest service has appended")


def event_ids(route: str, run_id: str, request: RepeatableRequest) -> EventIds:
    return lambda index: request.derived_id(route, run_id, index=index) or new_event_id()


async def append(
    run: Run, events: list[AnyEvent], permissions: Permissions, *, late: bool, repeatable: bool
) -> list[Position]:
    """Appends the events if the principal may have all of their effects. Raises
    `ForbiddenError`.
    """
    await permissions.check_events(events, app=run.life.agent_id, user=run.life.user_id)
    late = late and not changes_life(events)
    try:
        if len(events) == 1:
            # Single events of many requests share a record batch; a batch has one of its own.
            positions = [await run.publish(events[0], late=late)]
        else:
            positions = await run.publish_batch(events, late=late)
    except RunEndedError:
        # Since the first copy of a repeated request, the run may have ended, perhaps by that copy.
        positions_before = await _published_before(run, events) if repeatable else None
        if positions_before is None:
            raise
        return positions_before
    _PUBLISHED.inc(len(events))
    return positions


async def _published_before(run: Run, events: list[AnyEvent]) -> list[Position] | None:
    """The positions of these events in the log; None if the log lacks one of them."""
    offsets: dict[str, int] = {}
    async for admitted in run.history():
        if admitted.counts and admitted.event is not None:
            offsets[admitted.event.event_id] = admitted.record.offset
    if not all(event.event_id in offsets for event in events):
        return None
    return [Position(run.run_id, offsets[event.event_id]) for event in events]


def answer_event(event: AnyEvent, position: Position) -> Response:
    return JSONResponse({"run_id": position.run_id, **position_document(event, position)}, HTTPStatus.CREATED)


def answer_events(events: list[AnyEvent], positions: list[Position]) -> Response:
    listed = [position_document(*each) for each in zip(events, positions, strict=True)]
    return JSONResponse({"run_id": positions[0].run_id, "positions": listed}, HTTPStatus.CREATED)


def position_document(event: AnyEvent, position: Position) -> dict[str, Any]:
    return {"offset": position.offset, "event_id": event.event_id}
