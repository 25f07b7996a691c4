"""Google's own clients of Agent Engine against a server of ours, each of whose calls can be
awaited.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import agentplatform
import httpx
import vertexai
from google.oauth2.credentials import Credentials
from tests.querying import served

from runfold import Runfold
from runfold.api.sessions import build_session_router
from runfold.client.sessions import Sessions
from runfold.http.app import new_app
from runfold.query.app import router
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold.vertex import build_vertex_app, mount
from runfold.vertex.sessions import session_routes
from runfold_schemas.errors import BankNotFoundError

ENGINE = "1234567890"
UNKNOWN_ENGINE = "404"
PROJECT = "projects/p/locations/l"

TOKEN = {"project": "p", "location": "l", "credentials": Credentials(token="t")}
WITH_KEY = {"project": "p", "location": "l", "api_key": "k"}
KEY_ONLY = {"api_key": "k"}


class Engines:
    """All there can be, but for one."""

    async def check(self, engine_id: str) -> None:
        if engine_id == UNKNOWN_ENGINE:
            raise BankNotFoundError(engine_id)


@asynccontextmanager
async def vertex(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that has Agent Engine's sessions beside our own API."""
    async with Runfold.of(settings.log()) as runfold, Reading(settings) as reading:
        sessions = Sessions(runfold.connection, reading.stored_sessions)
        app = new_app("Agent Engine", ready=reading.check_ready)
        app.include_router(build_session_router(lambda: sessions))
        app.include_router(router(lambda: reading))
        mount(app, build_vertex_app(session_routes(lambda: sessions, Engines())))
        async with served(app) as client:
            yield client


@dataclass
class Caller:
    """One of the clients. `engine` is how it names the engine."""

    client: Any
    """Held as long as it is used: one that nobody holds closes its connections."""
    sessions: Any
    engine: str = f"reasoningEngines/{ENGINE}"

    async def create(self, user: str = "ann", *, engine: str | None = None, **config: Any) -> Any:
        """The session as the operation has it."""
        asked = {"name": engine or self.engine, "user_id": user, "config": config}
        return (await called(self.sessions.create, **asked)).response

    async def get(self, name: str) -> Any:
        return await called(self.sessions.get, name=name)

    async def update(self, name: str, **config: Any) -> Any:
        update = getattr(self.sessions, "update", None) or self.sessions._update
        return await called(update, name=name, config=config)

    async def delete(self, name: str) -> Any:
        return await called(self.sessions.delete, name=name)

    async def list(self, *, engine: str | None = None, **config: Any) -> Sequence[Any]:
        return await called_for_all(self.sessions.list, name=engine or self.engine, config=config)

    async def append(self, name: str, timestamp: Any, *, author: str = "ann", **config: Any) -> Any:
        asked = {"name": name, "author": author, "invocation_id": "i-1", "timestamp": timestamp}
        return await called(self.sessions.events.append, **asked, config=config)

    async def events(self, name: str, **config: Any) -> Sequence[Any]:
        return await called_for_all(self.sessions.events.list, name=name, config=config)


WAYS = [" ".join(way) for way in product(("vertexai", "agentplatform"), ("v1beta1", "v1"), ("sync", "async"))]


def caller(url: str, way: str = "agentplatform v1beta1 async", given: dict[str, Any] = TOKEN) -> Caller:
    """A caller by one of `WAYS`."""
    client = client_of(url, way, given)
    sessions = client.agent_engines.sessions if way.startswith("vertexai") else client.sessions
    return Caller(client, sessions)


def client_of(url: str, way: str, given: dict[str, Any] = TOKEN) -> Any:
    """The client itself."""
    package, version, kind = way.split()
    options = {"base_url": url, "api_version": version}
    made = (vertexai if package == "vertexai" else agentplatform).Client(**given, http_options=options)
    return made.aio if kind == "async" else made


async def called(method: Any, **arguments: Any) -> Any:
    """Whichever half of a client the method is of."""
    if inspect.iscoroutinefunction(method):
        return await method(**arguments)
    return await asyncio.to_thread(method, **arguments)


async def called_for_all(method: Any, **arguments: Any) -> list[Any]:
    """All pages of it."""
    if inspect.iscoroutinefunction(method):
        return [each async for each in await method(**arguments)]
    return await asyncio.to_thread(lambda: list(method(**arguments)))
