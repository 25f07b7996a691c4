"""Ingest and query in one process, behind one base URL."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import FastAPI

from runfold.api.generation import build_generation_router
from runfold.api.memories import build_memory_router
from runfold.api.sessions import build_session_router
from runfold.client.memories import Memories
from runfold.client.runfold import Runfold
from runfold.client.sessions import Sessions
from runfold.generation.model import MemoryModel
from runfold.generation.service import Generation
from runfold.http.app import new_app, serve
from runfold.ingest.app import build_router
from runfold.ingest.connection import Connection
from runfold.query.app import router
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold.vertex import build_vertex_app, mount
from runfold.vertex.engines import BankEngines, engine_routes
from runfold.vertex.generation import generation_routes
from runfold.vertex.memories import memory_routes
from runfold.vertex.retrieval import retrieval_routes
from runfold.vertex.revisions import revision_routes
from runfold.vertex.sessions import session_routes


async def run(settings: Settings) -> None:
    """Serves until the process receives SIGTERM or Ctrl-C."""
    await serve(build_app(settings), host=settings.host, port=settings.port)


def build_app(settings: Settings, *, model: MemoryModel | None = None) -> FastAPI:
    """The application, which is connected for the length of its lifespan. `model` replaces the
    language model that the settings name.
    """
    connection, reading = Connection(settings.log("runfold/ingest")), Reading(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with connection, reading, generation:
            yield

    async def check_ready() -> None:
        await connection.check()
        await reading.check_ready()

    app = new_app(
        "Runfold",
        ready=check_ready,
        lifespan=lifespan,
        description="Publish runs and read them; sessions with their state; memories.",
    )
    app.include_router(build_router(connection.runfold))
    sessions = _verbs_of(connection, lambda runfold: Sessions(runfold.connection, reading.stored_sessions))
    app.include_router(build_session_router(sessions))
    memories = _verbs_of(
        connection,
        lambda runfold: Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity),
    )
    generation = Generation(
        settings, runfold=connection.runfold, memories=memories, sessions=sessions, model=model
    )
    app.include_router(build_memory_router(memories))
    app.include_router(build_generation_router(generation))
    app.include_router(router(reading))
    mount(
        app,
        build_vertex_app(
            engine_routes(memories, sessions),
            session_routes(sessions, BankEngines(memories)),
            memory_routes(memories),
            revision_routes(memories),
            retrieval_routes(memories),
            generation_routes(generation),
        ),
    )
    return app


VerbsT = TypeVar("VerbsT")


def _verbs_of(connection: Connection, make: Callable[[Runfold], VerbsT]) -> Callable[[], VerbsT]:
    """A function that returns one client object for each connection, because the object remembers
    the runs that it opened. The function raises as `Connection.runfold` does.
    """
    made: list[tuple[Runfold, VerbsT]] = []

    def verbs() -> VerbsT:
        runfold = connection.runfold()
        if not made or made[0][0] is not runfold:
            made[:] = [(runfold, make(runfold))]
        return made[0][1]

    return verbs
