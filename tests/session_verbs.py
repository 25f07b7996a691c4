"""Sessions for tests in each of their ways, with a projector that can be stopped, and what is
compared of them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from tests.processes import DEADLINE_SECONDS
from tests.querying import Projected, projected, ready_api

from runfold import PlannerNote, Runfold
from runfold.client.session import EventSelection, Session, SessionVerbs
from runfold.client.sessions import Sessions
from runfold.query.reading import Reading
from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.verify.runs import verify
from runfold.verify.sessions import verify_sessions
from runfold_schemas.codec import decode
from runfold_schemas.errors import RunfoldError

T = TypeVar("T")

WAYS = ("log", "stored", "http")

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Projector:
    """A worker that can be stopped and started anew."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self.stored: Projected

    async def start(self) -> None:
        self.stored = await self._stack.enter_async_context(projected(self._settings))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def rebuild(self) -> None:
        """Drops all that is in MongoDB, and begins again from the logs."""
        await self.stop()
        async with connect(self._settings.mongo, self._settings.database) as database:
            await Editions(database).drop_all()
        await self.start()

    async def differences(self) -> list[Any]:
        return await differences(self._settings, self.stored.stores)


async def differences(settings: Settings, stores: Edition) -> list[Any]:
    """Between MongoDB and the log, of runs, of their state and of sessions. If there are none, all
    of the log is folded.
    """
    log, found = settings.log(), []
    async for _, of_run in verify(log, stores, wait_seconds=DEADLINE_SECONDS):
        found += of_run
    return found + (await verify_sessions(log, stores, wait_seconds=DEADLINE_SECONDS))[1]


async def check_rebuild(settings: Settings, *, before: Settings | None = None) -> None:
    """Drops all that is in MongoDB, lets a projector begin again from the logs, and compares all
    that can be read. `before` are the settings of the projector before, if they were others. If
    there is no session, the caller runs alone, and one is made.
    """
    async with (
        opened("stored", settings) as sessions,
        connect(settings.mongo, settings.database) as database,
    ):
        listed, _ = await patiently(lambda: sessions.list(limit=1))
        if not listed:
            await sessions.create(app="shop", user="ann", state={"app:k": 1, "user:k": 2, "k": 3})
        editions = Editions(database)
        stores = Edition.of(database, await editions.current_or_first())
        assert await differences(before or settings, stores) == []
        read_before = await everything(sessions)
        assert read_before
        await editions.drop_all()
        async with projected(settings) as stored:
            assert await differences(settings, stored.stores) == []
            assert await settled(lambda: everything(sessions), read_before) == read_before


async def patiently(read: Callable[[], Awaitable[T]]) -> T:
    """What is read once enough is projected."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await read()
            except RunfoldError as error:
                if not error.retriable:
                    raise


async def settled(read: Callable[[], Awaitable[T]], expected: T) -> T:
    """What is read once it is what is expected, or a minute later. For a moment, a reader still
    looks into an edition that was dropped, and finds nothing.
    """
    began = time.monotonic()
    while (found := await patiently(read)) != expected and time.monotonic() - began < DEADLINE_SECONDS:
        await asyncio.sleep(0.25)
    return found


@asynccontextmanager
async def opened(way: str, settings: Settings) -> AsyncIterator[SessionVerbs]:
    """Sessions with connections of their own, as another process has them."""
    match way:
        case "log":
            async with Runfold.of(settings.log()) as runfold:
                yield runfold.sessions
        case "stored":
            async with Runfold.of(settings.log()) as runfold, Reading(settings) as reading:
                yield Sessions(runfold.connection, reading.stored_sessions)
        case _:
            async with (
                ready_api(settings) as client,
                HttpSessions(str(client.base_url), timeout_seconds=DEADLINE_SECONDS) as sessions,
            ):
                yield sessions


def comparable(session: Session) -> tuple[Any, ...]:
    """What every way says of a session."""
    record = session.record
    return (
        *(record.session_id, record.app, record.user, record.run_id, record.created_at),
        *(record.labels, record.display_name, record.expires_at),
        *(
            session.ended,
            session.updated_at,
            session.next_offset,
            session.last_offset,
            dict(session.state),
            list(session.events),
        ),
    )


async def everything(sessions: SessionVerbs) -> dict[str, tuple[Any, ...]]:
    """All that can be read of sessions, by id."""
    found: dict[str, tuple[Any, ...]] = {}
    cursor = None
    while True:
        page, cursor = await sessions.list(limit=20, cursor=cursor)
        read = await asyncio.gather(*(_all_of(sessions, one) for one in page))
        found |= {one.session_id: all_of for one, all_of in zip(page, read, strict=True)}
        if cursor is None:
            return found


async def _all_of(sessions: SessionVerbs, listed: Session) -> tuple[Any, ...]:
    whole = await sessions.view(listed.session_id, EventSelection())
    app, user = whole.record.app, whole.record.user
    state = await asyncio.gather(sessions.app_state(app), sessions.user_state(app, user))
    return (*comparable(listed), *comparable(whole), *state)


async def said(sessions: SessionVerbs, session_id: str, **wanted: Any) -> list[str]:
    """The notes among a session's events."""
    session = await sessions.view(session_id, EventSelection(**wanted))
    return [decode(one.value).data.note for one in session.events]


async def noted(sessions: SessionVerbs, app: str, count: int) -> Session:
    """A session with so many notes, a second apart from noon on."""
    session = await sessions.create(app=app)
    for number in range(count):
        note = PlannerNote(note=f"{number}")
        await sessions.append(session.session_id, note, timestamp=NOON + timedelta(seconds=number))
    return session
