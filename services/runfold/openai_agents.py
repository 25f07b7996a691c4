"""The OpenAI Agents SDK on Runfold: `runfold[openai-agents]`.

    session = RunfoldSession("conversation-1", "http://127.0.0.1:8080")
    await Runner.run(agent, "Where is my parcel?", session=session)

Each item of the conversation is one record of the session's log, so a session of the SDK has a
ledger, revisions and replay like any other. An item that is popped, cleared or compacted stays in
the log, and an amendment behind it removes it from the conversation.
"""

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from agents.items import TResponseInputItem
from agents.memory.session_settings import SessionSettings, resolve_session_limit
from pydantic_core import PydanticSerializationError, to_jsonable_python

from runfold.access.sessions import session_connection
from runfold.client.session import EventSelection, Session, SessionVerbs
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

_FRAMEWORK: Final = "openai-agents"

_LOOK_AHEAD: Final = 16
"""How many events more than the limit are read at first, since some of them may be removed items
and their amendments.
"""

_REMOVALS_MAX: Final = 2_000
"""The amendments in one batch when a conversation is cleared."""


class RunfoldSession:
    """The SDK's `Session` protocol, over Runfold's HTTP API or on Kafka and MongoDB directly.

    The first item creates the session, if this object has not seen it before. A session that was
    seen and is deleted stays deleted: adding items raises `SessionNotFoundError`, and a new
    `RunfoldSession` with the same id begins anew. It connects with the first call and works in any
    event loop and thread; nobody has to close it.

    After a session has ended, adding and removing items raise `SessionEndedError`. Every method may
    raise `UnavailableError`. After that, reading and clearing are safe to repeat. `add_items` may
    have added the items and `pop_item` may have removed one, so call `get_items` before you repeat
    those.
    """

    def __init__(
        self,
        session_id: str,
        url: str | None = None,
        *,
        app: str = "openai-agents",
        user: str = "",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        api_key: str | None = None,
        **settings: Any,
    ) -> None:
        """`session_id` alone identifies the conversation. `app` and `user` are attributes of the
        session, by which sessions are listed. `api_key` is an API key or a token for the API at
        `url`; by default, the variable `RUNFOLD_API_KEY`. `settings` are fields of
        `runfold.settings.Settings`, for use without the HTTP API.

        Raises `TypeError` for an unknown field of `session_settings`.
        """
        self.session_id = session_id
        self.session_settings = _session_settings(session_settings)
        self._app = app
        self._user = user
        self._seen = False
        self._connection = session_connection(url, settings, api_key=api_key)

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._connection.__aexit__(*exc_info)

    async def close(self) -> None:
        """Closes the connections as soon as no call uses them any more, from any loop. A later call
        connects again. The connection of an `async with` block closes when the block is left.
        """
        await self._connection.close()

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items of the conversation, oldest first. With a limit, only the newest items."""
        newest = resolve_session_limit(limit, self.session_settings)
        if newest == 0:
            return []
        if newest is not None and newest < 0:
            newest = None  # the SDK's own sessions read a negative limit as no limit
        conversation = await self._connection.run(lambda sessions: self._read(sessions, newest))
        return [placed.item for placed in conversation.items]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds all of the items or none. Raises `InvalidEventError` with the index of an item that
        JSON cannot carry, and `EventTooLargeError` for more than 8 MiB.
        """
        if items:
            events = _framework_events(items)
            await self._connection.run(lambda sessions: self._append(sessions, events))

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the last item and returns it, or returns None if there is none. Concurrent calls
        each get a different item.
        """
        return await self._connection.run(self._pop)

    async def clear_session(self) -> None:
        """Removes all items. The session keeps its state, labels, name and expiry, and its log
        keeps the items. Raises `SessionConflictError` if another framework has events in the
        session.
        """
        await self._connection.run(self._clear)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replaces all items in one batch: the SDK's hook for compacting a conversation. Raises as
        `add_items` and `clear_session`.
        """
        if type(self) is not RunfoldSession:
            return False  # a subclass may store its items in another form
        events = _framework_events(items)
        await self._connection.run(lambda sessions: self._replace(sessions, events))
        return True

    async def _read(self, sessions: SessionVerbs, newest_items: int | None) -> "_Conversation":
        conversation = await _read_conversation(sessions, self.session_id, newest_items)
        self._seen = self._seen or bool(conversation.run_id)
        return conversation

    async def _append(self, sessions: SessionVerbs, events: Sequence[FrameworkEvent]) -> None:
        while True:
            try:
                await sessions.append_batch(self.session_id, events)
            except SessionNotFoundError:
                if self._seen:
                    raise  # somebody has deleted it
                await self._create(sessions)
            else:
                self._seen = True
                return

    async def _create(self, sessions: SessionVerbs) -> None:
        try:
            await sessions.create(app=self._app, user=self._user, session_id=self.session_id)
        except SessionConflictError:
            return  # another process created it at the same time

    async def _pop(self, sessions: SessionVerbs) -> TResponseInputItem | None:
        while True:
            conversation = await self._read(sessions, 1)
            if not conversation.items:
                return None
            last = conversation.items[-1]
            try:
                event = _removal(last, conversation, "popped", expected_offset=conversation.last_offset)
                await sessions.append(self.session_id, event)
            except (RejectedError, SessionNotFoundError):
                continue  # somebody changed the conversation first: read it again
            return last.item

    async def _clear(self, sessions: SessionVerbs) -> None:
        conversation = await self._own_conversation(sessions)
        removals = [_removal(placed, conversation, "cleared") for placed in conversation.items]
        for first in range(0, len(removals), _REMOVALS_MAX):
            try:
                await sessions.append_batch(self.session_id, removals[first : first + _REMOVALS_MAX])
            except (RejectedError, SessionNotFoundError):
                return  # somebody has deleted that session, with its items

    async def _replace(self, sessions: SessionVerbs, events: Sequence[FrameworkEvent]) -> None:
        while True:
            conversation = await self._own_conversation(sessions)
            removals = [_removal(placed, conversation, "replaced") for placed in conversation.items]
            if not removals:
                return await self._append(sessions, events)
            try:
                await sessions.append_batch(self.session_id, [*removals, *events])
            except RejectedError:
                continue  # somebody has deleted the session and created it anew
            return None

    async def _own_conversation(self, sessions: SessionVerbs) -> "_Conversation":
        """All of the conversation. Raises `SessionConflictError` if it is not the SDK's alone."""
        conversation = await self._read(sessions, None)
        if others := sorted(conversation.frameworks - {_FRAMEWORK}):
            raise SessionConflictError(self.session_id, framework=others[0])
        return conversation


class _PlacedItem(NamedTuple):
    offset: int
    item: TResponseInputItem


class _Conversation(NamedTuple):
    items: list[_PlacedItem]
    run_id: str
    last_offset: int
    """The last event when the items were read, in the run `run_id`."""
    frameworks: frozenset[str] = frozenset()
    """The frameworks that have events in the session."""


async def _read_conversation(
    sessions: SessionVerbs, session_id: str, newest_items: int | None
) -> _Conversation:
    """The newest items that were not removed, oldest first."""
    newest = None if newest_items is None else newest_items + _LOOK_AHEAD
    while True:
        try:
            session = await sessions.view(session_id, EventSelection(types=_TYPES, newest=newest))
        except SessionNotFoundError:
            return _Conversation([], "", -1)
        conversation = _conversation(session)
        if newest_items is None or newest is None:
            return conversation
        if len(conversation.items) >= newest_items or len(session.events) < newest:
            return conversation._replace(items=conversation.items[-newest_items:])
        newest *= 4


def _conversation(session: Session) -> _Conversation:
    decoded = [(logged.offset, json.loads(logged.value)) for logged in session.events]
    amended = {event["data"]["offset"]: event for _, event in decoded if event["type"] == "event_amended"}
    # An amendment with stand-ins is a repair, and its item stays in the conversation.
    removed = {offset for offset, event in amended.items() if not event["data"].get("stand_ins")}
    said = [(offset, event["data"]) for offset, event in decoded if event["type"] == "framework_event"]
    items = [
        _PlacedItem(offset, data["body"])
        for offset, data in said
        if data["framework"] == _FRAMEWORK and offset not in removed
    ]
    frameworks = frozenset(data["framework"] for _, data in said)
    return _Conversation(items, session.record.run_id, session.last_offset, frameworks)


def _removal(
    placed: _PlacedItem, conversation: _Conversation, reason: str, *, expected_offset: int | None = None
) -> AnyEvent:
    # The event names the run: a session that was deleted and created again has another run.
    return new_event(
        EventAmended(offset=placed.offset, reason=reason),
        event_id=new_event_id(),
        run_id=conversation.run_id,
        timestamp=datetime.now(UTC),
        expected_offset=expected_offset,
    )


def _framework_events(items: Sequence[TResponseInputItem]) -> list[FrameworkEvent]:
    return [_framework_event(item, index) for index, item in enumerate(items)]


def _framework_event(item: TResponseInputItem, index: int) -> FrameworkEvent:
    try:
        body = to_jsonable_python(item)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidEventError(f"the item is not JSON: {error}", index=index) from error
    if not isinstance(body, dict):
        raise InvalidEventError("the item is not an object", index=index)
    return FrameworkEvent(framework=_FRAMEWORK, body=body, **_files(body))


def _files(item: dict[str, Any]) -> dict[str, Any]:
    """The mark of an item that names files by their ids."""
    contents = [part for name in ("content", "output") if isinstance(part := item.get(name), list)]
    by_id = any(isinstance(part, dict) and part.get("file_id") for content in contents for part in content)
    return {"files_by_id": True} if by_id else {}


def _session_settings(settings: SessionSettings | dict[str, Any] | None) -> SessionSettings:
    if isinstance(settings, SessionSettings):
        return settings
    known = {field.name for field in fields(SessionSettings)}
    if unknown := sorted((settings or {}).keys() - known):
        raise TypeError(f"Unknown session settings: {', '.join(unknown)}")
    return SessionSettings(**(settings or {}))
