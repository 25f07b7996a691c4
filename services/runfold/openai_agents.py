"""The OpenAI Agents SDK on Runfold: `runfold[openai-agents]`.

    session = RunfoldSession("conversation-1", "http://127.0.0.1:8080")
    await Runner.run(agent, "Where is my parcel?", session=session)

Each item of the conversation is one record of the session's log, so a run of the SDK has a ledger,
revisions and replay like any other. An item that is popped stays in the log, and stands for nothing
from then on.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from agents.items import TResponseInputItem
from agents.memory.session_settings import SessionSettings, resolve_session_limit
from pydantic_core import PydanticSerializationError, to_jsonable_python

from runfold.access.sessions import session_connection
from runfold.client.session import EventsWanted, Logged, SessionVerbs
from runfold.ids import new_event_id
from runfold_schemas.codec import new_event
from runfold_schemas.errors import (
    InvalidEventError,
    RejectedError,
    SessionConflictError,
    SessionNotFoundError,
)
from runfold_schemas.events import AnyEvent, EventAmended
from runfold_schemas.sessions import FrameworkEvent

_TYPES: Final = frozenset({"framework_event", "event_amended"})
_LOOK: Final = 16


class RunfoldSession:
    """The SDK's `Session` protocol over Runfold's HTTP API, or on Kafka and MongoDB themselves.

    The session begins with its first item. One that was ended takes nothing more:
    `SessionEndedError`. Every verb may raise `UnavailableError`. Reading and clearing are safe to
    repeat after it; `add_items` may have added the items, and `pop_item` may have taken one out, so
    look with `get_items` before repeating those.
    """

    def __init__(
        self,
        session_id: str,
        url: str | None = None,
        *,
        app: str = "openai-agents",
        user: str = "",
        session_settings: SessionSettings | None = None,
        **settings: Any,
    ) -> None:
        """`session_id` alone says which conversation this is; `app` and `user` are what it is
        listed by, once it has begun. `settings` are those of `runfold.settings.Settings`, for use
        without the HTTP API.
        """
        self.session_id = session_id
        self.session_settings = session_settings
        self._app = app
        self._user = user
        self._connection = session_connection(url, settings)

    async def __aenter__(self) -> Self:
        await self._connection.verbs()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._connection.close()

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items of the conversation, oldest first; with a limit, the last of them."""
        most = resolve_session_limit(limit, self.session_settings)
        if most == 0:
            return []
        if most is not None and most < 0:
            most = None  # as the SDK's own sessions take it
        standing = await _standing(await self._connection.verbs(), self.session_id, most)
        return [one.item for one in standing.items]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds all of them or none. Raises `InvalidEventError` with the index of the item that JSON
        cannot carry, and `EventTooLargeError` for more than 8 MiB.
        """
        if not items:
            return
        said = [_event(item, index) for index, item in enumerate(items)]
        sessions = await self._connection.verbs()
        while True:
            try:
                await sessions.append_batch(self.session_id, said)
            except SessionNotFoundError:
                await self._begin(sessions)
            else:
                return

    async def pop_item(self) -> TResponseInputItem | None:
        """Takes the last item out; None if there is none. Of several who pop at once each gets
        another item.
        """
        sessions = await self._connection.verbs()
        while True:
            standing = await _standing(sessions, self.session_id, 1)
            if not standing.items:
                return None
            last = standing.items[-1]
            try:
                await sessions.append(self.session_id, _popped(last, standing))
            except (RejectedError, SessionNotFoundError):
                continue  # somebody was faster: look again
            return last.item

    async def clear_session(self) -> None:
        """Deletes the session with all that was said in it; the next item begins it anew."""
        sessions = await self._connection.verbs()
        try:
            await sessions.delete(self.session_id)
        except SessionNotFoundError:
            return

    async def _begin(self, sessions: SessionVerbs) -> None:
        try:
            await sessions.create(app=self._app, user=self._user, session_id=self.session_id)
        except SessionConflictError:
            return  # another process began it at the same time


class _Item(NamedTuple):
    offset: int
    item: TResponseInputItem


class _Standing(NamedTuple):
    items: list[_Item]
    run_id: str
    last_offset: int
    """What a change of these items expects to be the last event, and in which run."""


async def _standing(sessions: SessionVerbs, session_id: str, most: int | None) -> _Standing:
    """The last `most` items that were not popped, oldest first."""
    newest = None if most is None else most + _LOOK
    while True:
        try:
            found = await sessions.view(session_id, EventsWanted(types=_TYPES, newest=newest))
        except SessionNotFoundError:
            return _Standing([], "", -1)
        items = _items(found.events)
        if most is None or len(items) >= most or newest is None or len(found.events) < newest:
            last = items if most is None else items[-most:]
            return _Standing(last, found.record.run_id, found.last_offset)
        newest *= 4


def _items(events: Sequence[Logged]) -> list[_Item]:
    said = [(one.offset, json.loads(one.value)) for one in events]
    # What a repair has changed still stands in the conversation; what stands for nothing does not.
    amended = {event["data"]["offset"]: event for _, event in said if event["type"] == "event_amended"}
    popped = {offset for offset, event in amended.items() if not event["data"].get("stand_ins")}
    return [
        _Item(offset, event["data"]["body"])
        for offset, event in said
        if event["type"] == "framework_event"
        and offset not in popped
        and event["data"]["framework"] == "openai-agents"
    ]


def _popped(item: _Item, standing: _Standing) -> AnyEvent:
    # It names the run, since a session that was cleared meanwhile and begun anew is another one.
    return new_event(
        EventAmended(offset=item.offset, reason="popped"),
        event_id=new_event_id(),
        run_id=standing.run_id,
        timestamp=datetime.now(UTC),
        expected_offset=standing.last_offset,
    )


def _event(item: TResponseInputItem, index: int) -> FrameworkEvent:
    try:
        body = to_jsonable_python(item)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidEventError(f"the item is not JSON: {error}", index=index) from error
    if not isinstance(body, dict):
        raise InvalidEventError("the item is no object", index=index)
    return FrameworkEvent(framework="openai-agents", body=body)
