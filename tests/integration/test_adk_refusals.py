"""What ADK's agents cannot have stored as it is: the text of a value of the state is stored in its
place. All else is refused with the reason, and nothing has changed, here or there.
"""

import copy
import logging
import math
from typing import Any

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.genai.types import Content, Part
from tests import adk_services
from tests.adk_services import USER, change, ids, said, stored
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold.settings import Settings

app, opening, service = adk_services.app, adk_services.opening, adk_services.service

TEXTS: dict[str, tuple[Any, Any]] = {
    "a function": (print, "<built-in function print>"),
    "not a number": (math.nan, "NaN"),
    "infinity": (-math.inf, "-Infinity"),
    "a function inside": ({"a": [1, {"b": print}]}, {"a": [1, {"b": "<built-in function print>"}]}),
    "not a number inside": ([{"a": math.nan}], [{"a": "NaN"}]),
    "half of a surrogate pair": ("cut \ud83d", "cut \ufffd"),
}
each_text = pytest.mark.parametrize("form", TEXTS.values(), ids=TEXTS.keys())


@each_text
@pytest.mark.parametrize("key", ["the_key", "app:the_key", "user:the_key"])
async def test_the_text_of_a_value_that_json_cannot_carry_is_stored_with_a_warning(
    service: BaseSessionService, app: str, key: str, form: tuple[Any, Any], caplog: pytest.LogCaptureFixture
):
    value, text = form
    session = await with_history(service, app)

    with caplog.at_level(logging.WARNING, logger="runfold"):
        await service.append_event(session, change({"k": 2, "temp:t": 2, key: value}))

    found = await stored(service, session)
    assert found.state[key] == text
    assert found.events[-1].actions.state_delta == {"k": 2, key: text}
    assert found.state["k"] == 2
    assert any("the_key" in line or "surrogate" in line for line in caplog.messages)
    await service.append_event(session, change({"k": 3}))


@each_text
async def test_a_session_is_created_with_the_texts_of_such_values(
    service: BaseSessionService, app: str, form: tuple[Any, Any]
):
    value, text = form
    created = await service.create_session(app_name=app, user_id=USER, state={"the_key": value, "app:a": 1})

    assert (await stored(service, created)).state == {"the_key": text, "app:a": 1}


async def test_an_event_whose_text_was_cut_within_an_emoji_is_stored(service: BaseSessionService, app: str):
    session = await with_history(service, app)
    event = said()
    event.content = Content(role="user", parts=[Part(text="cut \ud83d"), Part(text="\ud83d\ude00")])

    await service.append_event(session, event)

    content = (await stored(service, session)).events[-1].content
    assert content is not None
    assert [part.text for part in content.parts or []] == ["cut \ufffd", "\U0001f600"]


@pytest.mark.parametrize("field", ["custom_metadata", "output"])
async def test_what_cannot_be_stored_is_refused_in_other_fields_too(
    service: BaseSessionService, app: str, field: str
):
    session = await with_history(service, app)
    event = said(**{field: {"fine": 1, "the_key": object()}})

    refusal = await refused(service, session, event)

    assert isinstance(refusal, (ValueError, TypeError))
    assert field in str(refusal)


async def test_after_a_refusal_the_session_takes_what_can_be_stored(service: BaseSessionService, app: str):
    session = await with_history(service, app)
    await refused(service, session, said(output=object()))

    await service.append_event(session, change({"k": 2}))

    assert (await stored(service, session)) == session
    assert session.state["k"] == 2


async def test_temporary_state_may_be_anything(service: BaseSessionService, app: str):
    anything = object()
    session = await service.create_session(app_name=app, user_id=USER)

    await service.append_event(session, change({"temp:t": anything, "k": 1}))

    assert session.state == {"temp:t": anything, "k": 1}
    assert (await stored(service, session)).state == {"k": 1}


async def test_a_stale_append_changes_nothing(service: BaseSessionService, app: str):
    stale = await with_history(service, app)
    await service.append_event(await stored(service, stale), said(timestamp=stale.last_update_time + 1))

    event = change({"k": 2, "temp:t": 2, "app:a": 2, "user:u": 2}, timestamp=stale.last_update_time + 2)
    refusal = await refused(service, stale, event)

    assert isinstance(refusal, StaleSessionError)
    assert stale.id in str(refusal)


async def test_an_append_to_an_unknown_session_changes_nothing(service: BaseSessionService, app: str):
    unknown = Session(app_name=app, user_id=USER, id="unknown", state={"k": 1}, events=[said()])

    refusal = await refused(service, unknown, change({"k": 2, "temp:t": 2, "app:a": 2, "user:u": 2}))

    assert isinstance(refusal, SessionNotFoundError)
    assert "unknown" in str(refusal)


async def test_an_append_to_a_deleted_session_changes_nothing(service: BaseSessionService, app: str):
    deleted = await with_history(service, app)
    await service.delete_session(app_name=app, user_id=USER, session_id=deleted.id)

    refusal = await refused(service, deleted, change({"k": 2, "temp:t": 2, "app:a": 2, "user:u": 2}))

    assert isinstance(refusal, SessionNotFoundError)
    assert deleted.id in str(refusal)


async def with_history(service: BaseSessionService, app: str) -> Session:
    session = await service.create_session(
        app_name=app, user_id=USER, session_id="some_session", state={"k": 1, "app:a": 1, "user:u": 1}
    )
    await service.append_event(session, said())
    return session


async def refused(service: BaseSessionService, session: Session, event: Event) -> Exception:
    """Why the event is not appended, where neither the caller's objects nor the stored ones have
    changed.
    """
    of_user = {"app_name": session.app_name, "user_id": session.user_id}
    key = {**of_user, "session_id": session.id}
    before, shared = await service.get_session(**key), await service.get_user_state(**of_user)
    state, events, moment = copy.copy(session.state), copy.copy(session.events), session.last_update_time
    delta, fields = copy.copy(event.actions.state_delta), dict(event)

    with pytest.raises(Exception) as refusal:  # noqa: PT011 - the caller tells which one it is to be
        await service.append_event(session, event)

    assert (session.state, session.events, session.last_update_time) == (state, events, moment)
    assert event.actions.state_delta == delta
    assert dict(event) == fields
    assert await service.get_session(**key) == before
    if before is not None:
        assert event.id not in ids(before)
    assert await service.get_user_state(**of_user) == shared
    return refusal.value


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
