"""Events of ADK's sessions: no field of them is lost, and none of what is in them is taken for
something else.
"""

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService
from google.genai import types
from tests import adk_services
from tests.adk_events import BYTES, FREE, complete_actions, complete_event, parts
from tests.adk_services import USER, said, stored
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold.settings import Settings

app, opening, service = adk_services.app, adk_services.opening, adk_services.service


def test_the_complete_event_has_every_field():
    assert set(Event.model_fields) == complete_event().model_fields_set
    assert set(EventActions.model_fields) == complete_actions().model_fields_set
    assert set(types.Part.model_fields) == {name for part in parts() for name in part.model_fields_set}


async def test_a_complete_event_comes_back(service: BaseSessionService, app: str):
    assert await through(service, app, complete_event()) == complete_event()


@pytest.mark.parametrize("name", sorted(set(Event.model_fields) - {"id", "timestamp"}))
async def test_each_field_comes_back(service: BaseSessionService, app: str, name: str):
    event = Event(**{name: getattr(complete_event(), name)})

    assert await through(service, app, event.model_copy(deep=True)) == event


@pytest.mark.parametrize("name", sorted(EventActions.model_fields))
async def test_each_action_comes_back(service: BaseSessionService, app: str, name: str):
    event = said(actions=EventActions(**{name: getattr(complete_actions(), name)}))

    assert await through(service, app, event.model_copy(deep=True)) == event


@pytest.mark.parametrize("part", parts(), ids=lambda part: "-".join(sorted(part.model_fields_set)))
async def test_each_kind_of_part_comes_back(service: BaseSessionService, app: str, part: types.Part):
    event = said(content=types.Content(role="model", parts=[part]))

    assert await through(service, app, event.model_copy(deep=True)) == event


async def test_megabytes_come_back(service: BaseSessionService, app: str):
    event = said(
        content=types.Content(parts=[types.Part.from_bytes(data=BYTES * 2048, mime_type="image/png")] * 2)
    )

    assert await through(service, app, event.model_copy(deep=True)) == event


async def test_what_is_in_free_dictionaries_is_left_alone(service: BaseSessionService, app: str):
    event = said(
        custom_metadata={**FREE, "author": "x", "actions": {"stateDelta": {"k": 1}}},
        output={"state": {"k": 1}, "message": "m", "partial": True},
        actions=EventActions(agent_state={"state": {"k": 1}}, set_model_response={"temp:t": 1}),
    )

    restored = await through(service, app, event.model_copy(deep=True))

    assert restored == event
    assert repr(restored.custom_metadata) == repr(event.custom_metadata)


async def test_the_ids_of_long_running_tools_are_a_set(service: BaseSessionService, app: str):
    restored = await through(service, app, said(long_running_tool_ids={"b", "a"}))

    assert restored.long_running_tool_ids == {"a", "b"}
    assert restored.is_final_response()


async def through(service: BaseSessionService, app: str, event: Event) -> Event:
    """The event as it is read after it was appended."""
    session = await service.create_session(app_name=app, user_id=USER)
    await service.append_event(session, event)
    return (await stored(service, session)).events[0]


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
