"""Sessions: a conversation with its state, over however many processes. What a session is told
stands in the log of its run.

    sessions = runfold.sessions
    session = await sessions.create(app="shop", user="u-1", state={"user:language": "en"})
    await sessions.append(session.session_id, UserMessage(message="Hello"), state_delta={"step": 1})
    (await sessions.view(session.session_id)).state

State has scopes by the beginnings of its keys: `app:` is shared by all users of an app, `user:` by
all sessions of a user, `temp:` is never stored, and all else is the session's own. Writing needs
Kafka; what is read is a `SessionReader`'s matter.
"""

import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from runfold.client.appender import Appender, Position
from runfold.client.connection import LogConnection
from runfold.client.records import outgoing
from runfold.client.session import EventsWanted, Session, SessionReader, has_expired
from runfold.ids import new_event_id, new_log_id, uuid7
from runfold.log.shared import send_shared
from runfold_projections.admission import Admitted
from runfold_projections.run import RunRecord, fold
from runfold_projections.session import SessionRecord, life_of
from runfold_projections.state import (
    FORWARD_BYTES_MAX,
    Forward,
    changes_shared,
    fits,
    forwards,
    own_keys,
    without_temporary,
)
from runfold_schemas.codec import Record, encode, new_data, new_event
from runfold_schemas.data import Data
from runfold_schemas.errors import (
    EventTooLargeError,
    InvalidEventError,
    RejectedError,
    RunEndedError,
    SessionConflictError,
    SessionEndedError,
    SessionNotFoundError,
    UnavailableError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import RunCanceled, RunCompleted, RunOpened
from runfold_schemas.sessions import (
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    app_scope,
    session_key,
    session_run_id,
    user_scope,
)
from runfold_schemas.topics import check_id, check_session_id

_LOOK_UP_SECONDS: Final = 2.0

_OPEN_MAX: Final = 10_000
"""Sessions that are appended to without looking them up anew."""


class Sessions:
    """Every verb may raise `UnavailableError`, `InvalidIdError` and `InvalidEventError`."""

    def __init__(self, connection: LogConnection, reader: SessionReader) -> None:
        self._connection = connection
        self._reader = reader
        self._open: OrderedDict[str, _Open] = OrderedDict()

    async def create(
        self,
        *,
        app: str,
        user: str = "",
        session_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> Session:
        """A new session, of a new id unless one is given. Raises `SessionConflictError` where that
        is taken.

        It expires `ttl` from now, or at `expires_at`.
        """
        check_id(app, name="app")
        session_id = check_session_id(str(uuid7()) if session_id is None else session_id)
        now = datetime.now(UTC)
        created = new_data(
            SessionCreated,
            session_id=session_id,
            app=app,
            user=user,
            log_id=new_log_id(),
            labels=labels or {},
            display_name=display_name,
            expires_at=now + ttl if ttl is not None else expires_at,
        )
        await self._make_room(session_id, now)
        opening = _opening(created, checked_state(state or {}, field="state"), now)
        shared = _shared([opening], app=app, user=user)
        topic = self._connection.topics.run(opening.run_id, created.log_id)
        await self._connection.open_topic(topic, opening)
        await self._decide([_fact(created, session_id, opening.run_id, now)])
        record = await self._reader.find(session_id)
        if record is None or record.run_id != opening.run_id:
            await self._connection.delete_topic(topic)
            raise SessionConflictError(session_id)
        await self._connection.announce(life_of(record))
        await self._decide(shared)
        # From here on the catalog tells us if somebody else deletes it.
        self._connection.catalog.watch(opening.run_id)
        run = self._connection.appender_of(life_of(record), is_new=True)
        self._remember(record, run, 1)
        values = await self._reader.values([app_scope(app), user_scope(app, user)])
        return _new_session(record, opening, values)

    async def view(self, session_id: str, wanted: EventsWanted | None = None) -> Session:
        """The session with its state, and with its events if they are wanted. Raises
        `SessionNotFoundError`.
        """
        record = await self._standing(session_id)
        try:
            return await self._reader.view(record, wanted)
        except UnavailableError:
            # Its log may just have been deleted under the reader.
            standing = await self._standing(session_id)
            if standing.run_id == record.run_id:
                raise
            return await self._reader.view(standing, wanted)

    async def app_state(self, app: str) -> dict[str, Any]:
        """What all users of an app share, by key."""
        return await self._reader.values([app_scope(check_id(app, name="app"))])

    async def user_state(self, app: str, user: str) -> dict[str, Any]:
        """What all sessions of a user of an app share, by key."""
        return await self._reader.values([user_scope(check_id(app, name="app"), user)])

    async def append(self, session_id: str, data: Data | AnyEvent, **envelope: Any) -> Position:
        """Appends one event; `envelope` takes what `Run.event` takes, `state_delta` and
        `expected_offset` among it.

        Returns once the event is durable, and what it changes of shared state. Raises
        `SessionNotFoundError`, `SessionEndedError`, `EventTooLargeError`, and `RejectedError` where
        `expected_offset` lost.
        """
        [position] = await self._append(session_id, [data], envelope)
        return position

    async def append_batch(self, session_id: str, batch: Iterable[Data | AnyEvent]) -> list[Position]:
        """Appends several events as one: all or none of them. Raises as `append` does, but for
        `RejectedError`.
        """
        return await self._append(session_id, list(batch), {})

    async def run_id(self, session_id: str) -> str:
        """The run whose log the session's events stand in. Raises `SessionNotFoundError`."""
        return (await self._opened(session_id)).run.run_id

    async def update(
        self,
        session_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        display_name: str | None = None,
        ttl: timedelta | None = None,
        expires_at: datetime | None = None,
    ) -> Session:
        """Merges labels, sets the name, or lets the session expire: `ttl` from now, or at
        `expires_at`. What is None stays as it is.

        Raises `SessionNotFoundError`, `SessionEndedError`.
        """
        now = datetime.now(UTC)
        updated = new_data(
            SessionUpdated,
            session_id=session_id,
            labels=labels or {},
            display_name=display_name,
            expires_at=now + ttl if ttl is not None else expires_at,
        )
        record = await self._standing(session_id)
        if (await self._reader.view(record, None)).ended:
            raise SessionEndedError(session_id)
        await self._decide([_fact(updated, session_id, record.run_id, now)])
        changed = await self._reader.find(session_id)
        if changed is None or changed.run_id != record.run_id:
            raise SessionNotFoundError(session_id)
        await self._opened_as(changed)
        return await self._reader.view(changed, None)

    async def end(self, session_id: str) -> Session:
        """Ends the session: nothing can be appended any more. Raises `SessionNotFoundError`,
        `SessionEndedError`.
        """
        opened = await self._opened_as(await self._standing(session_id))
        async with self._told_of_session(opened):
            try:
                await opened.run.append(RunCompleted())
            except RejectedError as error:
                raise RunEndedError(opened.run.run_id) from error
        return await self.view(session_id)

    async def delete(self, session_id: str) -> None:
        """Deletes the session with its events and its runs; shared state stays. Raises
        `SessionNotFoundError`.
        """
        await self._delete(await self._standing(session_id))

    async def _make_room(self, session_id: str, now: datetime) -> None:
        standing = await self._reader.find(session_id)
        if standing is not None and not has_expired(standing, now):
            raise SessionConflictError(session_id)
        if standing is not None:
            await self._delete(standing)

    async def _delete(self, record: SessionRecord) -> None:
        now = datetime.now(UTC)
        # Whoever goes on appending at this moment, with an expectation, is refused by the log
        # itself.
        canceled = new_event(
            RunCanceled(reason="its session was deleted"),
            event_id=new_event_id(),
            run_id=record.run_id,
            timestamp=now,
        )
        topic = self._connection.topics.run(record.run_id, record.log_id)
        sealed = await self._connection.publisher.send(
            topic, outgoing(canceled, source=self._connection.settings.source)
        )
        await self._connection.publisher.wait(sealed)
        deleted = new_data(SessionDeleted, session_id=record.session_id)
        await self._decide([_fact(deleted, record.session_id, record.run_id, now)])
        self._open.pop(record.session_id, None)
        await self._reader.find(record.session_id)  # which waits until no reader has it any more
        await self._connection.publisher.forget(topic)

    async def _standing(self, session_id: str) -> SessionRecord:
        record = await self._reader.find(check_session_id(session_id))
        if record is None or has_expired(record, datetime.now(UTC)):
            raise SessionNotFoundError(session_id)
        return record

    async def _opened(self, session_id: str) -> "_Open":
        """What is needed to append. What was opened before is used again, and looked up anew from
        time to time: another process may have let it expire.
        """
        known = self._open.get(session_id)
        if known is not None and self._is_current(known):
            self._open.move_to_end(session_id)
            return known
        return await self._opened_as(await self._standing(session_id))

    async def _opened_as(self, record: SessionRecord) -> "_Open":
        """What is needed to append to this life of the session, which was looked up just now."""
        known = self._open.get(record.session_id)
        if known is not None and known.run.run_id == record.run_id:
            return self._remember(record, known.run, known.next_offset)
        found = await self._reader.view(record, None)
        if found.ended:
            raise SessionEndedError(record.session_id)
        life = await self._connection.catalog.lookup(record.run_id) or life_of(record)
        return self._remember(record, self._connection.appender_of(life), found.next_offset)

    async def _append(
        self, session_id: str, batch: Sequence[Data | AnyEvent], envelope: Mapping[str, Any]
    ) -> list[Position]:
        opened = await self._opened(session_id)
        try:
            return await self._publish(opened, _events(opened.run, batch, envelope))
        except SessionNotFoundError:
            if "expected_offset" in envelope or not all(isinstance(one, Data) for one in batch):
                raise  # it is for that life of the session alone
        # Another process has deleted it, and has perhaps created it anew.
        opened = await self._opened(session_id)
        return await self._publish(opened, _events(opened.run, batch, envelope))

    async def _publish(self, opened: "_Open", events: Sequence[AnyEvent]) -> list[Position]:
        """Appends what is one record batch, and tells those who decide what it changes of shared
        state.
        """
        if not events:
            return []
        events = [_checked(event, opened.run) for event in events]
        shared = _shared(events, app=opened.record.app, user=opened.record.user)
        async with self._told_of_session(opened, events):
            if len(events) == 1:
                positions = [await opened.run.append(events[0])]
            else:
                positions = await opened.run.append_batch(events)
            await self._check_not_late(opened, positions)
        await self._decide(shared)
        return positions

    async def _check_not_late(self, opened: "_Open", positions: Sequence[Position]) -> None:
        """The log takes events after its end as late ones. So where somebody else has appended
        since we knew the end, it is asked whether that was an ending. Raises `RunEndedError`.
        """
        first_offset, known = positions[0].offset, opened.next_offset
        opened.next_offset = max(known, first_offset + len(positions))
        if first_offset > known and await opened.run.log.ended_before(first_offset, not_before=known):
            raise RunEndedError(opened.run.run_id)

    @asynccontextmanager
    async def _told_of_session(self, opened: "_Open", events: Sequence[AnyEvent] = ()) -> AsyncIterator[None]:
        """A run that has ended is a session that has, or one that was deleted: then the log was
        sealed.
        """
        try:
            yield
        except InvalidEventError:
            for event in events:
                checked_state(event.state_delta or {})  # it may tell which key it is
            raise
        except RunEndedError as error:
            session_id = opened.record.session_id
            standing = await self._reader.find(session_id)
            if standing is not None and standing.run_id == opened.record.run_id:
                raise SessionEndedError(session_id) from error
            self._open.pop(session_id, None)
            raise SessionNotFoundError(session_id) from error

    def _is_current(self, opened: "_Open") -> bool:
        life = self._connection.catalog.peek(opened.run.run_id)
        return (
            (life is None or not life.deleted)
            and time.monotonic() - opened.looked_up_at < _LOOK_UP_SECONDS
            and not has_expired(opened.record, datetime.now(UTC))
        )

    def _remember(self, record: SessionRecord, run: Appender, next_offset: int) -> "_Open":
        opened = self._open[record.session_id] = _Open(record, run, next_offset, time.monotonic())
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)
        return opened

    async def _decide(self, facts: Sequence[Forward]) -> None:
        """Returns when all of them are durable in the topic whose order decides them."""
        publisher, settings = self._connection.publisher, self._connection.settings
        for ack in [await send_shared(publisher, settings, fact) for fact in facts]:
            await publisher.wait(ack)

    async def list(
        self,
        *,
        app: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[Session], str | None]:
        """A page of sessions, the newest first, with their state, and the cursor of the next
        page.
        """
        return await self._reader.list(app=app, user=user, labels=labels or {}, limit=limit, cursor=cursor)


@dataclass(slots=True)
class _Open:
    record: SessionRecord
    run: Appender
    next_offset: int
    """Where the log ended when we knew it last, and was not over."""
    looked_up_at: float


def checked_state(delta: Mapping[str, Any], *, field: str = "state_delta") -> dict[str, Any]:
    """What of `delta` is stored. Raises `InvalidEventError` naming the key whose value JSON cannot
    carry exactly.
    """
    stored = without_temporary(delta)
    for key, value in stored.items():
        try:
            survives = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidEventError(
                f"{field}: the value of {key!r} is not JSON: {error}", field=f"{field}.{key}"
            ) from error
        if not survives:
            raise InvalidEventError(
                f"{field}: the value of {key!r} would change on its way through JSON: use lists, string keys"
                " and finite numbers",
                field=f"{field}.{key}",
            )
    return stored


def _events(run: Appender, batch: Sequence[Data | AnyEvent], envelope: Mapping[str, Any]) -> list[AnyEvent]:
    return [run.event(one, **envelope) if isinstance(one, Data) else one for one in batch]


def _shared(events: Iterable[AnyEvent], *, app: str, user: str) -> list[Forward]:
    """What the events change that others share. Raises `EventTooLargeError` where that could not be
    forwarded.
    """
    shared = [one for event in events if changes_shared(event) for one in forwards(event, app=app, user=user)]
    for forward in shared:
        if not fits(forward):
            raise EventTooLargeError(size=len(encode(forward.event)), limit=FORWARD_BYTES_MAX)
    return shared


def _checked(event: AnyEvent, run: Appender) -> AnyEvent:
    if event.run_id != run.run_id:
        raise RejectedError(event.run_id, offset=-1, reason="its session was deleted, and created anew since")
    stored = without_temporary(event.state_delta or {})
    if len(stored) == len(event.state_delta or {}):
        return event
    return event.model_copy(update={"state_delta": stored})


def _opening(created: SessionCreated, state: Mapping[str, Any], now: datetime) -> AnyEvent:
    opened = new_data(
        RunOpened,
        agent_id=created.app,
        log_id=created.log_id,
        session_id=created.session_id,
        user_id=created.user,
    )
    return new_event(
        opened,
        event_id=new_event_id(),
        run_id=session_run_id(created.log_id),
        timestamp=now,
        **({"state_delta": dict(state)} if state else {}),
    )


def _fact(data: Data, session_id: str, run_id: str, now: datetime) -> Forward:
    event = new_event(data, event_id=new_event_id(), run_id=run_id, timestamp=now)
    return Forward(session_key(session_id), event)


def _new_session(record: SessionRecord, opening: AnyEvent, shared: Mapping[str, Any]) -> Session:
    # Nobody has said anything in it yet, so there is nothing to read.
    opened = Admitted(Record(0, 0, None, (), None), "accepted", opening)
    return Session(
        record,
        fold(RunRecord(run_id=record.run_id), [opened]),
        next_offset=1,
        last_offset=0,
        state={**own_keys(opening.state_delta), **shared},
    )
