"""What tests of the services share: each module has runs of its own, and its services are started
once.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import pytest
from tests.ingesting import is_ready, ready_ingest
from tests.processes import until
from tests.querying import Projected, projected, query, served
from tests.session_verbs import WAYS, Projector, opened

from runfold import Runfold
from runfold.api.app import build_app
from runfold.client.session import SessionVerbs
from runfold.settings import Settings

if TYPE_CHECKING:
    from tests.agents_sdk import SessionOpening

    from runfold.openai_agents import RunfoldSession


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str) -> Settings:
    """Those of the module's services: runs that no other module has, and patience for a projector
    on a busy machine.
    """
    name = f"t{uuid4().hex[:8]}"
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, wait_timeout_seconds=20)


@pytest.fixture(scope="module")
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    """The client of who has no service in between."""
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


@pytest.fixture(scope="module")
async def ingest(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the ingest service."""
    async with ready_ingest(kafka=settings.kafka, prefix=settings.prefix) as client:
        yield client


@pytest.fixture(scope="module")
async def elsewhere(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of another ingest service, which knows nothing of what `ingest` has answered."""
    async with ready_ingest(kafka=settings.kafka, prefix=settings.prefix) as client:
        yield client


@pytest.fixture(scope="module")
async def stored(settings: Settings) -> AsyncIterator[Projected]:
    """A projector at work, and what it writes."""
    async with projected(settings) as stored:
        yield stored


@pytest.fixture(scope="module")
async def projector(settings: Settings) -> AsyncIterator[Projector]:
    """A projector at work that can be stopped and begin anew."""
    projector = Projector(settings)
    await projector.start()
    yield projector
    await projector.stop()


@pytest.fixture(scope="module")
async def client(settings: Settings, stored: Projected) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the query service."""
    async with query(settings) as client:
        yield client


@pytest.fixture(scope="module")
async def url(settings: Settings, stored: Projected) -> AsyncIterator[str]:
    """Of an API in this process, with a projector at work behind it."""
    async with served(build_app(settings)) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield str(client.base_url)


@pytest.fixture(scope="module")
async def api(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that API."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
def app() -> str:
    """An app that no other test has."""
    return f"app-{uuid4().hex[:8]}"


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """A way of sessions: over the log alone, with MongoDB, or over HTTP."""
    return request.param


@pytest.fixture(scope="module")
async def sessions(way: str, settings: Settings, projector: Projector) -> AsyncIterator[SessionVerbs]:
    async with opened(way, settings) as sessions:
        yield sessions


@pytest.fixture(scope="module")
async def others(way: str, settings: Settings, projector: Projector) -> AsyncIterator[SessionVerbs]:
    """The sessions of another process."""
    async with opened(way, settings) as sessions:
        yield sessions


@pytest.fixture(params=["direct", "over_http"])
def access(request: pytest.FixtureRequest, settings: Settings, url: str) -> dict[str, Any]:
    """How a session of the OpenAI Agents SDK reaches Runfold: by the servers, or the API's URL."""
    if request.param == "over_http":
        return {"url": url}
    return {name: getattr(settings, name) for name in settings.model_fields_set}


@pytest.fixture
async def open_session(access: dict[str, Any]) -> AsyncIterator["SessionOpening"]:
    from runfold.openai_agents import RunfoldSession  # noqa: PLC0415 - the SDK takes seconds to load

    sessions: list[RunfoldSession] = []

    def open_session(session_id: str, **options: Any) -> RunfoldSession:
        sessions.append(RunfoldSession(session_id, **access, **options))
        return sessions[-1]

    yield open_session
    for session in sessions:
        await session.close()


@pytest.fixture
def session_id() -> str:
    """A session that no other test has."""
    return f"talk/{uuid4().hex[:8]}"


@pytest.fixture
def session(open_session: "SessionOpening", session_id: str) -> "RunfoldSession":
    return open_session(session_id)
