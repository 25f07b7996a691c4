"""The ingest service for tests: the application in this process, its connection to Kafka a real
one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests.processes import until

from runfold.ingest.app import build_app
from runfold.settings import Settings


@asynccontextmanager
async def ingest(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that has just started; `is_ready` says when it is connected."""
    app = build_app(Settings(**settings))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://ingest") as client,
    ):
        yield client


@asynccontextmanager
async def ready_ingest(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with ingest(**settings) as client:
        await until(lambda: is_ready(client), what="the service's connection to Kafka")
        yield client


async def is_ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/health/ready")).status_code == 200


async def opened(client: httpx.AsyncClient, **options: Any) -> str:
    """The path of a new run."""
    response = await client.post("/v1/runs", json={"agent_id": "a", **options})
    assert response.status_code == 201
    return f"/v1/runs/{response.json()['run_id']}"


def note(text: str = "n", **envelope: Any) -> dict[str, Any]:
    """The smallest event."""
    return {"type": "planner_note", "data": {"note": text}, **envelope}
