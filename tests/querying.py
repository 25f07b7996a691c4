"""The query service for tests: a real server in this process, and a worker that projects what is
published.
"""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from tests.ingesting import is_ready
from tests.processes import DEADLINE_SECONDS, patient, until

from runfold import Run, Runfold
from runfold.api.app import build_app as build_api
from runfold.http.app import new_app
from runfold.projector.connection import connect_worker
from runfold.query.app import build_app, router
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.pages import PageStore
from runfold.store.runs import RunStore
from runfold_schemas.data import Data
from runfold_schemas.errors import UnavailableError

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.005


@dataclass
class Projected:
    """A worker at work, and what it writes."""

    runfold: Runfold
    stores: Edition
    editions: Editions
    database: Any

    @property
    def pages(self) -> PageStore:
        return self.stores.pages

    @property
    def runs(self) -> RunStore:
        return self.stores.runs

    async def run(
        self, *data: Data, run_id: str | None = None, turn_id: str | None = None, **options: Any
    ) -> Run:
        """A new run with these events, all of it in its pages and its saved state, so that lists
        have it.
        """
        run = await self.runfold.open_run(
            agent_id=options.pop("agent_id", "agent-1"), run_id=run_id, **options
        )
        offset = await self.publish(run, *data, turn_id=turn_id)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while (state := await self.runs.get(run.run_id)) is None or state.record.next_offset <= offset:
                await asyncio.sleep(POLL_SECONDS)
        return run

    async def publish(self, run: Run, *data: Data, turn_id: str | None = None) -> int:
        """The offset of the last of them, once it is in the pages."""
        offset = 0
        if data:
            events = [run.event(one, turn_id=turn_id) for one in data]
            offset = (await run.publish_batch(events))[-1].offset
        await self.holds(run, offset)
        return offset

    async def holds(self, run: Run, offset: int) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await self.pages.end(run.life.log_id) <= offset:
                await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def projected(settings: Settings) -> AsyncIterator[Projected]:
    """A worker of the current edition. As in the service, it is started again after an error of a
    server: on a busy machine it may stand still until the group excludes it.
    """
    async with connect(settings.mongo, settings.database) as database:
        editions = Editions(database)
        edition = await editions.current_or_first()
        connected = asyncio.Event()

        async def work() -> None:
            while True:
                try:
                    async with connect_worker(patient(settings), database, edition) as worker:
                        connected.set()
                        await worker.work()
                except* UnavailableError:
                    if not connected.is_set():
                        raise
                    _log.exception("the worker begins again")

        working = asyncio.create_task(work())
        try:
            while not connected.is_set() and not working.done():
                await asyncio.sleep(POLL_SECONDS)
            if working.done():
                working.result()
            async with Runfold(settings.kafka, prefix=settings.prefix) as runfold:
                yield Projected(runfold, Edition.of(database, edition), editions, database)
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working


@asynccontextmanager
async def query(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a query service that has just started."""
    async with served(build_app(settings)) as client:
        yield client


@asynccontextmanager
async def query_and_reading(settings: Settings) -> AsyncIterator[tuple[httpx.AsyncClient, Reading]]:
    """As `query`, with what its routes read with."""
    async with Reading(settings) as reading:
        app = new_app("query", ready=reading.check_ready)
        app.include_router(router(lambda: reading))
        async with served(app) as client:
            yield client, reading


@asynccontextmanager
async def ready_api(settings: Settings, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API that has reached Kafka; `options` are those of `build_app`."""
    async with served(build_api(settings, **options)) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


def listening_socket() -> socket.socket:
    """For a service that has to know its port before it begins."""
    # Named as TCP, or asyncio leaves its answers to Nagle's algorithm: 40 ms each.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    return listening


@asynccontextmanager
async def served(app: FastAPI, listening: socket.socket | None = None) -> AsyncIterator[httpx.AsyncClient]:
    # Connections stay open, or a busy test may use one at the moment in which it is closed.
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, timeout_keep_alive=600)
    server = uvicorn.Server(config)
    with listening or listening_socket() as used:
        serving = asyncio.create_task(server.serve(sockets=[used]))
        while not server.started and not serving.done():
            await asyncio.sleep(POLL_SECONDS)
        url = f"http://127.0.0.1:{used.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client
        server.should_exit = True
        await serving


@dataclass
class Sent:
    """A server-sent event."""

    name: str
    id: int | None
    data: Any


async def sent_events(response: httpx.Response) -> AsyncIterator[Sent]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = fields[name] + "\n" + value if name in fields else value
        elif "data" in fields:
            offset = int(fields["id"]) if "id" in fields else None
            yield Sent(fields["event"], offset, json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}
