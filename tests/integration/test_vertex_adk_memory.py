"""ADK's own service for Memory Bank works on ours, as its documentation has it."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import agentplatform
import pytest
import vertexai
from google.adk.events import Event
from google.adk.memory import VertexAiMemoryBankService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions import InMemorySessionService
from google.genai import types
from tests.ingesting import is_ready
from tests.memory_verbs import check_memories_rebuild
from tests.processes import until
from tests.querying import Projected, served
from tests.remembering import ScriptedModel
from tests.vertex_clients import TOKEN
from tests.vertex_memories import new_engine, refusal, rememberer

from runfold.api.app import build_app
from runfold.generation.model import Action, Found
from runfold.settings import Settings

APP = "app"
MODEL = ScriptedModel(
    found=[Found(fact="Prefers window seats", topics=["USER_PREFERENCES"])],
    actions=[Action(kind="create", facts=[0], memory=None, text="Prefers window seats")],
)


@pytest.fixture(scope="module")
async def url(settings: Settings, stored: Projected) -> AsyncIterator[str]:
    async with served(build_app(settings, model=MODEL)) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield str(client.base_url).rstrip("/")


@pytest.fixture(scope="module")
async def engine(url: str) -> str:
    return await new_engine(url)


class Service(VertexAiMemoryBankService):
    """ADK's service at another address, with one client or the other."""

    def __init__(self, url: str, engine: str, package: Any) -> None:
        super().__init__(project="p", location="l", agent_engine_id=engine.rpartition("/")[2])
        self._url, self._package = url, package

    def _build_api_client(self) -> Any:
        return self._package.Client(**TOKEN, http_options={"base_url": self._url}).aio


@pytest.fixture(params=[agentplatform, vertexai], ids=["agentplatform", "vertexai"])
def service(url: str, engine: str, request: pytest.FixtureRequest) -> Service:
    return Service(url, engine, request.param)


@pytest.fixture
def user() -> str:
    return uuid4().hex


def said(text: str, **fields: Any) -> Any:
    return types.Content(role="user", parts=[types.Part(text=text)], **fields)


def entry(text: str, **fields: Any) -> MemoryEntry:
    return MemoryEntry(content=said(text), **fields)


def event(text: str) -> Event:
    return Event(author="user", invocation_id="i-1", content=said(text))


async def texts(service: Service, user: str, query: str = "seats") -> list[str]:
    answer = await service.search_memory(app_name=APP, user_id=user, query=query)
    return [one.content.parts[0].text for one in answer.memories]


async def remembered(service: Service, user: str) -> list[str]:
    """What ADK lets be remembered without waiting for it."""

    async def is_there() -> bool:
        return bool(await texts(service, user))

    await until(is_there, what="a memory")
    return await texts(service, user)


async def test_a_memory_that_is_added_is_found(url: str, engine: str, service: Service, user: str):
    memory_id = f"m{user}"
    given = entry(
        "Prefers window seats",
        id=memory_id,
        author="ann",
        timestamp="2030-01-02T03:04:05Z",
        custom_metadata={"n": 1.5, "flag": False, "text": "x"},
    )

    await service.add_memory(
        app_name=APP, user_id=user, memories=[given, entry("Likes tea")], custom_metadata={"ttl": "3600s"}
    )
    answer = await service.search_memory(app_name=APP, user_id=user, query="Where to sit?")

    first, second = answer.memories
    assert first.content.parts[0].text == "Prefers window seats"
    assert second.content.parts[0].text == "Likes tea"
    assert {"n": 1.5, "flag": False, "text": "x"}.items() <= first.custom_metadata.items()
    assert first.timestamp
    google = rememberer(url, engine)
    made = await google.get(f"{engine}/memories/{memory_id}")
    assert made.scope == {"app_name": APP, "user_id": user}
    assert abs(made.expire_time - made.create_time - timedelta(hours=1)) < timedelta(seconds=30)
    [revision] = await google.revisions(made.name)
    assert revision.fact == "Prefers window seats"
    assert await texts(service, user + "x") == []
    with pytest.raises(Exception, match="exists already"):
        await service.add_memory(app_name=APP, user_id=user, memories=[given])


async def test_memories_that_are_consolidated_come_in_batches(service: Service, user: str):
    entries = [entry(f"Has been to city {number}") for number in range(7)]

    await service.add_memory(
        app_name=APP,
        user_id=user,
        memories=entries,
        custom_metadata={"enable_consolidation": True, "disable_consolidation": True},
    )

    assert len(await texts(service, user)) == 3


async def test_a_session_that_is_added_is_remembered(service: Service, user: str):
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name=APP, user_id=user)
    for text in ("Hello", "I prefer window seats."):
        await sessions.append_event(session, event(text))

    await service.add_session_to_memory(session)

    assert await remembered(service, user) == ["Prefers window seats"]


async def test_events_that_are_added_twice_count_once(service: Service, user: str):
    MODEL.read.clear()
    metadata = {"stream_id": "s", "generation_trigger_config": {"generation_rule": {"event_count": 2}}}
    first, second = event("I prefer window seats."), event("Goodbye")

    for events in ([first], [first], [second]):
        await service.add_events_to_memory(
            app_name=APP, user_id=user, events=events, custom_metadata=metadata
        )

    assert await remembered(service, user) == ["Prefers window seats"]
    assert sum(said.count("I prefer window seats.") for said, _ in MODEL.read) == 1


async def test_events_are_generated_from_at_once_where_options_want_it(
    url: str, engine: str, service: Service, user: str
):
    await service.add_events_to_memory(
        app_name=APP,
        user_id=user,
        events=[event("I prefer window seats.")],
        custom_metadata={
            "wait_for_completion": True,
            "ttl": "7200s",
            "metadata": {"source": "chat"},
            "revision_labels": {"some_key": "v"},
        },
    )

    [found] = await rememberer(url, engine).retrieve({"app_name": APP, "user_id": user})
    [revision] = await rememberer(url, engine).revisions(found.memory.name)
    assert found.memory.metadata["source"].string_value == "chat"
    assert revision.labels == {"some_key": "v"}
    assert abs(revision.expire_time - revision.create_time - timedelta(hours=2)) < timedelta(seconds=30)


async def test_there_are_no_profiles(service: Service, user: str):
    assert not await service.retrieve_profiles(app_name=APP, user_id=user)


async def test_an_engine_that_is_not_there_is_told(url: str):
    service = Service(url, "404", agentplatform)

    searching = service.search_memory(app_name=APP, user_id="ann", query="x")

    assert await refusal(searching) == (404, "NOT_FOUND")


async def test_a_rebuild_reads_the_same(settings: Settings, url: str):
    await check_memories_rebuild(settings)
