"""Ingest and query in one process, behind one base URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from runfold.client import Runfold
from runfold.ingest.app import build_router
from runfold.ingest.connection import Connection
from runfold.query.app import router
from runfold.query.reading import Reading
from runfold.session_routes import build_session_router
from runfold.sessions import Sessions
from runfold.settings import Settings
from runfold.web import new_app, serve


async def run(settings: Settings) -> None:
    """Serves until the process is told to stop."""
    await serve(build_app(settings), host=settings.host, port=settings.port)


def build_app(settings: Settings) -> FastAPI:
    """The application, connected for the length of its lifespan."""
    connection, reading = Connection(settings.log("runfold/ingest")), Reading(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with connection, reading:
            yield

    async def check_ready() -> None:
        await connection.check()
        await reading.check_ready()

    app = new_app(
        "Runfold",
        ready=check_ready,
        lifespan=lifespan,
        description="Publish runs and read them: events in, ledgers out; sessions and their state.",
    )
    app.include_router(build_router(connection.runfold))
    app.include_router(build_session_router(_SessionsOf(connection, reading)))
    app.include_router(router(reading))
    return app


class _SessionsOf:
    """One `Sessions` for each connection, since it remembers what it has opened."""

    def __init__(self, connection: Connection, reading: Reading) -> None:
        self._connection = connection
        self._reading = reading
        self._made: tuple[Runfold, Sessions] | None = None

    def __call__(self) -> Sessions:
        """Raises as `Connection.runfold`."""
        runfold = self._connection.runfold()
        if self._made is None or self._made[0] is not runfold:
            self._made = (runfold, Sessions(runfold, self._reading.stored_sessions))
        return self._made[1]
