"""Sessions for tests in each of their ways, with a projector that can be stopped, and what is compared of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.ingesting import is_ready
from tests.processes import until
from tests.querying import Projected, projected, served

from runfold import Runfold
from runfold.api import build_app
from runfold.http_sessions import HttpSessions
from runfold.query.reading import Reading
from runfold.session import EventsWanted, Session, SessionVerbs
from runfold.sessions import Sessions
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.generations import Generations
from runfold.verify import verify
from runfold.verify_sessions import verify_own_state, verify_sessions

WAYS = ("log", "stored", "http")


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
            await Generations(database).drop_all()
        await self.start()

    async def differences(self) -> list[Any]:
        stored, log = self.stored, self._settings.log()
        sessions, values = stored.sessions, stored.values
        differences: list[Any] = []
        async for run_id, found in verify(log, stored.pages, stored.runs, wait_seconds=20):
            differences += found
            differences += await verify_own_state(log, stored.runs, values, run_id)
        return differences + (await verify_sessions(log, sessions, values, wait_seconds=20))[1]


@asynccontextmanager
async def opened(way: str, settings: Settings) -> AsyncIterator[SessionVerbs]:
    """Sessions with connections of their own, as another process has them."""
    match way:
        case "log":
            async with Runfold.of(settings.log()) as runfold:
                yield runfold.sessions
        case "stored":
            async with Runfold.of(settings.log()) as runfold, Reading(settings) as reading:
                yield Sessions(runfold, reading.stored_sessions)
        case _:
            async with served(build_app(settings)) as client:
                await until(lambda: is_ready(client), what="the service's connection to Kafka")
                async with HttpSessions(str(client.base_url)) as sessions:
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
        for one in page:
            whole = await sessions.view(one.session_id, EventsWanted())
            record = whole.record
            shared = (
                await sessions.app_state(record.app),
                await sessions.user_state(record.app, record.user),
            )
            found[one.session_id] = (*comparable(one), *comparable(whole), *shared)
        if cursor is None:
            return found
