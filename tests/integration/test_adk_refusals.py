"""What ADK's agents cannot have stored: they are told why, and nothing has changed, here or
there.
"""

import copy
import math
from typing import Any

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from tests import adk_services
from tests.adk_services import USER, change, ids, said, stored
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold.settings import Settings

app, opening, service = adk_services.app, adk_services.opening, adk_services.service

UNSTORABLE = {
    "an object": object(),
    "a function": print,
    "not a number": math.nan,
    "infinity": -math.inf,
    "an object inside": {"a": [1, {"b": object()}]},
    "not a number inside": [{"a": math.nan}],
}
each_unstorable = pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE.keys())


@each_unstorable
@pytest.mark.parametrize("key", ["the_key", "app:the_key", "user:the_key"])
async def test_a_value_that_cannot_be_stored_is_refused_by_the_name_of_its_key(
    service: BaseSessionService, app: str, key: str, value: Any
):
    session = await with_history(service, app)
    event = change({"k": 2, "temp:t": 2, key: value, "app:a": 2, "user:u": 2})

    refusal = await refused(service, session, event)

    assert isinstance(refusal, (ValueError, TypeError))
    assert "the_key" in str(refusal)


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
    await refused(service, session, change({"k": object()}))

    await service.append_event(session, change({"k": 2}))

    assert (await stored(service, session)) == session
    assert session.state["k"] == 2


@each_unstorable
async def test_a_session_whose_state_cannot_be_stored_is_not_created(
    service: BaseSessionService, app: str, value: Any
):
    with pytest.raises((ValueError, TypeError), match="the_key"):
        await service.create_session(
            app_name=app, user_id=USER, session_id="s", state={"the_key": value, "app:a": 1, "user:u": 1}
        )

    created = await service.create_session(app_name=app, user_id=USER, session_id="s")
    assert created.state == {}


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
