"""ADK's own service for Agent Engine works on ours, as its documentation has it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import agentplatform
import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import Session, VertexAiSessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import errors, types
from tests.querying import Projected
from tests.session_verbs import check_rebuild
from tests.vertex_clients import ENGINE, PROJECT, TOKEN, UNKNOWN_ENGINE, vertex

from runfold.settings import Settings

APP = f"{PROJECT}/reasoningEngines/{ENGINE}"


class Service(VertexAiSessionService):
    """ADK's service at another address, and with a token of its own."""

    def __init__(self, url: str) -> None:
        super().__init__(project="p", location="l")
        self._url = url

    def _build_api_client(self) -> Any:
        return agentplatform.Client(**TOKEN, http_options={"base_url": self._url}).aio


class ExpressService(VertexAiSessionService):
    """The same in express mode: with a key and without a project."""

    def __init__(self, url: str) -> None:
        super().__init__(express_mode_api_key="k")
        self._url = url

    def _api_client_http_options_override(self) -> types.HttpOptions:
        return types.HttpOptions(base_url=self._url)


@pytest.fixture(scope="module")
async def url(settings: Settings, stored: Projected) -> AsyncIterator[str]:
    async with vertex(settings) as client:
        yield str(client.base_url).rstrip("/")


@pytest.fixture(params=[Service, ExpressService])
def service(url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GOOGLE_GENAI_USE_ENTERPRISE", "true")
    return request.param(url)


def event(text: str, *, author: str = "agent", **fields: Any) -> Event:
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="i-1", content=content, **fields)


def to_the_microsecond(event: Event) -> dict[str, Any]:
    """What the protocol carries of an event's time."""
    return {**event.model_dump(), "timestamp": round(event.timestamp, 6)}


async def read(service: Any, session: Session, **limits: Any) -> Session:
    config = GetSessionConfig(**limits) if limits else None
    found = await service.get_session(
        app_name=APP, user_id=session.user_id, session_id=session.id, config=config
    )
    assert found is not None
    return found


async def test_a_conversation_is_read_as_it_was_held(service: Any):
    session = await service.create_session(app_name=APP, user_id="ann", state={"user:lang": "en", "n": 0})
    await service.append_event(session, event("Is it raining?", author="user"))
    await service.append_event(session, event("Ye", partial=True))
    answer = event(
        "Yes.",
        actions=EventActions(
            state_delta={"n": 1, "temp:x": 1, "app:seen": True}, artifact_delta={"a.txt": 2}
        ),
        custom_metadata={"a_b": 1},
        usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=7),
        long_running_tool_ids={"t"},
        branch="a.b",
    )
    await service.append_event(session, answer)

    found = await read(service, session)

    assert found.state == {"user:lang": "en", "n": 1, "app:seen": True}
    assert [each.partial for each in found.events] == [None, True, None]
    whole = [each for each in found.events if not each.partial]
    # The session that was appended to has all but the pieces.
    assert [to_the_microsecond(each) for each in whole] == [
        to_the_microsecond(each) for each in session.events
    ]
    assert found.last_update_time == pytest.approx(answer.timestamp, abs=1e-5)


async def test_events_can_be_limited(service: Any):
    session = await service.create_session(app_name=APP, user_id="ann")
    began = datetime.now(UTC)
    times = [(began + timedelta(seconds=second)).timestamp() for second in range(5)]
    for number, time in enumerate(times):
        await service.append_event(session, event(str(number), timestamp=time))

    async def texts(**limits: Any) -> str:
        return "".join(each.content.parts[0].text for each in (await read(service, session, **limits)).events)

    assert await texts() == "01234"
    assert await texts(after_timestamp=times[2]) == "234"
    assert await texts(num_recent_events=2) == "34"
    assert await texts(num_recent_events=0) == ""
    assert await texts(after_timestamp=times[1], num_recent_events=3) == "234"


async def test_a_long_conversation_takes_several_pages(service: Any):
    session = await service.create_session(app_name=APP, user_id="long")
    for number in range(201):
        await service.append_event(session, event(str(number)))

    found = await read(service, session)

    assert [each.id for each in found.events] == [each.id for each in session.events]


async def test_sessions_are_listed_by_user_and_deleted(service: Any):
    user = f'{type(service).__name__} "quoted"'
    created = [
        await service.create_session(
            app_name=APP, user_id=user, session_id=f"{type(service).__name__}-{number}"
        )
        for number in range(3)
    ]
    await service.append_event(created[0], event("late"))

    listed = (await service.list_sessions(app_name=APP, user_id=user)).sessions
    await service.delete_session(app_name=APP, user_id=user, session_id=created[1].id)
    left = (await service.list_sessions(app_name=APP, user_id=user)).sessions

    assert [each.id for each in listed] == [created[1].id, created[2].id, created[0].id]
    assert [each.id for each in left] == [created[2].id, created[0].id]
    assert await service.get_session(app_name=APP, user_id=user, session_id=created[1].id) is None
    with pytest.raises(ValueError, match="does not belong"):
        await service.get_session(app_name=APP, user_id="eve", session_id=created[0].id)


async def test_a_time_to_live_can_be_given(service: Any):
    given = {"app_name": APP, "user_id": "ann"}

    session = await service.create_session(**given, ttl="172800s")

    assert (await read(service, session)).id == session.id
    with pytest.raises(errors.ClientError, match="24 hours"):
        await service.create_session(**given, ttl="7200s")


async def test_an_engine_has_to_be_there(service: Any):
    with pytest.raises(errors.ClientError) as raised:
        await service.create_session(app_name=UNKNOWN_ENGINE, user_id="ann")

    assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")


async def test_a_rebuild_reads_the_same(url: str, settings: Settings):
    service = Service(url)

    async def everything() -> list[Session]:
        listed = (await service.list_sessions(app_name=APP)).sessions
        return [await read(service, each) for each in listed]

    before = await everything()
    assert len(before) > 5

    await check_rebuild(settings)

    assert await everything() == before
