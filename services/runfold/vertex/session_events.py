"""The events of Agent Engine's sessions: the log keeps each as it was sent, and it is given out so
again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.session import EventsWanted, Logged, Session
from runfold.client.sessions import Sessions
from runfold.vertex.filters import Filter, Path, matches, parse_filter
from runfold.vertex.messages import rfc3339
from runfold.vertex.names import Name
from runfold.vertex.paging import PageRequest, foreign_token, requested_page, token_of, token_values
from runfold.vertex.requests import json_response, name_of, query_parameter, read_message
from runfold.vertex.session_documents import AppendEvent, runfold_id
from runfold_projections.state import without_temporary
from runfold_schemas.codec import new_data
from runfold_schemas.data import TURN_ID_LENGTH_MAX
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.sessions import FrameworkEvent

_WANTED: Final = EventsWanted(types=frozenset({"framework_event"}))

_OFFSET_MAX: Final = 2**63 - 1

_View = Callable[[EventsWanted], Awaitable[Session]]
"""Reads a session with events of it."""


class _Head(BaseModel):
    """What is read of every event in a session, to put them in order."""

    class Data(BaseModel):
        framework: str

    event_id: str
    timestamp: AwareDatetime
    data: Data


class _Whole(BaseModel):
    """What is read of those that are shown."""

    class Data(BaseModel):
        framework: Literal["vertex"]
        body: dict[str, Any]

    event_id: str
    data: Data


_HEADS: Final[TypeAdapter[list[_Head]]] = TypeAdapter(list[_Head])


class _SortKey(NamedTuple):
    """What events are sorted by: their time as a text of a fixed length, and their offset."""

    time: str
    offset: int


def session_event_routes(sessions: Callable[[], Sessions]) -> list[Route]:
    """`sessions` gives what the routes speak to, or raises while there is no connection."""

    async def append_event(request: Request) -> Response:
        name, event = name_of(request), await read_message(request, AppendEvent)
        await _append(sessions(), runfold_id(name), event)
        return json_response({})

    async def list_events(request: Request) -> Response:
        name, asked = name_of(request), requested_page(request)
        wanted = parse_filter(query_parameter(request, "filter"), {"timestamp": "time"})
        events, token = await _page(partial(sessions().view, runfold_id(name)), wanted, asked)
        shown = [_wire(one, name) for one in events]
        return json_response({"sessionEvents": shown, **({"nextPageToken": token} if token else {})})

    path = "/reasoningEngines/{engine}/sessions/{session}"
    return [
        Route(f"{path}:appendEvent", append_event, methods=["POST"]),
        Route(f"{path}/events", list_events, methods=["GET"]),
    ]


async def _append(sessions: Sessions, session_id: str, event: AppendEvent) -> None:
    delta = (event.actions or {}).get("stateDelta") or {}
    if not isinstance(delta, dict):
        raise InvalidEventError("actions.stateDelta: it is not an object", field="actions.stateDelta")
    body = event.json_form()
    for kept in (body, body.get("rawEvent")):
        _forget_temporary(kept)
    invocation = event.invocation_id
    await sessions.append(
        session_id,
        new_data(FrameworkEvent, framework="vertex", body=body),
        timestamp=event.timestamp,
        turn_id=invocation if 0 < len(invocation) <= TURN_ID_LENGTH_MAX else None,
        state_delta=without_temporary(delta) or None,
    )


def _forget_temporary(event: Any) -> None:
    """Nothing of a state that is for one call alone is stored, neither in the state nor in the
    event that told of it.
    """
    actions = event.get("actions") if isinstance(event, dict) else None
    if isinstance(actions, dict) and isinstance(delta := actions.get("stateDelta"), dict):
        event["actions"] = {**actions, "stateDelta": without_temporary(delta)}


async def _page(view: _View, wanted: Filter, asked: PageRequest) -> tuple[list[Logged], str | None]:
    """Events by their time. Only whoever has read all of them knows their order, and nearly always
    it is that of the log: then the token says up to where it is so, and what follows is read from
    there.
    """
    match token_values(asked.token) if asked.token else []:
        case []:
            return _first((await view(_WANTED)).events, wanted, asked.size)
        # A bool would be an int as well.
        case [begin, end] if type(begin) is type(end) is int and 0 <= begin <= end <= _OFFSET_MAX:
            part = replace(_WANTED, first_offset=begin, end_offset=end, limit=asked.size + 1)
            found = _first((await view(part)).events, wanted, asked.size, end=end)
            if found[1] is not None:
                return found
            return _first((await view(replace(_WANTED, first_offset=begin))).events, wanted, asked.size)
        case [str(time), int(offset)]:
            return _first((await view(_WANTED)).events, wanted, asked.size, after=_SortKey(time, offset))
        case _:
            raise foreign_token()


def _first(
    events: Sequence[Logged],
    wanted: Filter,
    size: int,
    *,
    after: _SortKey | None = None,
    end: int | None = None,
) -> tuple[list[Logged], str | None]:
    """The first `size` of the events that the filter holds of, and the token of the next page if
    there are more. `end` is how far the log is known to be in order; without it, `events` are all
    there are.
    """
    in_log = _places(events, wanted)
    places = sorted(place for place in in_log if after is None or place > after)
    logged = {one.offset: one for one in events}
    shown = [logged[place.offset] for place in places[:size]]
    if len(places) <= size:
        return shown, None
    if in_log == sorted(in_log):
        return shown, token_of(places[size].offset, events[-1].offset + 1 if end is None else end)
    return shown, token_of(*places[size - 1])


def _places(events: Sequence[Logged], wanted: Filter) -> list[_SortKey]:
    """Those of the events that the filter holds of, as they are in the log."""
    heads = _HEADS.validate_json(b"[%b]" % b",".join(one.value for one in events))
    return [
        _SortKey(rfc3339(head.timestamp), one.offset)
        for head, one in zip(heads, events, strict=True)
        if head.data.framework == "vertex" and matches(wanted, partial(_time_of, head))
    ]


def _time_of(head: _Head, _: Path) -> datetime:
    return head.timestamp


def _wire(one: Logged, session: Name) -> Mapping[str, Any]:
    event = _Whole.model_validate_json(one.value)
    return {**event.data.body, "name": str(session.child("events", event.event_id))}
