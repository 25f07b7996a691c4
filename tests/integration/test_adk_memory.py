"""ADK's memory service of ours in both of its modes: what was said in a session is known in the
next one.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools.load_memory_tool import load_memory_tool
from google.adk.tools.preload_memory_tool import preload_memory_tool
from google.genai import types
from pydantic import PrivateAttr
from tests.adk_services import said
from tests.ingesting import is_ready
from tests.memory_verbs import check_memories_rebuild, opened_memories
from tests.processes import until
from tests.querying import Projected, served
from tests.scripted_completions import Endpoint

from runfold.adk import RunfoldMemoryService
from runfold.api.app import build_app
from runfold.generation.triggers import TriggerRule
from runfold.settings import Settings
from runfold_schemas.errors import NoModelError, UnavailableError

USER = {"app_name": "shop", "user_id": "ann"}
SEATS = {"facts": [{"fact": "Prefers window seats", "topics": ["USER_PREFERENCES"]}], "actions": []}
MODES = ("direct", "over_http")


@pytest.fixture(autouse=True, scope="module")
def _without_keys() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[tuple[Endpoint, str]]:
    """A model that always finds one fact and consolidates none, and where it is."""
    endpoint = Endpoint(SEATS)
    async with served(endpoint.app) as client:
        yield endpoint, f"{client.base_url}/v1"


@pytest.fixture(scope="module", params=MODES)
async def opening(
    request: pytest.FixtureRequest, settings: Settings, stored: Projected, model: tuple[Endpoint, str]
) -> AsyncIterator[dict[str, Any]]:
    """What a service with a model is made of."""
    with_model = settings.model_copy(
        update={"generation_model": "openai:scripted", "generation_url": model[1]}
    )
    async with arguments(request.param, with_model) as made_of:
        yield made_of


@asynccontextmanager
async def arguments(mode: str, settings: Settings) -> AsyncIterator[dict[str, Any]]:
    if mode == "direct":
        yield {name: value for name, value in settings if value != Settings.model_fields[name].default}
    else:
        async with served(build_app(settings)) as client:
            await until(lambda: is_ready(client), what="the API's connection to Kafka")
            yield {"url": str(client.base_url)}


@pytest.fixture
def bank() -> str:
    """A bank that no other test has."""
    return f"b-{uuid4().hex[:8]}"


@pytest.fixture
async def service(opening: dict[str, Any], bank: str) -> AsyncIterator[RunfoldMemoryService]:
    async with RunfoldMemoryService(**opening, bank=bank) as service:
        yield service


def asked(text: str = "I prefer window seats.", **fields: Any) -> Event:
    return said(author="user", content=content(text), **fields)


def content(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def entry(text: str = "Likes tea", **fields: Any) -> MemoryEntry:
    return MemoryEntry(content=content(text), **fields)


async def found(service: RunfoldMemoryService, query: str = "seats", **user: str) -> list[str]:
    response = await service.search_memory(**{**USER, **user}, query=query)
    return [text_of(one) for one in response.memories]


def text_of(entry: MemoryEntry) -> str:
    return "".join(part.text for part in entry.content.parts)


class ScriptedLlm(BaseLlm):
    """Has a tool called first if it is given one, then says what it was shown of memories."""

    calls: dict[str, Any] | None = None
    _requests: list[LlmRequest] = PrivateAttr(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        self._requests.append(llm_request)
        part = types.Part(text="Noted.")
        if self.calls is not None and len(self._requests) == 1:
            part = types.Part.from_function_call(name="load_memory", args=self.calls)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))

    @property
    def shown(self) -> str:
        """All that it was shown last."""
        return self._requests[-1].model_dump_json()


async def converse(
    service: RunfoldMemoryService, llm: ScriptedLlm, text: str, tools: Sequence[Any]
) -> Session:
    """A session with one turn."""
    sessions = InMemorySessionService()
    agent = LlmAgent(name="agent", model=llm, tools=list(tools))
    runner = Runner(app_name="shop", agent=agent, session_service=sessions, memory_service=service)
    session = await sessions.create_session(**USER)
    async for _ in runner.run_async(user_id="ann", session_id=session.id, new_message=content(text)):
        pass
    found = await sessions.get_session(**USER, session_id=session.id)
    assert found is not None
    return found


async def test_what_was_said_in_one_session_is_known_in_the_next(service):
    first = await converse(service, ScriptedLlm(model="m"), "I prefer window seats.", [])
    await service.add_session_to_memory(first)
    preloading, loading = ScriptedLlm(model="m"), ScriptedLlm(model="m", calls={"query": "seats"})

    await converse(service, preloading, "Book me a flight", [preload_memory_tool])
    await converse(service, loading, "Book me a flight", [load_memory_tool])

    assert "Prefers window seats" in preloading.shown
    assert "Prefers window seats" in loading.shown


async def test_a_session_that_is_added_again_is_read_from_where_it_was(service, model):
    endpoint, _ = model
    session = Session(id="s", **USER, events=[asked("I prefer window seats.")])
    await service.add_session_to_memory(session)
    count = len(endpoint.requests)

    await service.add_session_to_memory(session)
    assert len(endpoint.requests) == count
    session.events.append(asked("And no meals."))
    await service.add_session_to_memory(session)

    read = endpoint.requests[count]["messages"][-1]["content"]
    assert read == '{"role": "user", "text": "And no meals."}'
    assert await found(service) == ["Prefers window seats"]


async def test_secrets_partial_events_and_those_without_content_are_not_read(service, model):
    endpoint, _ = model
    secret = types.Part.from_function_call(name="adk_request_credential", args={"key": "secret"})
    events = [
        said(content=types.Content(role="model", parts=[secret])),
        said(content=content("half"), partial=True),
        said(),
        said(content=types.Content(role="model", parts=[])),
        asked("I sit at the window."),
    ]

    await service.add_events_to_memory(**USER, events=events)

    assert (
        endpoint.requests[-1]["messages"][-1]["content"] == '{"role": "user", "text": "I sit at the window."}'
    )


async def test_events_wait_for_a_rule_and_metadata_goes_with_them(service, model):
    endpoint, _ = model
    count = len(endpoint.requests)
    waiting = {"generation_trigger_config": {"generation_rule": {"idle_duration": "3600s"}}, "trip": "oslo"}

    await service.add_events_to_memory(**USER, events=[asked()], session_id="s", custom_metadata=waiting)
    assert (len(endpoint.requests), await found(service)) == (count, [])
    await service.add_events_to_memory(
        **USER, events=[], session_id="s", custom_metadata={"force_flush": True, "trip": "bergen"}
    )

    [memory] = (await service.search_memory(**USER, query="seats")).memories
    assert memory.custom_metadata == {"trip": "bergen"}


async def test_a_service_can_have_a_rule_of_its_own(opening, bank):
    async with RunfoldMemoryService(**opening, bank=bank, rule=TriggerRule(event_count=2)) as service:
        await service.add_events_to_memory(**USER, events=[asked("one")])
        assert await found(service) == []
        await service.add_events_to_memory(**USER, events=[asked("two")])

        await until(lambda: found(service), what="memories of two events")


async def test_an_entry_is_a_memory_with_what_is_said_of_it(service, settings, bank):
    about = {"topics": ["USER_PREFERENCES", "drinks"], "ttl": "86400s", "revision_labels": {"a": "b"}}
    since = datetime(2026, 1, 1, tzinfo=UTC)
    given = entry(
        id="tea", author="ann", timestamp=since.isoformat(), custom_metadata={"sure": True, "since": since}
    )

    await service.add_memory(**USER, memories=[given], custom_metadata=about)

    [memory] = (await service.search_memory(**USER, query="tea")).memories
    assert (memory.id, memory.author, text_of(memory)) == ("tea", "user", "Likes tea")
    assert memory.custom_metadata == {"sure": True, "since": since}
    async with opened_memories(settings) as memories:
        stored = await memories.get(bank, "tea")
        [revision], _ = await memories.revisions(bank, "tea")
    assert memory.timestamp == stored.updated_at.isoformat()
    assert [topic.managed or topic.custom for topic in stored.memory.topics] == ["USER_PREFERENCES", "drinks"]
    assert stored.memory.expires_at - stored.created_at < timedelta(days=1, seconds=1)
    assert revision.labels == {"a": "b", "author": "ann", "timestamp": since.isoformat()}
    with pytest.raises(AlreadyExistsError):
        await service.add_memory(**USER, memories=[given])


async def test_entries_are_consolidated_where_that_is_asked(service):
    about = ("a dog", "two sisters", "green eyes", "a red car", "no job")
    lent = ("Anna lent Tom 50 euros", "Tom lent Anna 50 euros")
    texts = sorted([*(f"Has {what}" for what in about), *lent])
    once = {"enable_consolidation": True}

    for _ in range(2):
        await service.add_memory(**USER, memories=[entry(text) for text in texts], custom_metadata=once)

    assert sorted(await found(service, "what she has")) == texts


@pytest.mark.parametrize(
    ("memories", "custom_metadata", "told"),
    [
        ([], None, "memories"),
        ([entry(" ")], None, r"memories\[0\]"),
        ([entry(), MemoryEntry(content=types.Content(parts=[]))], None, r"memories\[1\]"),
        ([entry()], {"ttl": "soon"}, "ttl"),
        ([entry()], {"enable_consolidation": "yes"}, "enable_consolidation"),
        ([entry("x" * 20_001)], None, "fact"),
    ],
)
async def test_what_cannot_be_a_memory_is_told(service, memories, custom_metadata, told):
    with pytest.raises(InputValidationError, match=told):
        await service.add_memory(**USER, memories=memories, custom_metadata=custom_metadata)

    assert await found(service) == []


async def test_a_search_finds_what_is_near_in_the_users_scope_alone(opening, bank):
    async with RunfoldMemoryService(**opening, bank=bank, found_max=1) as service:
        assert await found(service) == []
        for user, text in (
            ("ann", "Has a dog"),
            ("ann", "Prefers aisle seats"),
            ("ben", "Prefers window seats"),
        ):
            await service.add_memory(app_name="shop", user_id=user, memories=[entry(text)])

        assert await found(service, "where does she sit in a plane?") == ["Prefers aisle seats"]
        assert await found(service, "where does she sit in a plane? " * 1_000) == ["Prefers aisle seats"]
        assert len(await found(service, "")) == 1
        assert await found(service, "seats", app_name="other") == []


async def test_a_memory_is_deleted_by_whom_it_belongs_to(service):
    await service.delete_memory(**USER, memory_id="m")
    await service.add_memory(**USER, memories=[entry(id="m")])

    await service.delete_memory(app_name="shop", user_id="ben", memory_id="m")
    await service.delete_memory(**USER)
    assert await found(service) == ["Likes tea"]
    await service.delete_memory(**USER, memory_id="m")
    await service.delete_memory(**USER, memory_id="m")

    assert await found(service) == []


@pytest.mark.parametrize("mode", MODES)
async def test_without_a_model_memories_are_added_and_sessions_say_what_is_missing(
    settings, stored, bank, mode
):
    async with arguments(mode, settings) as made_of, RunfoldMemoryService(**made_of, bank=bank) as service:
        with pytest.raises(NoModelError, match="RUNFOLD_GENERATION_MODEL"):
            await service.add_session_to_memory(Session(id="s", **USER, events=[asked()]))
        await service.add_memory(**USER, memories=[entry()], custom_metadata={"enable_consolidation": True})

        assert await found(service, "tea") == ["Likes tea"]


async def test_it_can_be_used_again_after_it_was_closed(service):
    await service.add_memory(**USER, memories=[entry()])

    await service.close()

    assert await found(service) == ["Likes tea"]


async def test_an_api_that_is_away_is_unavailable():
    async with RunfoldMemoryService("http://127.0.0.1:9") as service:
        with pytest.raises(UnavailableError):
            await found(service)


def test_a_url_and_settings_exclude_each_other():
    with pytest.raises(ValueError, match="either"):
        RunfoldMemoryService("http://127.0.0.1:8080", kafka="127.0.0.1:9092")


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(stored, settings):
    await check_memories_rebuild(settings)
