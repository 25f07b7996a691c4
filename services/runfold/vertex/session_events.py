"""The events of Agent Engine's sessions: the log keeps each as it was sent, and it is given out so again."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.session import EventsWanted, Logged
from runfold.sessions import Sessions
from runfold.vertex.filters import Filter, Path, matches, parse_filter
from runfold.vertex.messages import rfc3339
from runfold.vertex.names import Name
from runfold.vertex.paging import foreign_token, paging, place_of, token_of
from runfold.vertex.requests import answer, name_of, parameter, read
from runfold.vertex.session_documents import AppendEvent, our_id
from runfold_projections.state import without_temporary
from runfold_schemas.codec import new_data
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.sessions import FrameworkEvent

_WANTED: Final = EventsWanted(types=frozenset({"framework_event"}))

_TURN_ID_LENGTH_MAX: Final = 200


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


class _Place(NamedTuple):
    """What events are sorted by: their time as a text of a fixed length, and their offset."""

    time: str
    offset: int


def session_event_routes(sessions: Callable[[], Sessions]) -> list[Route]:
    """`sessions` gives what the routes speak to, or raises while there is no connection."""

    async def append_event(request: Request) -> Response:
        name, event = name_of(request), await read(request, AppendEvent)
        await _append(sessions(), our_id(name), event)
        return answer({})

    async def list_events(request: Request) -> Response:
        name, (size, token) = name_of(request), paging(request)
        wanted = parse_filter(parameter(request, "filter"), {"timestamp": "time"})
        session = await sessions().view(our_id(name), _WANTED)
        places = _places(session.events, wanted, after=_place(token))
        logged = {one.offset: one for one in session.events}
        shown = [_wire(logged[place.offset], name) for place in places[:size]]
        following = {"nextPageToken": token_of(*places[size - 1])} if len(places) > size else {}
        return answer({"sessionEvents": shown, **following})

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
        turn_id=invocation if 0 < len(invocation) <= _TURN_ID_LENGTH_MAX else None,
        state_delta=without_temporary(delta) or None,
    )


def _forget_temporary(event: Any) -> None:
    """Nothing of a state that is for one call alone is stored, neither in the state nor in the event that told of it."""
    actions = event.get("actions") if isinstance(event, dict) else None
    if isinstance(actions, dict) and isinstance(delta := actions.get("stateDelta"), dict):
        event["actions"] = {**actions, "stateDelta": without_temporary(delta)}


def _places(events: Sequence[Logged], wanted: Filter, *, after: _Place | None) -> list[_Place]:
    """Those that the filter holds of and that come after a place, by their time."""
    heads = _HEADS.validate_json(b"[%b]" % b",".join(one.value for one in events))
    places = [
        _Place(rfc3339(head.timestamp), one.offset)
        for head, one in zip(heads, events, strict=True)
        if head.data.framework == "vertex" and matches(wanted, partial(_time_of, head))
    ]
    return sorted(place for place in places if after is None or place > after)


def _time_of(head: _Head, _: Path) -> datetime:
    return head.timestamp


def _place(token: str | None) -> _Place | None:
    match place_of(token) if token else None:
        case None:
            return None
        case [str(time), int(offset)]:
            return _Place(time, offset)
        case _:
            raise foreign_token()


def _wire(one: Logged, session: Name) -> Mapping[str, Any]:
    event = _Whole.model_validate_json(one.value)
    return {**event.data.body, "name": str(session.child("events", event.event_id))}
