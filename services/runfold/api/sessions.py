"""The routes of sessions: conversations with their state.

    POST   /v1/sessions                       create a session
    GET    /v1/sessions                       list sessions by app, user, label
    GET    /v1/sessions/{session_id}          read one, on request with its events
    PATCH  /v1/sessions/{session_id}          change labels, name, expiry
    POST   /v1/sessions/{session_id}/end      end it: no event is appended any more
    DELETE /v1/sessions/{session_id}          delete it with its events and runs
    POST   /v1/sessions/{session_id}/events   append one event, or a batch
    GET    /v1/sessions/{session_id}/events   read events by range, time and type

The routes write to the log and read from MongoDB, so only the API, which is ingest and query in one
process, serves them. A 2xx means that a change is durable. Every answer contains all changes that
were acknowledged before the request.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response

from runfold.api.session_pages import count_fitting, read_page
from runfold.client.appender import Position
from runfold.client.prefixes import AsOfOptions
from runfold.client.session import EventSelection, RecordedEvent, Session
from runfold.documents.sessions import (
    CreateSession,
    SessionDocument,
    SessionEventPage,
    SessionPage,
    SessionWithEvents,
    UpdateSession,
    event_json,
    session_json,
    whole_json,
    whole_lines,
)
from runfold.http.answers import answer
from runfold.http.audited_ids import note_ids
from runfold.http.bodies import (
    COMMAND_BYTES_MAX,
    JSON,
    NDJSON,
    parse_json,
    read_body,
    read_media_type,
)
from runfold.http.idempotency import (
    RepeatableBatch,
    RepeatableDocument,
    RepeatableRequest,
    Replays,
    repetition,
    status_of_creation,
)
from runfold.http.items import Item
from runfold.http.problems import problem_responses
from runfold.http.requests import describe_body, parse_request
from runfold.ids import new_event_id
from runfold.ingest.events import events_of, located
from runfold.ingest.requests import EVENTS_BODY
from runfold.permissions.sessions import ServedSessions
from runfold.query.parameters import Cursor, CutOff, EndOffset, FirstOffset, Limit, SessionId, label_filter
from runfold.query.times import Time
from runfold_schemas.codec import event_types
from runfold_schemas.cursors import PAGE_MAX
from runfold_schemas.errors import (
    EventTooLargeError,
    InvalidEventError,
    RejectedError,
    SessionConflictError,
)
from runfold_schemas.events import AnyEvent

_LIMIT: Final = 100

AppFilter = Annotated[str | None, Query(description="Sessions of this app.")]
UserFilter = Annotated[str | None, Query(description="Sessions of this user.")]
LabelFilter = Annotated[
    list[str], Query(description="`key:value`, split at the first colon. All of several labels must match.")
]
WithState = Annotated[
    bool, Query(description="`false`: the `state` of each session is left empty, which takes less time.")
]
Include = Annotated[
    Literal["events"] | None, Query(description="`events`: the answer contains the session's events.")
]
Since = Annotated[Time | None, Query(description="Only events with this timestamp or a later one.")]
Newest = Annotated[int | None, Query(ge=0, description="At most this many events, the last that match.")]
Types = Annotated[
    list[str],
    Query(description="Only events of this type, or of one of several types.", examples=[["user_message"]]),
]
OnlyFirst = Annotated[int | None, Query(ge=0, description="At most this many events, the first that match.")]
LimitOfEvents = Annotated[
    int | None,
    Query(ge=1, le=PAGE_MAX, description=f"The largest number of events in the answer; {_LIMIT} by default."),
]
Accept = Annotated[
    str, Header(description=f"`{NDJSON}`: the session on one line, then each event on a line.")
]

_problems = partial(
    problem_responses,
    {
        400: "`Idempotency-Key` is empty or too long.",
        404: "There is no such session.",
        409: "The id is taken, the session has ended, or another event was accepted after"
        " `expected_offset`; or the first request with this `Idempotency-Key` is still in progress.",
        413: "The body, or an event in it, is too large.",
        415: "The body's media type is not one of those listed.",
        422: "A part of the request is wrong. `field` names it, and `line` or `index` the event in a batch.",
        503: "Kafka or MongoDB does not answer, or no projector runs. Retry.",
    },
)


async def event_query(
    *,
    first_offset: FirstOffset = 0,
    end_offset: EndOffset = None,
    since: Since = None,
    newest: Newest = None,
    type: Types = [],  # noqa: A002, B006  # the parameter's name on the wire; FastAPI copies it
) -> EventSelection:
    return EventSelection(
        types=event_types(type),
        first_offset=first_offset,
        end_offset=end_offset,
        since=since,
        newest=newest,
    )


EventQuery = Annotated[EventSelection, Depends(event_query)]


async def session_moment(cut_off: CutOff) -> AsOfOptions:
    return AsOfOptions(
        as_of_offset=cut_off.offset,
        as_of_time=cut_off.time,
        as_of_turn=cut_off.turn,
        before_turn=cut_off.before_turn,
    )


SessionMoment = Annotated[AsOfOptions, Depends(session_moment)]


def build_session_router(sessions: Callable[[], ServedSessions]) -> APIRouter:
    """The routes. `sessions` returns the client, or raises while there is no connection.

    The application has to come from `runfold.http.app.new_app`, which turns our errors into problem
    documents.
    """
    router = APIRouter(prefix="/v1", tags=["sessions"])
    state = _State(sessions, Replays())
    for add in (_add_creation, _add_list, _add_read, _add_changes, _add_publishing, _add_events):
        add(router, state)
    return router


class _State(NamedTuple):
    """The state that the routes share."""

    sessions: Callable[[], ServedSessions]
    replays: Replays


def _add_creation(router: APIRouter, state: _State) -> None:
    @router.post(
        "/sessions",
        status_code=HTTPStatus.CREATED,
        summary="Create a session",
        response_model=SessionDocument,
        responses=_problems(400, 409, 413, 415, 422) | repetition(SessionDocument),
        openapi_extra=describe_body(CreateSession),
    )
    async def create_session(request: RepeatableDocument) -> Response:
        """Create a session. Without `session_id`, it gets a new id. The answer is 200 instead of
        201 if an earlier copy of the request has created the session.
        """

        async def handle() -> Response:
            return await _create(state.sessions(), request)

        return await state.replays.answer("sessions", request, handle)


async def _create(sessions: ServedSessions, request: RepeatableRequest) -> Response:
    body, received_at = parse_request(CreateSession, await request.json()), datetime.now(UTC)
    note_ids({"app": body.app, "user": body.user})
    ids = request.creation_ids("session", body.app, resource_id=body.session_id, event_id=body.event_id)
    try:
        session = await sessions.create(
            app=body.app,
            user=body.user,
            session_id=ids.resource_id,
            state=body.state,
            labels=body.labels,
            display_name=body.display_name,
            ttl=body.ttl,
            expires_at=body.expires_at,
            event_id=ids.event_id,
        )
    except SessionConflictError as error:
        if body.session_id is not None or ids.resource_id is None:
            raise
        # Only this key makes this id. Earlier versions do not derive the `event_id` from the key.
        session = await sessions.view(error.session_id)
    location = f"/v1/sessions/{quote(session.session_id, safe='')}"
    status = status_of_creation(session.record.created_at, received_at=received_at)
    return Response(session_json(session), status, {"Location": location}, media_type=JSON)


def _add_list(router: APIRouter, state: _State) -> None:
    @router.get("/sessions", summary="List sessions", response_model=SessionPage, responses=_problems(422))
    async def list_sessions(
        *,
        app: AppFilter = None,
        user: UserFilter = None,
        label: LabelFilter = [],  # noqa: B006  # FastAPI copies it
        limit: Limit = 50,
        cursor: Cursor = None,
        with_state: WithState = True,
    ) -> Response:
        """List the sessions that match all filters, with their state, the newest first. An answer
        has up to `limit` sessions or 4 MB. To read on, send `next_cursor` as `cursor`.
        """
        labels = label_filter(label) or None
        read = partial(state.sessions().list, app=app, user=user, labels=labels, with_state=with_state)
        return Response(await read_page(read, limit, cursor), media_type=JSON)


def _add_read(router: APIRouter, state: _State) -> None:
    @router.get(
        "/sessions/{session_id}",
        summary="Read a session",
        response_model=SessionDocument | SessionWithEvents,
        responses={**_problems(404, 422), 200: _LINES},
    )
    async def read_session(
        *,
        session_id: SessionId,
        query: EventQuery,
        moment: SessionMoment,
        include: Include = None,
        limit: OnlyFirst = None,
        accept: Accept = "",
    ) -> Response:
        """Read a session with its state, and with its events if you include them, all as of one
        moment: now, or an earlier one. As of an earlier moment, the state has the session's own
        keys alone, and its labels, name and expiry are those of now. The other parameters filter
        the events.
        """
        query = replace(query, limit=limit)
        if include is None and query != EventSelection():
            raise InvalidEventError("include: a filter of events needs include=events", field="include")
        session = await state.sessions().view(session_id, query if include else None, **moment)
        if NDJSON in accept:
            return await _stream(whole_lines(session), media_type=NDJSON)
        if include is None:
            return _answer_session(session)
        return await _stream(whole_json(session), media_type=JSON)


def _add_changes(router: APIRouter, state: _State) -> None:
    @router.patch(
        "/sessions/{session_id}",
        summary="Change a session",
        response_model=SessionDocument,
        responses=_problems(404, 409, 413, 415, 422),
        openapi_extra=describe_body(UpdateSession),
    )
    async def update_session(session_id: SessionId, request: Request) -> Response:
        """Merge labels, set the name, or set the expiry."""
        read_media_type(request, allowed=(JSON,))
        body = await read_body(request, bytes_max=COMMAND_BYTES_MAX)
        changes = parse_request(UpdateSession, await parse_json(body))
        session = await state.sessions().update(
            session_id,
            labels=changes.labels,
            display_name=changes.display_name,
            ttl=changes.ttl,
            expires_at=changes.expires_at,
        )
        return _answer_session(session)

    @router.post(
        "/sessions/{session_id}/end",
        summary="End a session",
        response_model=SessionDocument,
        responses=_problems(404, 409, 422),
    )
    async def end_session(session_id: SessionId) -> Response:
        """End a session. It stays readable, and no event is appended any more."""
        return _answer_session(await state.sessions().end(session_id))

    @router.delete(
        "/sessions/{session_id}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Delete a session",
        responses=_problems(404, 422),
    )
    async def delete_session(session_id: SessionId) -> Response:
        """Delete a session with its events and its runs. The state that it shares with others
        stays.
        """
        await state.sessions().delete(session_id)
        return Response(status_code=HTTPStatus.NO_CONTENT)


def _add_publishing(router: APIRouter, state: _State) -> None:
    @router.post(
        "/sessions/{session_id}/events",
        status_code=HTTPStatus.CREATED,
        summary="Append events",
        responses=_problems(400, 404, 409, 413, 415, 422),
        openapi_extra=EVENTS_BODY,
    )
    async def append_events(session_id: SessionId, request: RepeatableBatch) -> Response:
        """Append one event, or a batch of which all events are appended or none. `state_delta`
        changes the state. Only a single event may have `expected_offset`.
        """

        async def handle() -> Response:
            return await _append(state.sessions(), session_id, request)

        return await state.replays.answer(f"events/{session_id}", request, handle)


async def _append(sessions: ServedSessions, session_id: str, request: RepeatableRequest) -> Response:
    run_id = (await sessions.open_record(session_id)).run_id

    def event_id(index: int) -> str:
        return request.derived_id("session events", run_id, index=index) or new_event_id()

    items = _of_current_run(request.items(), run_id)
    batch = await events_of(items, run_id=run_id, event_ids=event_id, now=datetime.now(UTC))
    events = batch.events
    try:
        if len(events) == 1:
            # Single events of many requests share a record batch; a batch has one of its own.
            positions: Sequence[Position] = [await sessions.append(session_id, events[0])]
        else:
            positions = await sessions.append_batch(session_id, events)
    except EventTooLargeError:
        raise  # the whole batch is too large, not one of its events
    except InvalidEventError as error:
        raise located(error, batch.locations[error.index or 0]) from error
    listed = [_position(*each) for each in zip(events, positions, strict=True)]
    where = {"session_id": session_id, "run_id": run_id}
    return JSONResponse(where | (listed[0] if batch.is_alone else {"positions": listed}), HTTPStatus.CREATED)


async def _of_current_run(items: AsyncIterator[Item], run_id: str) -> AsyncIterator[Item]:
    """The items. Raises `RejectedError` for an event of an earlier session with the same id."""
    async for item in items:
        if isinstance(other := item.fields.get("run_id"), str) and other != run_id:
            raise RejectedError(other, offset=-1, reason="it is not the current run of the session")
        yield item


def _position(event: AnyEvent, position: Position) -> dict[str, Any]:
    duplicate = {"is_duplicate": True} if position.is_duplicate else {}
    return {"offset": position.offset, "event_id": event.event_id, **duplicate}


def _add_events(router: APIRouter, state: _State) -> None:
    @router.get(
        "/sessions/{session_id}/events",
        summary="Read a session's events",
        response_model=SessionEventPage,
        responses=_problems(404, 422),
    )
    async def read_events(
        *, session_id: SessionId, query: EventQuery, limit: LimitOfEvents = None
    ) -> Response:
        """Read events in the order of the log. An answer has up to `limit` events or 4 MB, or all
        of the `newest`. To continue, send `next_offset` as `first_offset`. On the last
        page `next_offset` equals `end_offset`, or the `end_offset` that you sent.
        """
        if query.newest is not None:
            if limit is not None:
                raise InvalidEventError("limit: `newest` is a limit already", field="limit")
            session = await state.sessions().view(session_id, query)
            return _answer_page(session, session.events, session.next_offset)
        # One event more than the page has shows whether there is another page.
        shown = limit or _LIMIT
        session = await state.sessions().view(session_id, replace(query, limit=shown + 1))
        shown = min(shown, count_fitting(session.events))
        if shown < len(session.events):
            return _answer_page(session, session.events[:shown], session.events[shown].offset)
        end = session.next_offset
        reached = end if query.end_offset is None else min(query.end_offset, end)
        return _answer_page(session, session.events, max(query.first_offset, reached))


def _answer_page(session: Session, events: Sequence[RecordedEvent], next_offset: int) -> Response:
    facts = {
        "session_id": session.session_id,
        "run_id": session.record.run_id,
        "next_offset": next_offset,
        "end_offset": session.next_offset,
    }
    head = json.dumps(facts).encode().removesuffix(b"}")
    return Response(b'%b,"events":[%b]}' % (head, b",".join(map(event_json, events))), media_type=JSON)


def _answer_session(session: Session) -> Response:
    return Response(session_json(session), media_type=JSON)


async def _stream(portions: Iterator[bytes], *, media_type: str) -> Response:
    async def chunks() -> AsyncIterator[bytes]:
        for portion in portions:
            yield portion

    response = await answer(chunks(), media_type=media_type)
    response.headers["Vary"] = "Accept"
    return response


_LINES: Final = {
    "description": "The session. With NDJSON, the first line is the session, and each event has a line"
    " after it.",
    "content": {NDJSON: {"schema": {"type": "string"}}},
}
