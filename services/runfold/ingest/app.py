"""The ingest service: HTTP requests become records of the log.

    POST /v1/runs                     open a run, or take it up  --+
    POST /v1/runs/{run_id}/events     one event, or a batch      --+
    POST /v1/runs/{run_id}/responses  a model's response         --+--> Runfold (client) --> Kafka
    POST /v1/runs/{run_id}/repair     mend the ledger            --+
    POST /v1/runs/{run_id}/status     start, pause, resume, end  --+

An answer of 2xx means that the events are durable. Every error is a problem document (RFC 9457).
All events of a batch are appended, or none. `runfold.http.idempotency` explains `Idempotency-Key`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Path, Query
from fastapi.responses import JSONResponse, Response
from prometheus_client import Counter

from runfold.client.appender import Position
from runfold.client.run import Run
from runfold.client.run_cache import Runs
from runfold.client.runfold import Runfold
from runfold.http.app import new_app, serve
from runfold.http.bodies import ItemLocation
from runfold.http.idempotency import (
    RepeatableBatch,
    RepeatableCommand,
    RepeatableDocument,
    RepeatableRequest,
    Replays,
    repetition,
)
from runfold.http.problems import problem_responses
from runfold.http.requests import parse_request
from runfold.ids import new_event_id
from runfold.ingest.connection import Connection
from runfold.ingest.events import EventIds, changes_life, events_of, located
from runfold.ingest.requests import (
    EVENTS_BODY,
    OPEN_BODY,
    RESPONSE_BODY,
    STATUS_BODY,
    OpenRun,
    StatusChange,
)
from runfold.settings import Settings
from runfold_projections.providers import provider_of, recorder
from runfold_schemas.codec import new_event
from runfold_schemas.errors import EventTooLargeError, InvalidEventError, RunEndedError
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Provider

_PUBLISHED = Counter("runfold_published_events", "Events that the ingest service has appended")

RunId = Annotated[str, Path(description="The run's id, percent-encoded: `/` is `%2F`.", examples=["run-1"])]
Late = Annotated[
    bool, Query(description="Append also to a run that has ended. Changes of status are never late.")
]
ResponseProvider = Annotated[
    Provider | None,
    Query(description="The provider of the response. Needed only if the response itself does not show it."),
]
ResponseTurn = Annotated[str | None, Query(description="The turn that the response belongs to.")]

_problems = partial(
    problem_responses,
    {
        400: "`Idempotency-Key` is empty or too long.",
        404: "There is no such run.",
        409: "The run belongs to another agent or session, has ended, or rejected the event; or the first"
        " request with this `Idempotency-Key` is still in progress.",
        413: "The body, or an event in it, is too large.",
        415: "The body's media type is not one of those listed.",
        422: "A part of the request is wrong. `field` names it, and `line` or `index` the event in a batch.",
        503: "Kafka does not answer. Retry.",
    },
)


async def run(settings: Settings) -> None:
    """Serves until the process receives SIGTERM or Ctrl-C."""
    await serve(build_app(settings), host=settings.host, port=settings.port)


def build_app(settings: Settings) -> FastAPI:
    """The service as an application of its own, connected for the length of its lifespan."""
    connection = Connection(settings.log("runfold/ingest"))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with connection:
            yield

    app = new_app(
        "Runfold ingest",
        ready=connection.check,
        lifespan=lifespan,
        description="Publish runs: open them, append events, change their status.",
    )
    app.include_router(build_router(connection.runfold))
    return app


def build_router(runfold: Callable[[], Runfold]) -> APIRouter:
    """The routes, for this service or for one with more routes. `runfold` returns the client, or
    raises while there is no connection.

    The application has to come from `runfold.http.app.new_app`, which turns our errors into problem
    documents.
    """
    router = APIRouter(prefix="/v1/runs", tags=["ingest"])
    state = _State(runfold, Runs(), Replays())
    for add in (_add_opening, _add_events, _add_responses, _add_repair, _add_status):
        add(router, state)
    return router


class _State(NamedTuple):
    """The state that the routes share."""

    runfold: Callable[[], Runfold]
    runs: Runs
    replays: Replays

    async def run(self, run_id: str) -> Run:
        return await self.runs.get(self.runfold(), run_id)


def _add_opening(router: APIRouter, state: _State) -> None:
    @router.post(
        "",
        status_code=HTTPStatus.CREATED,
        summary="Open a run",
        responses=_problems(400, 409, 413, 415, 422) | repetition(),
        openapi_extra=OPEN_BODY,
    )
    async def open_run(request: RepeatableCommand) -> Response:
        """Open a run. The answer is 200 instead of 201 if this agent has opened the run before."""

        async def handle() -> Response:
            opening = _with_run_id(parse_request(OpenRun, request.json()), request)
            return _answer_opened(*await state.runs.open(state.runfold(), **dict(opening)))

        return await state.replays.answer("open", request, handle)


def _add_events(router: APIRouter, state: _State) -> None:
    @router.post(
        "/{run_id}/events",
        status_code=HTTPStatus.CREATED,
        summary="Publish events",
        responses=_problems(400, 404, 409, 413, 415, 422),
        openapi_extra=EVENTS_BODY,
    )
    async def publish(run_id: RunId, request: RepeatableBatch, late: Late = False) -> Response:
        """Publish one event, or a batch of which all events are appended or none."""

        async def handle() -> Response:
            return await _publish(await state.run(run_id), request, late=late)

        return await state.replays.answer(f"events/{run_id}", request, handle, str(late))


def _add_responses(router: APIRouter, state: _State) -> None:
    @router.post(
        "/{run_id}/responses",
        status_code=HTTPStatus.CREATED,
        summary="Record a model's response",
        responses=_problems(400, 404, 409, 413, 415, 422),
        openapi_extra=RESPONSE_BODY,
    )
    async def record_response(
        run_id: RunId,
        request: RepeatableDocument,
        provider: ResponseProvider = None,
        turn_id: ResponseTurn = None,
    ) -> Response:
        """Record a model's response as its provider sent it. Its parts become events: all are
        appended, or none.
        """

        async def handle() -> Response:
            return await _record(await state.run(run_id), request, provider=provider, turn_id=turn_id)

        return await state.replays.answer(f"responses/{run_id}", request, handle, str(provider), str(turn_id))


def _add_repair(router: APIRouter, state: _State) -> None:
    @router.post("/{run_id}/repair", summary="Repair a ledger", responses=_problems(404, 409, 422))
    async def repair(run_id: RunId) -> Response:
        """Append the events that make every provider accept the run's ledger, also to a run that
        has ended. The answer has the events' offsets; there are none if the ledger was valid.
        """
        run = await state.run(run_id)
        offsets = [position.offset for position in await run.repair()]
        return JSONResponse({"run_id": run_id, "offsets": offsets})


def _add_status(router: APIRouter, state: _State) -> None:
    @router.post(
        "/{run_id}/status",
        status_code=HTTPStatus.CREATED,
        summary="Change a run's status",
        responses=_problems(400, 404, 409, 413, 415, 422),
        openapi_extra=STATUS_BODY,
    )
    async def change_status(run_id: RunId, request: RepeatableCommand) -> Response:
        """Start, pause, resume, complete, fail or cancel a run."""

        async def handle() -> Response:
            return await _change_status(await state.run(run_id), request)

        return await state.replays.answer(f"status/{run_id}", request, handle)


def _with_run_id(opening: OpenRun, request: RepeatableRequest) -> OpenRun:
    run_id = request.derived_id("run", opening.agent_id)
    if opening.run_id is not None or run_id is None:
        return opening
    return opening.model_copy(update={"run_id": run_id})


async def _publish(run: Run, request: RepeatableRequest, *, late: bool) -> Response:
    items, ids = request.items(), _event_ids("events", run.run_id, request)
    events = events_of(items, run_id=run.run_id, event_ids=ids, now=datetime.now(UTC))
    try:
        positions = await _append(run, events, late=late, repeatable=request.key is not None)
    except EventTooLargeError:
        raise  # the whole batch is too large, not one of its events
    except InvalidEventError as error:
        raise located(error, items[error.index or 0].location) from error
    if items[0].location == ItemLocation():
        return _answer_event(events[0], positions[0])
    return _answer_events(events, positions)


async def _record(
    run: Run, request: RepeatableRequest, *, provider: Provider | None, turn_id: str | None
) -> Response:
    response = request.json()
    provider = provider or provider_of(response)
    recording = recorder(provider)
    recorded = recording.response(response)
    ids = _event_ids("responses", run.run_id, request)
    message_id = recording.blocks.message_id or ids(len(recorded))
    envelope: dict[str, Any] = {"turn_id": turn_id, "provider": provider, "message_id": message_id}
    events = [run.event(data, event_id=ids(index), **envelope) for index, data in enumerate(recorded)]
    return _answer_events(events, await _append(run, events, late=False, repeatable=request.key is not None))


async def _change_status(run: Run, request: RepeatableRequest) -> Response:
    change = parse_request(StatusChange, request.json())
    event = new_event(
        change.data(),
        event_id=_event_ids("status", run.run_id, request)(0),
        run_id=run.run_id,
        timestamp=datetime.now(UTC),
        **change.envelope(),
    )
    [position] = await _append(run, [event], late=False, repeatable=request.key is not None)
    return _answer_event(event, position)


def _event_ids(route: str, run_id: str, request: RepeatableRequest) -> EventIds:
    return lambda index: request.derived_id(route, run_id, index=index) or new_event_id()


async def _append(run: Run, events: list[AnyEvent], *, late: bool, repeatable: bool) -> list[Position]:
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


def _answer_opened(run: Run, is_new: bool) -> Response:
    content = {
        "run_id": run.run_id,
        "agent_id": run.life.agent_id,
        "session_id": run.life.session_id,
        "ended": run.ended,
    }
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return JSONResponse(content, status, headers={"Location": f"/v1/runs/{quote(run.run_id, safe='')}"})


def _answer_event(event: AnyEvent, position: Position) -> Response:
    return JSONResponse({"run_id": position.run_id, **_position(event, position)}, HTTPStatus.CREATED)


def _answer_events(events: list[AnyEvent], positions: list[Position]) -> Response:
    listed = [_position(*each) for each in zip(events, positions, strict=True)]
    return JSONResponse({"run_id": positions[0].run_id, "positions": listed}, HTTPStatus.CREATED)


def _position(event: AnyEvent, position: Position) -> dict[str, Any]:
    return {"offset": position.offset, "event_id": event.event_id}
