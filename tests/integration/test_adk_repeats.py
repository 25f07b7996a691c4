"""Appends of ADK whose answer was lost: the same call again counts once, and is told if others came
meanwhile. With encryption and without.
"""

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from tests import adk_services
from tests.adk_services import THEIRS, USER, change, said, stored
from tests.querying import Projected
from tests.sealed_services import sealed_settings
from tests.session_verbs import check_rebuild

from runfold import UnavailableError
from runfold.adk import RunfoldSessionService
from runfold.client.session import SessionVerbs
from runfold.settings import Settings

pytestmark = [
    pytest.mark.skipif(THEIRS is not None, reason="only our service loses answers here"),
    pytest.mark.usefixtures("settings"),  # which `opening` requests too late for its parameters
]

app, opening, service = adk_services.app, adk_services.opening, adk_services.service

EVENT = change({"k": 1, "temp:t": 1, "app:a": 1})


@pytest.fixture(scope="module", params=["clear", "sealed"])
def settings(
    request: pytest.FixtureRequest, kafka: str, mongo: str, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Those of a tenant with encryption, whose ids of events are keyed, and of one without."""
    settings = sealed_settings(kafka, mongo, tmp_path_factory.mktemp("keys"))
    return settings if request.param == "sealed" else settings.model_copy(update={"encryption_key": None})


@pytest.fixture
async def losing(service: BaseSessionService, app: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose next append is done and not answered."""
    session = await service.create_session(app_name=app, user_id=USER)
    assert isinstance(service, RunfoldSessionService)
    sessions = await service._connection.run(itself)
    append = sessions.append

    async def unanswered(*said: object, **more: object) -> None:
        monkeypatch.setattr(sessions, "append", append)
        await append(*said, **more)
        raise UnavailableError("Kafka", reason="the answer was lost")

    monkeypatch.setattr(sessions, "append", unanswered)
    return session


async def itself(sessions: SessionVerbs) -> SessionVerbs:
    return sessions


async def test_an_append_is_repeated_and_the_session_goes_on(service: BaseSessionService, losing: Session):
    event = EVENT.model_copy(deep=True)
    with pytest.raises(UnavailableError):
        await service.append_event(losing, event)
    assert (losing.events, losing.state) == ([], {})

    assert await service.append_event(losing, event) is event

    assert losing.state == {"k": 1, "temp:t": 1, "app:a": 1}
    del losing.state["temp:t"]
    assert losing == await stored(service, losing)
    await service.append_event(losing, said())
    assert losing == await stored(service, losing)


async def test_a_session_that_went_through_json_is_no_worse(service: BaseSessionService, losing: Session):
    session = Session.model_validate_json(losing.model_dump_json())
    with pytest.raises(UnavailableError):
        await service.append_event(session, event := said())

    await service.append_event(session, event)

    assert session == await stored(service, session)


async def test_a_repeat_that_others_came_after_is_stale(service: BaseSessionService, losing: Session):
    with pytest.raises(UnavailableError):
        await service.append_event(losing, event := EVENT.model_copy(deep=True))
    await service.append_event(await stored(service, losing), said())

    with pytest.raises(StaleSessionError):
        await service.append_event(losing, event)

    assert (losing.events, losing.state, event.actions.state_delta) == ([], {}, EVENT.actions.state_delta)


async def test_an_event_that_came_from_who_had_seen_more_is_stale(service: BaseSessionService, app: str):
    behind = await service.create_session(app_name=app, user_id=USER)
    ahead, event = await stored(service, behind), said()
    await service.append_event(ahead, said())
    await service.append_event(ahead, event.model_copy(deep=True))

    with pytest.raises(StaleSessionError):
        await service.append_event(behind, event)

    assert behind.events == []


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
