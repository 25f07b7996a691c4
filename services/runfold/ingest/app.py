"""The ingest service: HTTP requests become records of the log.

    POST /v1/runs                     open a run, or take it up       --+
    POST /v1/runs/{run_id}/events     one event, or a batch           --+
    POST /v1/runs/{run_id}/responses  what a model answered           --+--> Runfold (the client) --> Kafka
    POST /v1/runs/{run_id}/repair     mend the ledger                 --+
    POST /v1/runs/{run_id}/status     start, pause, resume, end       --+

An answer of 2xx means durable. Every error is a problem document (RFC 9457); of a batch all is
accepted or nothing. What `Idempotency-Key` promises is told in `runfold.http.idempotency`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import Counter

from runfold.client.run import Position, Run
from runfold.client.run_cache import Runs
from runfold.client.runfold import Runfold
from runfold.http.app import new_app, serve
from runfold.http.bodies import JSON, NDJSON, Item, Place, media_type, parse_items, parse_json, read_body
from runfold.http.idempotency import Replays, derived_id, fingerprint, key_of
from runfold.ids import new_event_id
from runfold.ingest.connection import Connection
from runfold.ingest.events import EventIds, changes_life, events_of, placed
from runfold.ingest.requests import (
    EVENTS_BODY,
    OPEN_BODY,
    RESPONSE_BODY,
    STATUS_BODY,
    OpenRun,
    StatusChange,
    parsed,
)
from runfold.settings import Settings
from runfold_projections.providers import provider_of, recorder
from runfold_schemas.codec import new_event
from runfold_schemas.errors import EventTooLargeError, InvalidEventError, RunEndedError
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Provider
from runfold_schemas.topics import RECORD_BYTES_MAX

BATCH_BYTES_MAX: Final = 4 * RECORD_BYTES_MAX
"""Of a request with events. JSON may be several times longer than the record it becomes: escapes,
spaces.
"""

COMMAND_BYTES_MAX: Final = 1024 * 1024
"""Of a request that opens a run or changes its status."""

_PUBLISHED = Counter("runfold_published_events", "Events that the ingest service has appended")

ResponseProvider = Annotated[
    Provider | None, Query(description="Whose response it is; only needed where that does not show.")
]
IdempotencyKey = Annotated[str | None, Header(description="makes it safe to send the request again")]


async def run(settings: Settings) -> None:
    """Serves until the process is told to stop."""
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
    """The routes, for this service or for one that serves more. `runfold` gives the connection, or
    raises.

    The application has to come from `runfold.http.app.new_app`, which makes problem documents of
    our errors.
    """
    router = APIRouter(prefix="/v1/runs", tags=["ingest"])
    state = _State(runfold, Runs(), Replays())
    for add in (_add_opening, _add_events, _add_responses, _add_repair, _add_status):
        add(router, state)
    return router


class _State(NamedTuple):
    """What the routes share."""

    runfold: Callable[[], Runfold]
    runs: Runs
    replays: Replays

    async def run(self, run_id: str) -> Run:
        return await self.runs.get(self.runfold(), run_id)


def _add_opening(router: APIRouter, state: _State) -> None:
    @router.post("", status_code=HTTPStatus.CREATED, openapi_extra=OPEN_BODY)
    async def open_run(request: Request, idempotency_key: IdempotencyKey = None) -> Response:
        """Open a run. One that this agent has opened before is taken up: 200 instead of 201."""
        media_type(request, allowed=(JSON,))
        body, key = await read_body(request, bytes_max=COMMAND_BYTES_MAX), key_of(idempotency_key)

        async def handle() -> Response:
            opening = _with_run_id(parsed(OpenRun, parse_json(body)), key)
            return _opened(*await state.runs.open(state.runfold(), **dict(opening)))

        return await state.replays.answer("open", key, fingerprint(body), handle)


def _add_events(router: APIRouter, state: _State) -> None:
    @router.post("/{run_id}/events", status_code=HTTPStatus.CREATED, openapi_extra=EVENTS_BODY)
    async def publish(
        run_id: str, request: Request, late: bool = False, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Publish one event, or a batch: all of it, or nothing. `late` is for events of a run that
        has ended.
        """
        type_ = media_type(request, allowed=(JSON, NDJSON))
        body, key = await read_body(request, bytes_max=BATCH_BYTES_MAX), key_of(idempotency_key)

        async def handle() -> Response:
            return await _publish(await state.run(run_id), parse_items(body, type_), late=late, key=key)

        request_ = fingerprint(body, type_, str(late))
        return await state.replays.answer(f"events/{run_id}", key, request_, handle)


def _add_responses(router: APIRouter, state: _State) -> None:
    @router.post("/{run_id}/responses", status_code=HTTPStatus.CREATED, openapi_extra=RESPONSE_BODY)
    async def record_response(
        run_id: str,
        request: Request,
        provider: ResponseProvider = None,
        turn_id: str | None = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Record a model's response, as its provider sent it: its parts become events, all of them
        or none.
        """
        media_type(request, allowed=(JSON,))
        body, key = await read_body(request, bytes_max=BATCH_BYTES_MAX), key_of(idempotency_key)

        async def handle() -> Response:
            run = await state.run(run_id)
            return await _record(run, parse_json(body), provider=provider, turn_id=turn_id, key=key)

        asked = fingerprint(body, str(provider), str(turn_id))
        return await state.replays.answer(f"responses/{run_id}", key, asked, handle)


def _add_repair(router: APIRouter, state: _State) -> None:
    @router.post("/{run_id}/repair")
    async def repair(run_id: str) -> Response:
        """Append what makes every provider accept the run's ledger, also to one that has ended.
        Answers with the events' positions: none if the ledger was right.
        """
        run = await state.run(run_id)
        offsets = [position.offset for position in await run.repair()]
        return JSONResponse({"run_id": run_id, "offsets": offsets})


def _add_status(router: APIRouter, state: _State) -> None:
    @router.post("/{run_id}/status", status_code=HTTPStatus.CREATED, openapi_extra=STATUS_BODY)
    async def change_status(
        run_id: str, request: Request, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Start, pause, resume, complete, fail or cancel a run."""
        media_type(request, allowed=(JSON,))
        body, key = await read_body(request, bytes_max=COMMAND_BYTES_MAX), key_of(idempotency_key)

        async def handle() -> Response:
            run = await state.run(run_id)
            return await _change_status(run, parsed(StatusChange, parse_json(body)), key=key)

        return await state.replays.answer(f"status/{run_id}", key, fingerprint(body), handle)


def _with_run_id(opening: OpenRun, key: str | None) -> OpenRun:
    if opening.run_id is not None or key is None:
        return opening
    return opening.model_copy(update={"run_id": derived_id("run", opening.agent_id, key)})


async def _publish(run: Run, items: list[Item], *, late: bool, key: str | None) -> Response:
    ids = _event_ids("events", run.run_id, key)
    events = events_of(items, run_id=run.run_id, event_ids=ids, now=datetime.now(UTC))
    try:
        positions = await _append(run, events, late=late, repeatable=key is not None)
    except EventTooLargeError:
        raise  # the batch is, and no one of its events
    except InvalidEventError as error:
        raise placed(error, items[error.index or 0].place) from error
    if items[0].place == Place():
        return _published_one(events[0], positions[0])
    return _published(events, positions)


async def _record(
    run: Run, response: Any, *, provider: Provider | None, turn_id: str | None, key: str | None
) -> Response:
    named = provider or provider_of(response)
    recording = recorder(named)
    said = recording.response(response)
    ids = _event_ids("responses", run.run_id, key)
    message_id = recording.blocks.message_id or ids(len(said))
    envelope: dict[str, Any] = {"turn_id": turn_id, "provider": named, "message_id": message_id}
    events = [run.event(data, event_id=ids(index), **envelope) for index, data in enumerate(said)]
    return _published(events, await _append(run, events, late=False, repeatable=key is not None))


async def _change_status(run: Run, change: StatusChange, *, key: str | None) -> Response:
    event = new_event(
        change.data(),
        event_id=_event_ids("status", run.run_id, key)(0),
        run_id=run.run_id,
        timestamp=datetime.now(UTC),
        **change.envelope(),
    )
    [position] = await _append(run, [event], late=False, repeatable=key is not None)
    return _published_one(event, position)


def _event_ids(route: str, run_id: str, key: str | None) -> EventIds:
    if key is None:
        return lambda _: new_event_id()
    return lambda index: derived_id(route, run_id, key, index)


async def _append(run: Run, events: list[AnyEvent], *, late: bool, repeatable: bool) -> list[Position]:
    late = late and not changes_life(events)
    try:
        if len(events) == 1:
            # Single events of many requests share a record batch; a batch has one of its own.
            positions = [await run.publish(events[0], late=late)]
        else:
            positions = await run.publish_batch(events, late=late)
    except RunEndedError:
        # A request that is sent again may find the run ended since, perhaps by its own first copy.
        found = await _published_before(run, events) if repeatable else None
        if found is None:
            raise
        return found
    _PUBLISHED.inc(len(events))
    return positions


async def _published_before(run: Run, events: list[AnyEvent]) -> list[Position] | None:
    """Where the log has all of these events already; None if it lacks one of them."""
    offsets: dict[str, int] = {}
    async for admitted in run.history():
        if admitted.counts and admitted.event is not None:
            offsets[admitted.event.event_id] = admitted.record.offset
    if not all(event.event_id in offsets for event in events):
        return None
    return [Position(run.run_id, offsets[event.event_id]) for event in events]


def _opened(run: Run, is_new: bool) -> Response:
    content = {
        "run_id": run.run_id,
        "agent_id": run.life.agent_id,
        "session_id": run.life.session_id,
        "ended": run.ended,
    }
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return JSONResponse(content, status, headers={"Location": f"/v1/runs/{quote(run.run_id, safe='')}"})


def _published_one(event: AnyEvent, position: Position) -> Response:
    return JSONResponse({"run_id": position.run_id, **_position(event, position)}, HTTPStatus.CREATED)


def _published(events: list[AnyEvent], positions: list[Position]) -> Response:
    listed = [_position(*each) for each in zip(events, positions, strict=True)]
    return JSONResponse({"run_id": positions[0].run_id, "positions": listed}, HTTPStatus.CREATED)


def _position(event: AnyEvent, position: Position) -> dict[str, Any]:
    return {"offset": position.offset, "event_id": event.event_id}
