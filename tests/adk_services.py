"""Session services for the ADK tests: ours in each of its modes, and what the tests do to any of
them.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from runfold.adk import RunfoldSessionService
from runfold.settings import Settings

THEIRS = os.environ.get("RUNFOLD_TEST_ADK")
MODES = [THEIRS] if THEIRS else ["direct", "over_http"]
USER = "ann"

Opening = AbstractAsyncContextManager[BaseSessionService]


@pytest.fixture
def app() -> str:
    """An app that no other test has."""
    return f"app{uuid4().hex[:8]}"


@pytest.fixture(params=MODES)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    """What opens the service of this mode; it alone asks for the servers that the mode needs."""
    match request.param:
        case "direct":
            request.getfixturevalue("stored")
            return direct(request.getfixturevalue("settings"))
        case "over_http":
            return over_http(request.getfixturevalue("url"))
        case theirs:
            return of_adk(theirs, tmp_path)


@pytest.fixture
async def service(opening: Opening) -> AsyncIterator[BaseSessionService]:
    """The service under test."""
    async with opening as service:
        yield service


@asynccontextmanager
async def direct(settings: Settings) -> AsyncIterator[BaseSessionService]:
    """Our service, speaking to Kafka and MongoDB itself."""
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    async with RunfoldSessionService(**given) as service:
        yield service


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[BaseSessionService]:
    """Our service, speaking to the HTTP services."""
    async with RunfoldSessionService(url) as service:
        yield service


@asynccontextmanager
async def of_adk(name: str, path: Path) -> AsyncIterator[BaseSessionService]:
    """One of ADK's own services: memory, sqlite or database."""
    match name:
        case "memory":
            yield InMemorySessionService()
        case "sqlite":
            yield SqliteSessionService(str(path / "sqlite.db"))
        case _:
            database = DatabaseSessionService(f"sqlite+aiosqlite:///{path}/database.db")
            try:
                yield database
            finally:
                await database.close()


def change(state_delta: dict[str, Any], **fields: Any) -> Event:
    """An event that changes the state."""
    return said(actions=EventActions(state_delta=state_delta), **fields)


def said(**fields: Any) -> Event:
    """An event with what every event of an agent has."""
    return Event(**{"author": "agent", "invocation_id": "invocation", **fields})


async def stored(service: BaseSessionService, session: Session, **config: Any) -> Session:
    """The session as another process reads it."""
    found = await service.get_session(
        app_name=session.app_name,
        user_id=session.user_id,
        session_id=session.id,
        config=GetSessionConfig(**config) if config else None,
    )
    assert found is not None
    return found


def ids(session: Session) -> list[str]:
    return [event.id for event in session.events]
