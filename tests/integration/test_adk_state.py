"""State of ADK's sessions: whose it is, how long it lasts, and what an event does to it."""

from typing import Any

import pytest
from google.adk.sessions.base_session_service import BaseSessionService
from tests import adk_services
from tests.adk_services import USER, change, said, stored
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold.settings import Settings

app, opening, service = adk_services.app, adk_services.opening, adk_services.service


async def test_the_state_of_an_app_is_shared_by_all_its_users(service: BaseSessionService, app: str):
    first = await service.create_session(app_name=app, user_id=USER, state={"app:a": 1})
    await service.append_event(first, change({"app:b": 2}))
    second = await service.create_session(app_name=app, user_id="ben", state={"app:a": 3})
    elsewhere = await service.create_session(app_name=f"{app}2", user_id=USER)

    assert second.state == {"app:a": 3, "app:b": 2}
    assert (await stored(service, first)).state == {"app:a": 3, "app:b": 2}
    assert elsewhere.state == {}


async def test_the_state_of_a_user_is_shared_by_the_users_sessions(service: BaseSessionService, app: str):
    first = await service.create_session(app_name=app, user_id=USER, state={"user:a": 1})
    await service.append_event(first, change({"user:b": 2}))
    second = await service.create_session(app_name=app, user_id=USER, state={"user:a": 3})
    of_another = await service.create_session(app_name=app, user_id="ben")
    elsewhere = await service.create_session(app_name=f"{app}2", user_id=USER)

    assert second.state == {"user:a": 3, "user:b": 2}
    assert (await stored(service, first)).state == {"user:a": 3, "user:b": 2}
    assert of_another.state == elsewhere.state == {}


async def test_the_state_of_a_session_is_its_own(service: BaseSessionService, app: str):
    first = await service.create_session(app_name=app, user_id=USER, state={"a": 1})
    await service.append_event(first, change({"b": 2}))
    second = await service.create_session(app_name=app, user_id=USER)

    assert (await stored(service, first)).state == {"a": 1, "b": 2}
    assert (await stored(service, second)).state == {}


async def test_the_same_name_is_another_key_in_each_scope(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER)
    state = {
        "k": 1,
        "app:k": 2,
        "user:k": 3,
        "app:user:k": 4,
        "user:app:k": 5,
        "app:app:k": 6,
        "user:temp:k": 7,
    }

    await service.append_event(session, change(state))

    assert (await stored(service, session)).state == state
    assert await service.get_user_state(app_name=app, user_id=USER) == {"k": 3, "app:k": 5, "temp:k": 7}


async def test_temporary_state_is_seen_by_who_holds_the_session_and_never_stored(
    service: BaseSessionService, app: str
):
    session = await service.create_session(app_name=app, user_id=USER, state={"temp:a": 1, "k": 1})

    event = await service.append_event(session, change({"temp:b": 2, "k": 2}))
    await service.append_event(session, change({"temp:c": 3}))

    assert (session.state["temp:b"], session.state["temp:c"], session.state["k"]) == (2, 3, 2)
    assert event.actions.state_delta == {"k": 2}
    read = await stored(service, session)
    assert read.state == {"k": 2}
    assert [event.actions.state_delta for event in read.events] == [{"k": 2}, {}]


async def test_a_fragment_is_not_stored(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER)
    before = await stored(service, session)
    fragment = change({"k": 1, "app:a": 1, "user:u": 1}, partial=True)

    returned = await service.append_event(session, fragment)

    assert returned is fragment
    assert session == before
    assert await stored(service, session) == before


async def test_null_is_a_value(service: BaseSessionService, app: str):
    keys = ("k", "app:k", "user:k")
    session = await service.create_session(app_name=app, user_id=USER, state=dict.fromkeys(keys, 1))

    await service.append_event(session, change(dict.fromkeys(keys)))

    assert session.state == dict.fromkeys(keys)
    assert (await stored(service, session)).state == dict.fromkeys(keys)
    assert await service.get_user_state(app_name=app, user_id=USER) == {"k": None}


@pytest.mark.parametrize("scope", ["", "app:", "user:"])
async def test_a_dictionary_takes_the_place_of_the_one_before(
    service: BaseSessionService, app: str, scope: str
):
    key = f"{scope}profile"
    session = await service.create_session(
        app_name=app, user_id=USER, state={key: {"name": "Ann", "role": {"a": 1}}, f"{scope}other": {"b": 1}}
    )

    await service.append_event(session, change({key: {"role": {}}}))

    expected = {key: {"role": {}}, f"{scope}other": {"b": 1}}
    assert session.state == expected
    assert (await stored(service, session)).state == expected


async def test_an_event_without_changes_leaves_the_state(service: BaseSessionService, app: str):
    state = {"flag": False, "app:flag": True, "user:number": 1.0}
    session = await service.create_session(app_name=app, user_id=USER, state=state)

    await service.append_event(session, said())
    await service.append_event(session, change({"app:more": 1}))

    assert repr(sorted((await stored(service, session)).state.items())) == repr(
        sorted({**state, "app:more": 1}.items())
    )


async def test_a_deep_value_comes_back(service: BaseSessionService, app: str):
    deep: Any = 1
    for _ in range(60):
        deep = {"k": [deep]}
    session = await service.create_session(app_name=app, user_id=USER)

    await service.append_event(session, change({"deep": deep}))

    assert (await stored(service, session)).state == {"deep": deep}


async def test_the_users_state_is_read_without_a_session(service: BaseSessionService, app: str):
    session = await service.create_session(
        app_name=app, user_id=USER, state={"user:a": 1, "app:b": 1, "c": 1}
    )
    await service.append_event(session, change({"user:a": {"deep": [1]}, "user:d": 2}))

    assert await service.get_user_state(app_name=app, user_id=USER) == {"a": {"deep": [1]}, "d": 2}
    assert await service.get_user_state(app_name=app, user_id="ben") == {}
    assert await service.get_user_state(app_name=f"{app}2", user_id=USER) == {}


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
