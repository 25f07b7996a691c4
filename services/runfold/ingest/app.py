"""The ingest service: HTTP requests become records of the log.

    POST /v1/runs                     open a run, or take it up  --+
    POST /v1/runs/{run_id}/events     one event, or a batch      --+
    POST /v1/runs/{run_id}/responses  a model's response         --+--> Runfold (client) --> Kafka
    POST /v1/runs/{run_id}/fork       begin a run with the events --+
    POST /v1/runs/{run_id}/repair     mend the ledger            --+
    POST /v1/runs/{run_id}/status     start, pause, resume, end  --+
    POST /v1/runs/{run_id}/bell       wake the projector         --+

An answer of 2xx means that the events are durable. Every error is a problem document (RFC 9457).
All events of a batch are appended, or none. `runfold.http.idempotency` explains `Idempotency-Key`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, NamedTuple, Self
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Path, Query
from fastapi.responses import JSONResponse, Response

from runfold.client.run import Run
from runfold.http.app import new_app, serve
from runfold.http.audited_ids import note_ids
from runfold.http.authorisation import check_owners_by
from runfold.http.idempotency import (
    RepeatableBatch,
    RepeatableCommand,
    RepeatableRequest,
    Replays,
    repetition,
)
from runfold.http.problems import problem_responses
from runfold.http.requests import parse_request
from runfold.identity.authenticator import authenticator_of, plans_in, quotas_in, ready_when_known
from runfold.ingest.appending import answer_event, answer_events, append, event_ids
from runfold.ingest.connection import Connection
from runfold.ingest.events import events_of, located
from runfold.ingest.forks import add_forks
from runfold.ingest.requests import (
    EVENTS_BODY,
    OPEN_BODY,
    STATUS_BODY,
    OpenRun,
    StatusChange,
)
from runfold.ingest.responses import add_responses
from runfold.log.clients import LogClients
from runfold.permissions.owners import owners_in_log
from runfold.permissions.permissions import (
    OwnerChecks,
    OwnersOfRequest,
    Permissions,
    PermissionsOfRequest,
    permissions_by,
)
from runfold.settings import Settings
from runfold.tenants.open_tenants import OpenTenants
from runfold.tenants.plans import Plans
from runfold_schemas.codec import new_event
from runfold_schemas.errors import EventTooLargeError, InvalidEventError, RunConflictError

RunId = Annotated[str, Path(description="The run's id, percent-encoded: `/` is `%2F`.", examples=["run-1"])]
Late = Annotated[
    bool, Query(description="Append also to a run that has ended. Changes of status are never late.")
]
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
    await serve(build_app(settings), settings.http())


class IngestParts:
    """What the service has open of one tenant. Use it as an async context manager."""

    is_busy = False

    def __init__(self, settings: Settings, clients: LogClients | None = None) -> None:
        self.connection = Connection(settings.log("runfold/ingest"), clients=clients)
        self.owners = owners_in_log(self.connection.runfold)

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.connection.__aexit__(*exc_info)


def build_app(settings: Settings, *, plans: Plans | None = None) -> FastAPI:
    """The service as an application of its own, connected for the length of its lifespan. `plans`
    replaces the registry of tenants.
    """
    own, authenticator = IngestParts(settings), authenticator_of(settings)
    plans = plans or plans_in(settings, authenticator)
    quotas = quotas_in(settings, authenticator)
    tenants = OpenTenants(settings, own, open_parts=IngestParts, plans=plans)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with authenticator or nullcontext(), quotas or nullcontext(), tenants:
            yield

    app = new_app(
        "Runfold ingest",
        ready=ready_when_known(authenticator, own.connection.check),
        authenticate=authenticator,
        tenant=settings.prefix,
        tenants=tenants,
        quotas=quotas,
        lifespan=lifespan,
        description="Publish runs: open them, append events, change their status.",
    )
    check_owners_by(app, OwnerChecks(lambda: tenants.parts().owners))
    app.include_router(build_router(lambda: tenants.parts().connection, lambda: tenants.parts().owners))
    return app


def build_router(connection: Callable[[], Connection], owners: OwnersOfRequest) -> APIRouter:
    """The routes, for this service or for one with more routes. `connection` and `owners` return
    those of the tenant of the request that the current task answers.

    The application has to come from `runfold.http.app.new_app`, which turns our errors into problem
    documents.
    """
    router = APIRouter(prefix="/v1/runs", tags=["ingest"])
    state = _State(connection, permissions_by(owners), Replays())
    for add in (_add_opening, _add_events, _add_repair, _add_status, _add_bell):
        add(router, state)
    problems = _problems(400, 404, 409, 413, 415, 422)
    add_forks(router, state.connection, state.permissions, state.replays, problems=problems)
    add_responses(router, state.run, state.permissions, state.replays, problems=problems)
    return router


class _State(NamedTuple):
    """The state that the routes share."""

    connection: Callable[[], Connection]
    permissions: PermissionsOfRequest
    replays: Replays

    async def run(self, run_id: str) -> Run:
        return await self.connection().run(run_id)


def _add_opening(router: APIRouter, state: _State) -> None:
    @router.post(
        "",
        status_code=HTTPStatus.CREATED,
        summary="Open a run",
        responses=_problems(400, 409, 413, 415, 422) | repetition(),
        openapi_extra=OPEN_BODY,
    )
    async def open_run(request: RepeatableCommand) -> Response:
        """Open a run. The answer is 200 instead of 201 if this agent has opened the run before. Its
        `topic` takes the next events: another one than before if the log was sealed.
        """

        async def handle() -> Response:
            opening = _with_run_id(parse_request(OpenRun, await request.json()), request)
            return await _open(state, opening)

        return await state.replays.answer("open", request, handle)


async def _open(state: _State, opening: OpenRun) -> Response:
    note_ids({"agent_id": opening.agent_id, "session_id": opening.session_id})
    permissions = state.permissions()
    await permissions.check_opening(opening.run_id, agent_id=opening.agent_id, session_id=opening.session_id)
    try:
        connection = state.connection()
        runfold = connection.runfold()
        run, is_new = await connection.runs.open(runfold, **dict(opening))
    except RunConflictError as error:
        if permissions.is_complete:
            raise
        raise RunConflictError(error.run_id) from None
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    if not is_new:
        topic = await runfold.connection.last_topic(run.life)
    return _answer_opened(run, is_new=is_new, topic=topic)


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
            return await _publish(await state.run(run_id), request, state.permissions(), late=late)

        return await state.replays.answer(f"events/{run_id}", request, handle, str(late))


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
            return await _change_status(await state.run(run_id), request, state.permissions())

        return await state.replays.answer(f"status/{run_id}", request, handle)


def _add_bell(router: APIRouter, state: _State) -> None:
    @router.post(
        "/{run_id}/bell",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Ring a run's bell",
        responses=_problems(404, 422),
    )
    async def ring(run_id: RunId) -> None:
        """Wake the projector: a producer that may write to the run's topic, and not to the catalog,
        has appended events there.
        """
        run = await state.run(run_id)
        await state.connection().runfold().connection.ring(run.run_id)


def _with_run_id(opening: OpenRun, request: RepeatableRequest) -> OpenRun:
    run_id = request.derived_id("run", opening.agent_id)
    if opening.run_id is not None or run_id is None:
        return opening
    return opening.model_copy(update={"run_id": run_id})


async def _publish(run: Run, request: RepeatableRequest, permissions: Permissions, *, late: bool) -> Response:
    ids, now = event_ids("events", run.run_id, request), datetime.now(UTC)
    batch = await events_of(request.items(), run_id=run.run_id, event_ids=ids, now=now)
    events = batch.events
    try:
        positions = await append(run, events, permissions, late=late, repeatable=request.key is not None)
    except EventTooLargeError:
        raise  # the whole batch is too large, not one of its events
    except InvalidEventError as error:
        raise located(error, batch.locations[error.index or 0]) from error
    if batch.is_alone:
        return answer_event(events[0], positions[0])
    return answer_events(events, positions)


async def _change_status(run: Run, request: RepeatableRequest, permissions: Permissions) -> Response:
    change = parse_request(StatusChange, await request.json())
    event = new_event(
        change.data(),
        event_id=event_ids("status", run.run_id, request)(0),
        run_id=run.run_id,
        timestamp=datetime.now(UTC),
        **change.envelope(),
    )
    [position] = await append(run, [event], permissions, late=False, repeatable=request.key is not None)
    return answer_event(event, position)


def _answer_opened(run: Run, *, is_new: bool, topic: str) -> Response:
    content = {
        "run_id": run.run_id,
        "agent_id": run.life.agent_id,
        "session_id": run.life.session_id,
        "ended": run.ended,
        "topic": topic,
    }
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return JSONResponse(content, status, headers={"Location": f"/v1/runs/{quote(run.run_id, safe='')}"})
