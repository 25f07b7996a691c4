"""The query service: its routes, and how it is run.

    GET  /v1/runs                  runs by agent, session, status, label, time
    GET  /v1/runs/{id}             the run record, now or at an earlier moment
    GET  /v1/runs/{id}/state       the run's own state, likewise
    GET  /v1/runs/{id}/state/{key} the events that set a key of state
    GET  /v1/runs/{id}/events      records by range, type and turn
    GET  /v1/runs/{id}/ledger      the transcript, now or at an earlier moment; POST adds messages
    GET  /v1/runs/{id}/blobs/{d}   the bytes that an event refers to
    GET  /v1/runs/{id}/follow      server-sent events: history first, then live
    GET  /v1/sessions/{id}/runs    the session's runs in order
    GET  /v1/agents                what agents did within a time; GET /v1/agents/{id} has the tools
    GET  /v1/tools                 the tools of all agents
    GET  /v1/sessions/{id}/ledger  the ledgers of these runs, one after the other

Ids are percent-encoded, so a slash in an id is `%2F`.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, Self

from fastapi import APIRouter, FastAPI
from starlette.responses import Response

from runfold.documents.runs import RunDocument, RunList
from runfold.http.answers import JSON, Stream, answer
from runfold.http.app import new_app, serve
from runfold.http.authorisation import check_owners_by
from runfold.http.problems import problem_responses
from runfold.identity.authenticator import authenticator_of, plans_in, quotas_in, ready_when_known
from runfold.log.clients import LogClients
from runfold.permissions.owners import Owners
from runfold.permissions.permissions import OwnerChecks
from runfold.prices import PriceTable
from runfold.query.agent_routes import add_agents
from runfold.query.as_of import prefix_of
from runfold.query.blobs import add_blobs
from runfold.query.documents import (
    EventList,
    LedgerAnswer,
    NewMessages,
    RunRequest,
    SessionLedger,
    SessionRequest,
)
from runfold.query.events import events_page
from runfold.query.follow import Follower, until_failure
from runfold.query.ledger import run_ledger, session_ledger
from runfold.query.parameters import (
    Cursor,
    CutOff,
    EndOffset,
    EventFilters,
    FirstOffset,
    FormatQuery,
    From,
    LastEventId,
    LedgerParameters,
    LedgerQuery,
    Limit,
    MinOffset,
    RunId,
    Selection,
    SessionId,
    UntilEnd,
    Validator,
)
from runfold.query.reading import Reading
from runfold.query.requests import check_bounds, run_request, session_request
from runfold.query.run_document import run_document, run_summary
from runfold.query.sources import with_source
from runfold.query.states import add_states
from runfold.query.unforeseen import RunRoute
from runfold.settings import Settings
from runfold.store.run_state import RunState
from runfold.tenants.open_tenants import OpenTenants
from runfold.tenants.plans import Plans
from runfold_schemas import ledger_events
from runfold_schemas.errors import UnavailableError
from runfold_schemas.messages import Message

_EVENT_STREAM: Final = {
    "description": "One event for each record. Its name is the type of the event, its `id` the offset,"
    " its `data` the record as in `/events`. If the run is in quarantine, an event `quarantined` says why,"
    " and the stream ends.",
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "example": 'id: 3\nevent: user_message\ndata: {"offset": 3, "outcome": "accepted"}\n\n',
        }
    },
}


_problems = partial(
    problem_responses,
    {
        404: "There is no such run.",
        409: "The run is in quarantine, and the answer needs what cannot be folded. Only an operator can"
        " help.",
        413: "The body is too large.",
        422: "A parameter is wrong. `field` names it.",
        503: "Kafka or MongoDB does not answer. Retry.",
        504: "`min_offset` was not reached in time. Retry.",
    },
)


async def run(settings: Settings) -> None:
    """Serves until the process receives SIGTERM or Ctrl-C."""
    await serve(build_app(settings), settings.http())


class QueryParts:
    """What the service has open of one tenant. Use it as an async context manager."""

    is_busy = False

    def __init__(
        self, settings: Settings, *, beside: "QueryParts | None" = None, clients: LogClients | None = None
    ) -> None:
        self.reading: Reading = Reading(
            settings,
            beside=None if beside is None else beside.reading,
            leaders=None if clients is None else clients.leaders,
        )
        self.owners = _owners(self.reading)

    async def __aenter__(self) -> Self:
        await self.reading.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.reading.__aexit__(*exc_info)


def build_app(settings: Settings, *, plans: Plans | None = None) -> FastAPI:
    """The service as an application of its own. `plans` replaces the registry of tenants."""
    own, authenticator = QueryParts(settings), authenticator_of(settings)

    def open_parts(of_tenant: Settings, clients: LogClients) -> QueryParts:
        return QueryParts(of_tenant, beside=own, clients=clients)

    plans = plans or plans_in(settings, authenticator)
    quotas = quotas_in(settings, authenticator)
    tenants = OpenTenants(settings, own, open_parts=open_parts, plans=plans)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with authenticator or nullcontext(), quotas or nullcontext(), tenants:
            yield

    app = new_app(
        "Runfold query",
        ready=ready_when_known(authenticator, own.reading.check_ready),
        authenticate=authenticator,
        tenant=settings.prefix,
        tenants=tenants,
        quotas=quotas,
        lifespan=lifespan,
        description="Read runs: their records, events and ledgers.",
    )
    check_owners_by(app, OwnerChecks(lambda: tenants.parts().owners))
    app.include_router(router(lambda: tenants.parts().reading))
    return app


def _owners(reading: Reading) -> Owners:
    async def scope_of_memory(bank_id: str, memory_id: str) -> Mapping[str, str] | None:
        head = await reading.stored_memories.head(bank_id, memory_id)
        return head.scope if head is not None else None

    return Owners(reading.runs.life, lambda: reading.stored_sessions, scope_of_memory)


Readings = Callable[[], Reading]
"""Returns what is read of the tenant of the request that the current task answers."""


def router(reading: Readings) -> APIRouter:
    """The routes. They work while what `reading` returns is entered."""
    ledger_events.prepare()
    routes = APIRouter(prefix="/v1", route_class=RunRoute)
    for add in (_add_records, _add_events, _add_ledger, _add_follow, _add_sessions):
        add(routes, reading)
    add_agents(routes, reading)
    add_blobs(routes, reading, problems=_problems(404, 409, 422))
    add_states(routes, reading, problems=_problems(404, 409, 422, 504))
    return routes


def _add_records(routes: APIRouter, reading: Readings) -> None:
    @routes.get("/runs", tags=["runs"], summary="List runs", response_model=RunList, responses=_problems(422))
    async def list_runs(*, selection: Selection, limit: Limit = 50, cursor: Cursor = None) -> Response:
        """List the runs that match all filters, in the order of `sort`."""
        states, next_cursor = await reading().stored_runs.runs(
            selection.filter(), limit=limit, cursor=cursor, order=selection.order
        )
        sound = await reading().runs.sound(states)
        return _answer(_run_list(sound, next_cursor, reading().prices))

    @routes.get(
        "/runs/{run_id}",
        tags=["runs"],
        summary="Read a run record",
        response_model=RunDocument,
        responses=_problems(404, 409, 422, 504),
    )
    async def read_run(
        *, run_id: RunId, cut_off: CutOff, min_offset: MinOffset = None, source: From = "snapshot"
    ) -> Response:
        """Read what a run is now, or was at an earlier moment: agent, session, status, phase,
        labels, counts, error, and the tokens and the cost of each model. `archive` says where the
        log lies if it was sealed.
        """
        history, end = await prefix_of(reading().runs, run_id, cut_off, min_offset=min_offset, source=source)
        record, segments = await reading().runs.record(history, end=end), None
        with suppress(UnavailableError):
            segments = await reading().stored_runs.segments(run_id)
        document = run_document(record, reading().prices, segments)
        return with_source(history.source, _answer(document))


def _add_events(routes: APIRouter, reading: Readings) -> None:
    @routes.get(
        "/runs/{run_id}/events",
        tags=["runs"],
        summary="Read events",
        response_model=EventList,
        responses=_problems(404, 409, 422, 504),
    )
    async def read_events(
        *,
        run_id: RunId,
        event_filter: EventFilters,
        first_offset: FirstOffset = 0,
        end_offset: EndOffset = None,
        limit: Limit = 100,
        min_offset: MinOffset = None,
        source: From = "snapshot",
    ) -> Response:
        """Read records in the order of the log, each with its offset, time and outcome. An answer
        has up to `limit` records or 4 MB. To continue, send `next_offset` as
        `first_offset`. On the last page `next_offset` equals `end_offset`, or the `end_offset` that
        you sent.
        """
        history = await reading().runs.history(run_id, min_offset=min_offset, source=source)
        end = history.end if end_offset is None else min(end_offset, history.end)
        page = await events_page(
            history,
            event_filter,
            first_offset=first_offset,
            end=end,
            limit=limit,
            is_unsigned=reading().unsigned_in(history),
        )
        return with_source(history.source, Response(page, media_type=JSON))


def _add_ledger(routes: APIRouter, reading: Readings) -> None:
    described: dict[str, Any] = {
        "tags": ["ledger"],
        "response_model": LedgerAnswer | RunRequest,
        "responses": _problems(404, 409, 422, 504),
    }

    @routes.get("/runs/{run_id}/ledger", summary="Read a ledger", **described)
    async def read_ledger(*, run_id: RunId, query: LedgerQuery) -> Response:
        """Read the transcript of a run: messages to send to a model provider, exactly as they were.
        A large ledger is streamed. If the stream breaks off, the ledger is incomplete.
        """
        return await _answer_ledger(reading(), run_id, query)

    described["responses"] = _problems(404, 413, 422, 504)

    @routes.post("/runs/{run_id}/ledger", summary="Read a ledger and add new messages", **described)
    async def read_ledger_and_more(*, run_id: RunId, query: LedgerQuery, new: NewMessages) -> Response:
        """As GET, with your messages at the end: one call builds and validates the next request to
        a model. Nothing is stored.
        """
        return await _answer_ledger(reading(), run_id, query, more=new.messages)


async def _answer_ledger(
    reading: Reading, run_id: str, query: LedgerParameters, *, more: Sequence[Message] = ()
) -> Response:
    history, end = await prefix_of(
        reading.runs, run_id, query.cut_off, min_offset=query.min_offset, source=query.source
    )
    if query.validate and query.validate.provider:
        check_bounds(end, field="validate")
    if query.form is not None:
        request = await run_request(
            history, query.form, end=end, blobs=reading.blobs, more=more, validate=query.validate
        )
        return with_source(history.source, Response(request, media_type=JSON))
    chunks = run_ledger(
        history,
        end=end,
        checkpoints=reading.checkpoints,
        blobs=reading.blobs,
        more=more,
        validate=query.validate,
    )
    response = await answer(chunks)
    return with_source(history.source, response)


def _add_follow(routes: APIRouter, reading: Readings) -> None:
    @routes.get(
        "/runs/{run_id}/follow",
        tags=["runs"],
        summary="Follow a run",
        response_class=Response,
        responses={**_problems(404, 409, 422), 200: _EVENT_STREAM},
    )
    async def follow_run(
        *,
        run_id: RunId,
        event_filter: EventFilters,
        first_offset: FirstOffset = 0,
        until_end: UntilEnd = False,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Follow a run by server-sent events: first the history from `first_offset` on, then each
        new event. After an interruption, send the last `id` as `Last-Event-ID` to go on after it.
        """
        begin = first_offset if last_event_id is None else last_event_id + 1
        follower = Follower(run_id, begin, event_filter, until_end=until_end)
        stream = follower.stream(reading().live, reading().runs)
        first = await anext(stream)
        return Stream(until_failure(first, stream), media_type="text/event-stream")


def _add_sessions(routes: APIRouter, reading: Readings) -> None:
    @routes.get(
        "/sessions/{session_id}/runs",
        tags=["sessions"],
        summary="List a session's runs",
        response_model=RunList,
        responses=_problems(422),
    )
    async def list_session_runs(
        *, session_id: SessionId, limit: Limit = 50, cursor: Cursor = None
    ) -> Response:
        """List the runs of a session in the order of their first records in the log."""
        states, next_cursor = await reading().sessions.runs(session_id, limit=limit, cursor=cursor)
        return _answer(_run_list(states, next_cursor, reading().prices))

    @routes.get(
        "/sessions/{session_id}/ledger",
        tags=["sessions"],
        summary="Read a session's ledger",
        response_model=SessionLedger | SessionRequest,
        responses=_problems(422),
    )
    async def read_session_ledger(
        *, session_id: SessionId, validate: Validator, form: FormatQuery
    ) -> Response:
        """Read the ledgers of a session's runs, one after the other. A session without runs has no
        messages.
        """
        histories = reading().sessions.histories(session_id)
        if form is not None:
            request = await session_request(
                session_id, histories, form, blobs=reading().blobs, validate=validate
            )
            return Response(request, media_type=JSON)
        return await answer(session_ledger(session_id, histories, blobs=reading().blobs, validate=validate))


def _run_list(states: Sequence[RunState], next_cursor: str | None, prices: PriceTable | None) -> RunList:
    return RunList(runs=[run_summary(state, prices) for state in states], next_cursor=next_cursor)


def _answer(document: RunList | RunDocument) -> Response:
    return Response(document.model_dump_json(), media_type=JSON)
