"""The routes of sessions' events. An event is stored as it was sent, and returned so."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.session import EventSelection, RecordedEvent, Session, SessionVerbs
from runfold.vertex.filters import Filter, Path, matches, parse_filter
from runfold.vertex.messages import rfc3339
from runfold.vertex.names import Name
from runfold.vertex.paging import PageRequest, foreign_token, requested_page, token_of, token_values
from runfold.vertex.requests import json_page, json_response, name_of, query_parameter, read_message
from runfold.vertex.session_documents import AppendEvent, runfold_id
from runfold_projections.state import without_temporary
from runfold_schemas.codec import new_data
from runfold_schemas.data import TURN_ID_LENGTH_MAX
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.sessions import FrameworkEvent

_QUERY: Final = EventSelection(types=frozenset({"framework_event"}))

_OFFSET_MAX: Final = 2**63 - 1

_View = Callable[[EventSelection], Awaitable[Session]]
"""Reads a session with some of its events."""


class _Head(BaseModel):
    """The fields of an event that are needed to sort events."""

    class Data(BaseModel):
        framework: str

    event_id: str
    timestamp: AwareDatetime
    data: Data


class _Whole(BaseModel):
    """The fields of an event that are returned."""

    class Data(BaseModel):
        framework: Literal["vertex"]
        body: dict[str, Any]

    event_id: str
    data: Data


_HEADS: Final[TypeAdapter[list[_Head]]] = TypeAdapter(list[_Head])


class _SortKey(NamedTuple):
    """Events are sorted by their time, as a text of a fixed length, and then by their offset."""

    time: str
    offset: int


def session_event_routes(sessions: Callable[[], SessionVerbs]) -> list[Route]:
    """`sessions` returns the client that the routes use, or raises while there is no connection."""

    async def append_event(request: Request) -> Response:
        name, event = name_of(request), await read_message(request, AppendEvent)
        await _append(sessions(), runfold_id(name), event)
        return json_response({})

    async def list_events(request: Request) -> Response:
        name, page = name_of(request), requested_page(request)
        filter_ = parse_filter(query_parameter(request, "filter"), {"timestamp": "time"})
        events, token = await _read_page(partial(sessions().view, runfold_id(name)), filter_, page)
        return json_page("sessionEvents", [_wire_form(event, name) for event in events], token)

    path = "/reasoningEngines/{engine}/sessions/{session}"
    return [
        Route(f"{path}:appendEvent", append_event, methods=["POST"]),
        Route(f"{path}/events", list_events, methods=["GET"]),
    ]


async def _append(sessions: SessionVerbs, session_id: str, event: AppendEvent) -> None:
    delta = (event.actions or {}).get("stateDelta") or {}
    if not isinstance(delta, dict):
        raise InvalidEventError("actions.stateDelta: this is not an object", field="actions.stateDelta")
    body = event.json_form()
    for stored in (body, body.get("rawEvent")):
        _remove_temporary(stored)
    invocation = event.invocation_id
    await sessions.append(
        session_id,
        new_data(FrameworkEvent, framework="vertex", body=body),
        timestamp=event.timestamp,
        turn_id=invocation if 0 < len(invocation) <= TURN_ID_LENGTH_MAX else None,
        state_delta=without_temporary(delta) or None,
    )


def _remove_temporary(event: Any) -> None:
    """Removes temporary keys, which are for one call only, from the stored event's state delta."""
    actions = event.get("actions") if isinstance(event, dict) else None
    if isinstance(actions, dict) and isinstance(delta := actions.get("stateDelta"), dict):
        event["actions"] = {**actions, "stateDelta": without_temporary(delta)}


async def _read_page(
    view: _View, filter_: Filter, request: PageRequest
) -> tuple[list[RecordedEvent], str | None]:
    """A page of events in the order of their times.

    The order is known only after all events are read. Nearly always it is the order of the log:
    then the token contains the end offset up to which this was checked, and the next page is read
    from the log at its own offset. Otherwise the token contains the sort key of the last event.
    """
    match token_values(request.token) if request.token else []:
        case []:
            return _first((await view(_QUERY)).events, filter_, request.size)
        # The types are compared because a bool is an int too.
        case [begin, end] if type(begin) is type(end) is int and 0 <= begin <= end <= _OFFSET_MAX:
            query = replace(_QUERY, first_offset=begin, end_offset=end, limit=request.size + 1)
            events, token = _first((await view(query)).events, filter_, request.size, end=end)
            if token is not None:
                return events, token
            return _first((await view(replace(_QUERY, first_offset=begin))).events, filter_, request.size)
        case [str(time), int(offset)]:
            return _first((await view(_QUERY)).events, filter_, request.size, after=_SortKey(time, offset))
        case _:
            raise foreign_token()


def _first(
    events: Sequence[RecordedEvent],
    filter_: Filter,
    size: int,
    *,
    after: _SortKey | None = None,
    end: int | None = None,
) -> tuple[list[RecordedEvent], str | None]:
    """The first `size` events that the filter matches, and the token of the next page if there are
    more. `end` is the offset up to which the log is known to be sorted; without it, `events` are
    all events of the session.
    """
    in_log_order = _sort_keys(events, filter_)
    keys = sorted(key for key in in_log_order if after is None or key > after)
    by_offset = {event.offset: event for event in events}
    shown = [by_offset[key.offset] for key in keys[:size]]
    if len(keys) <= size:
        return shown, None
    if in_log_order == sorted(in_log_order):
        return shown, token_of(keys[size].offset, events[-1].offset + 1 if end is None else end)
    return shown, token_of(*keys[size - 1])


def _sort_keys(events: Sequence[RecordedEvent], filter_: Filter) -> list[_SortKey]:
    """The sort keys of the events that the filter matches, in the order of the log."""
    heads = _HEADS.validate_json(b"[%b]" % b",".join(event.value for event in events))
    return [
        _SortKey(rfc3339(head.timestamp), event.offset)
        for head, event in zip(heads, events, strict=True)
        if head.data.framework == "vertex" and matches(filter_, partial(_time_of, head))
    ]


def _time_of(head: _Head, _: Path) -> datetime:
    return head.timestamp


def _wire_form(logged: RecordedEvent, session: Name) -> Mapping[str, Any]:
    event = _Whole.model_validate_json(logged.value)
    return {**event.data.body, "name": str(session.child("events", event.event_id))}
