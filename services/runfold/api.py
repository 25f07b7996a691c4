"""Ingest and query in one process, behind one base URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from runfold.ingest.app import build_router
from runfold.ingest.connection import Connection
from runfold.query.app import router
from runfold.query.reading import Reading
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
        description="Publish runs and read them: events in, ledgers out.",
    )
    app.include_router(build_router(connection.runfold))
    app.include_router(router(reading))
    return app
