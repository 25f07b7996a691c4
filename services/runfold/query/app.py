"""The query service: its routes, and how it is run.

    GET  /v1/runs                  runs by agent, session, status, label, time
    GET  /v1/runs/{id}             the run record
    GET  /v1/runs/{id}/events      records by range, type and turn
    GET  /v1/runs/{id}/ledger      the transcript, now or at an earlier moment; POST adds messages
    GET  /v1/runs/{id}/follow      server-sent events: history first, then live
    GET  /v1/sessions/{id}/runs    the session's runs in order
    GET  /v1/sessions/{id}/ledger  the ledgers of these runs, one after the other

Ids are percent-encoded, so a slash in an id is `%2F`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from starlette.responses import Response

from runfold.http.answers import JSON, Stream, answer
from runfold.http.app import new_app, serve
from runfold.http.problems import problem_responses
from runfold.query.documents import (
    EventList,
    LedgerAnswer,
    NewMessages,
    RunList,
    RunRequest,
    SessionLedger,
    SessionRequest,
)
from runfold.query.events import events_page
from runfold.query.follow import Follower, until_failure
from runfold.query.history import Source
from runfold.query.ledger import run_ledger, session_ledger
from runfold.query.parameters import (
    Cursor,
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
    RunFilters,
    RunId,
    SessionId,
    UntilEnd,
    Validator,
)
from runfold.query.reading import Reading
from runfold.query.requests import check_bounds, run_request, session_request
from runfold.settings import Settings
from runfold_projections.run import RunRecord
from runfold_projections.validation import validate_strict
from runfold_schemas.messages import Message

SOURCE_HEADER = "Runfold-Source"
"""The header that names the source of an answer: `snapshot` or `log`."""


_EVENT_STREAM: Final = {
    "description": "One event for each record. Its name is the type of the event, its `id` the offset,"
    " its `data` the record as in `/events`.",
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
        422: "A parameter is wrong. `field` names it.",
        503: "Kafka or MongoDB does not answer. Retry.",
        504: "`min_offset` was not reached in time. Retry.",
    },
)


async def run(settings: Settings) -> None:
    """Serves until the process receives SIGTERM or Ctrl-C."""
    await serve(build_app(settings), host=settings.host, port=settings.port)


def build_app(settings: Settings) -> FastAPI:
    """The service as an application of its own."""
    reading = Reading(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with reading:
            yield

    app = new_app(
        "Runfold query",
        ready=reading.check_ready,
        lifespan=lifespan,
        description="Read runs: their records, events and ledgers.",
    )
    app.include_router(router(reading))
    return app


def router(reading: Reading) -> APIRouter:
    """The routes. They work while `reading` is entered."""
    routes = APIRouter(prefix="/v1")
    for add in (_add_records, _add_events, _add_ledger, _add_follow, _add_sessions):
        add(routes, reading)
    return routes


def _add_records(routes: APIRouter, reading: Reading) -> None:
    @routes.get("/runs", tags=["runs"], summary="List runs", response_model=RunList, responses=_problems(422))
    async def list_runs(*, run_filter: RunFilters, limit: Limit = 50, cursor: Cursor = None) -> Response:
        """List the runs that match all filters, the newest first."""
        states, next_cursor = await reading.stored_runs.runs(run_filter, limit=limit, cursor=cursor)
        return _answer(RunList(runs=[state.record for state in states], next_cursor=next_cursor))

    @routes.get(
        "/runs/{run_id}",
        tags=["runs"],
        summary="Read a run record",
        response_model=RunRecord,
        responses=_problems(404, 422, 504),
    )
    async def read_run(*, run_id: RunId, min_offset: MinOffset = None, source: From = "snapshot") -> Response:
        """Read what a run is now: agent, session, status, phase, labels, counts, token usage,
        error.
        """
        history = await reading.runs.history(run_id, min_offset=min_offset, source=source)
        return _with_source(history.source, _answer(await reading.runs.record(history)))


def _add_events(routes: APIRouter, reading: Reading) -> None:
    @routes.get(
        "/runs/{run_id}/events",
        tags=["runs"],
        summary="Read events",
        response_model=EventList,
        responses=_problems(404, 422, 504),
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
        history = await reading.runs.history(run_id, min_offset=min_offset, source=source)
        end = history.end if end_offset is None else min(end_offset, history.end)
        page = await events_page(history, event_filter, first_offset=first_offset, end=end, limit=limit)
        return _with_source(history.source, Response(page, media_type=JSON))


def _add_ledger(routes: APIRouter, reading: Reading) -> None:
    described: dict[str, Any] = {
        "tags": ["ledger"],
        "response_model": LedgerAnswer | RunRequest,
        "responses": _problems(404, 422, 504),
    }

    @routes.get("/runs/{run_id}/ledger", summary="Read a ledger", **described)
    async def read_ledger(*, run_id: RunId, query: LedgerQuery) -> Response:
        """Read the transcript of a run: messages to send to a model provider, exactly as they were.
        A large ledger is streamed. If the stream breaks off, the ledger is incomplete.
        """
        return await _answer_ledger(reading, run_id, query)

    @routes.post("/runs/{run_id}/ledger", summary="Read a ledger and add new messages", **described)
    async def read_ledger_and_more(*, run_id: RunId, query: LedgerQuery, new: NewMessages) -> Response:
        """As GET, with your messages at the end: one call builds and validates the next request to
        a model. Nothing is stored.
        """
        return await _answer_ledger(reading, run_id, query, more=new.messages)


async def _answer_ledger(
    reading: Reading, run_id: str, query: LedgerParameters, *, more: Sequence[Message] = ()
) -> Response:
    # A prefix never changes, so a run that has not reached its end yet is waited for.
    offsets = (query.min_offset, query.cut_off.offset)
    least = max((offset for offset in offsets if offset is not None), default=None)
    history = await reading.runs.history(run_id, min_offset=least, source=query.source)
    end = await query.cut_off.end(history)
    if query.validate not in (None, validate_strict):
        check_bounds(end, field="validate")
    if query.form is not None:
        request = await run_request(history, query.form, end=end, more=more, validate=query.validate)
        return _with_source(history.source, Response(request, media_type=JSON))
    chunks = run_ledger(history, end=end, checkpoints=reading.checkpoints, more=more, validate=query.validate)
    return _with_source(history.source, await answer(chunks))


def _add_follow(routes: APIRouter, reading: Reading) -> None:
    @routes.get(
        "/runs/{run_id}/follow",
        tags=["runs"],
        summary="Follow a run",
        response_class=Response,
        responses={**_problems(404, 422), 200: _EVENT_STREAM},
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
        stream = follower.stream(reading.live, reading.runs)
        first = await anext(stream)
        return Stream(until_failure(first, stream), media_type="text/event-stream")


def _add_sessions(routes: APIRouter, reading: Reading) -> None:
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
        records, next_cursor = await reading.sessions.runs(session_id, limit=limit, cursor=cursor)
        return _answer(RunList(runs=records, next_cursor=next_cursor))

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
        histories = reading.sessions.histories(session_id)
        if form is not None:
            request = await session_request(session_id, histories, form, validate=validate)
            return Response(request, media_type=JSON)
        return await answer(session_ledger(session_id, histories, validate=validate))


def _answer(document: RunList | RunRecord) -> Response:
    return Response(document.model_dump_json(), media_type=JSON)


def _with_source(source: Source, response: Response) -> Response:
    response.headers[SOURCE_HEADER] = source
    return response
