"""Sessions of ADK: created, found, listed and deleted, by whom they belong to."""

import asyncio
import sys

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from tests import adk_services
from tests.adk_services import USER, change, ids, said, stored
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold.settings import Settings

app, opening, service = adk_services.app, adk_services.opening, adk_services.service


async def test_a_session_created_without_an_id_gets_one_of_its_own(service: BaseSessionService, app: str):
    first = await service.create_session(app_name=app, user_id=USER)
    second = await service.create_session(app_name=app, user_id=USER)

    assert first.id
    assert second.id
    assert first.id != second.id
    assert (first.app_name, first.user_id, first.state, first.events) == (app, USER, {}, [])


async def test_a_session_has_the_id_it_is_given(service: BaseSessionService, app: str):
    created = await service.create_session(app_name=app, user_id=USER, session_id="mine")

    assert created.id == "mine"
    assert (await stored(service, created)).id == "mine"


@pytest.mark.parametrize(
    "session_id", ["a/b", "a b", "a.b", "$a", "ключ", "😀", "a:b", "..", "%2F", "x" * 128]
)
async def test_any_text_can_be_an_id(service: BaseSessionService, app: str, session_id: str):
    created = await service.create_session(app_name=app, user_id=USER, session_id=session_id)
    event = await service.append_event(created, said())

    assert created.id == session_id
    assert ids(await stored(service, created)) == [event.id]


async def test_any_text_can_name_an_app_and_a_user(service: BaseSessionService, app: str):
    alike = ["a", "a/b", "a:b", "a:", ":b", "a/b/c"]
    names = [(one, other) for one in alike for other in alike]
    names += [(one, one) for one in ("a b", "a.b", "ключ 😀", "$", "a@b.example")]
    keys = [(f"{app}{name}", user) for name, user in names]

    await asyncio.gather(
        *(
            service.create_session(
                app_name=name, user_id=user, session_id="s", state={"n": number, "user:n": number}
            )
            for number, (name, user) in enumerate(keys)
        )
    )

    for number, (name, user) in enumerate(keys):
        session = await service.get_session(app_name=name, user_id=user, session_id="s")
        assert session is not None
        assert session.state == {"n": number, "user:n": number}


async def test_an_id_is_taken_once(service: BaseSessionService, app: str):
    created = await service.create_session(app_name=app, user_id=USER, session_id="s", state={"kept": 1})
    await service.append_event(created, said())

    with pytest.raises(AlreadyExistsError):
        await service.create_session(
            app_name=app, user_id=USER, session_id="s", state={"kept": 2, "app:a": 2, "user:u": 2}
        )

    session = await stored(service, created)
    assert session.state == {"kept": 1}
    assert len(session.events) == 1


async def test_spaces_around_an_id_are_no_part_of_it(service: BaseSessionService, app: str):
    created = await service.create_session(app_name=app, user_id=USER, session_id="  s\n")

    assert created.id == "s"
    with pytest.raises(AlreadyExistsError):
        await service.create_session(app_name=app, user_id=USER, session_id=" s")
    assert await service.get_session(app_name=app, user_id=USER, session_id=" s ") == created
    await service.delete_session(app_name=app, user_id=USER, session_id="\ts")
    assert await service.get_session(app_name=app, user_id=USER, session_id="s") is None


@pytest.mark.parametrize("session_id", ["", " ", "\n\t"])
async def test_an_id_of_spaces_is_none(service: BaseSessionService, app: str, session_id: str):
    created = await service.create_session(app_name=app, user_id=USER, session_id=session_id)

    assert created.id
    assert created.id == created.id.strip()


async def test_other_users_and_apps_have_the_id_for_themselves(service: BaseSessionService, app: str):
    owners = [(app, USER), (app, "ben"), (f"{app}2", USER)]

    for name, user in owners:
        session = await service.create_session(
            app_name=name, user_id=user, session_id="s", state={"of": [name, user]}
        )
        await service.append_event(session, said(author=user, invocation_id=name))

    for name, user in owners:
        found = await service.get_session(app_name=name, user_id=user, session_id="s")
        assert found is not None
        assert (found.app_name, found.user_id, found.state) == (name, user, {"of": [name, user]})
        assert [(event.invocation_id, event.author) for event in found.events] == [(name, user)]


async def test_what_is_created_is_what_is_read(service: BaseSessionService, app: str):
    created = await service.create_session(
        app_name=app, user_id=USER, session_id="s", state={"k": 1, "app:a": 2, "user:u": 3}
    )

    assert created.state == {"k": 1, "app:a": 2, "user:u": 3}
    assert created.last_update_time > 0
    assert await stored(service, created) == created


@pytest.mark.parametrize("missing", ["app_name", "user_id", "session_id"])
async def test_an_unknown_session_is_none(service: BaseSessionService, app: str, missing: str):
    known = {"app_name": app, "user_id": USER, "session_id": "s"}
    await service.create_session(**known)

    assert await service.get_session(**{**known, missing: "unknown"}) is None


async def test_an_append_returns_the_event_and_brings_the_session_up_to_date(
    service: BaseSessionService, app: str
):
    session = await service.create_session(app_name=app, user_id=USER, state={"k": 1})
    event = change({"k": 2, "app:a": 3, "user:u": 4}, timestamp=session.last_update_time + 10.5)

    returned = await service.append_event(session, event)

    assert returned is event
    assert session.events == [event]
    assert session.state == {"k": 2, "app:a": 3, "user:u": 4}
    assert session.last_update_time == event.timestamp
    assert await stored(service, session) == session


async def test_a_session_is_read_again_after_many_appends(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER)

    for number in range(30):
        await service.append_event(session, change({"n": number, f"k{number}": number}))

    assert len(session.events) == 30
    assert await stored(service, session) == session


async def test_the_latest_events_can_be_asked_for(service: BaseSessionService, app: str):
    session = await with_history(service, app, 5)

    every = [0, 1, 2, 3, 4]
    for count, expected in [(0, []), (1, [4]), (3, every[2:]), (5, every), (9, every), (sys.maxsize, every)]:
        read = await stored(service, session, num_recent_events=count)
        assert [event.custom_metadata for event in read.events] == [{"n": number} for number in expected]


async def test_the_events_since_a_moment_can_be_asked_for(service: BaseSessionService, app: str):
    session = await with_history(service, app, 5)
    third = session.events[2].timestamp

    assert ids(await stored(service, session, after_timestamp=third)) == ids(session)[2:]
    assert ids(await stored(service, session, after_timestamp=third + 0.5)) == ids(session)[3:]
    assert ids(await stored(service, session, after_timestamp=third + 100)) == []
    assert ids(await stored(service, session, after_timestamp=0.0)) == ids(session)


async def test_both_bounds_of_the_events_hold_at_once(service: BaseSessionService, app: str):
    session = await with_history(service, app, 5)
    third = session.events[2].timestamp

    assert ids(await stored(service, session, after_timestamp=third, num_recent_events=2)) == ids(session)[3:]
    assert ids(await stored(service, session, after_timestamp=third, num_recent_events=4)) == ids(session)[2:]
    assert ids(await stored(service, session, after_timestamp=third, num_recent_events=0)) == []


async def test_fewer_events_are_no_less_state(service: BaseSessionService, app: str):
    session = await with_history(service, app, 5)

    read = await stored(service, session, num_recent_events=0)

    assert read.state == session.state
    assert read.last_update_time == session.last_update_time


async def test_a_session_read_without_its_history_takes_events(service: BaseSessionService, app: str):
    session = await with_history(service, app, 3)

    for count in (0, 1):
        read = await stored(service, session, num_recent_events=count)
        await service.append_event(read, said(timestamp=read.last_update_time + 1))
        assert len(read.events) == count + 1

    assert ids(await stored(service, session))[:3] == ids(session)
    assert len((await stored(service, session)).events) == 5


async def test_an_event_of_1970_is_an_event_like_others(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER)

    for timestamp in (1.0, 2.0, 3.25):
        await service.append_event(session, said(timestamp=timestamp))

    read = await stored(service, session)
    assert [event.timestamp for event in read.events] == [1.0, 2.0, 3.25]
    assert read.last_update_time == 3.25


async def test_sessions_are_listed_by_user(service: BaseSessionService, app: str):
    for user, session_id in [(USER, "a"), (USER, "b"), ("ben", "a")]:
        await service.create_session(app_name=app, user_id=user, session_id=session_id)
    await service.create_session(app_name=f"{app}2", user_id=USER, session_id="c")

    assert await listed(service, app, USER) == {(USER, "a"), (USER, "b")}
    assert await listed(service, app, "ben") == {("ben", "a")}
    assert await listed(service, app, "cyd") == set()
    assert await listed(service, app, "") == set()
    assert await listed(service, app) == {(USER, "a"), (USER, "b"), ("ben", "a")}
    assert await listed(service, f"{app}3") == set()


async def test_listed_sessions_have_the_merged_state_and_no_events(service: BaseSessionService, app: str):
    for user in (USER, "ben"):
        session = await service.create_session(
            app_name=app, user_id=user, session_id="s", state={"of": user, "user:of": user}
        )
        await service.append_event(session, change({"app:by": user, "temp:t": 1}))

    found = (await service.list_sessions(app_name=app)).sessions

    assert {session.user_id: session.state for session in found} == {
        user: {"of": user, "user:of": user, "app:by": "ben"} for user in (USER, "ben")
    }
    assert [session.events for session in found] == [[], []]


async def test_sessions_are_listed_from_the_oldest_update_to_the_latest(
    service: BaseSessionService, app: str
):
    sessions = [
        await service.create_session(app_name=app, user_id=user, session_id=session_id)
        for user, session_id in [(USER, "a"), ("ben", "b"), (USER, "c"), ("ben", "d")]
    ]
    base = max(session.last_update_time for session in sessions)
    for session, later in zip(sessions, [40, 10, 30, 20], strict=True):
        await service.append_event(session, said(timestamp=base + later))

    of_all = (await service.list_sessions(app_name=app)).sessions
    of_one = (await service.list_sessions(app_name=app, user_id=USER)).sessions

    assert [session.id for session in of_all] == ["b", "d", "c", "a"]
    assert [session.last_update_time for session in of_all] == [base + 10, base + 20, base + 30, base + 40]
    assert [session.id for session in of_one] == ["c", "a"]


async def test_a_deleted_session_is_gone_at_once(service: BaseSessionService, app: str):
    session = await with_history(service, app, 2)
    await service.create_session(app_name=app, user_id="ben", session_id=session.id)

    await service.delete_session(app_name=app, user_id=USER, session_id=session.id)

    assert await service.get_session(app_name=app, user_id=USER, session_id=session.id) is None
    assert await listed(service, app) == {("ben", session.id)}


async def test_an_id_whose_session_was_deleted_starts_anew(service: BaseSessionService, app: str):
    session = await with_history(service, app, 2)
    await service.delete_session(app_name=app, user_id=USER, session_id=session.id)

    created = await service.create_session(app_name=app, user_id=USER, session_id=session.id)
    event = await service.append_event(created, said())

    read = await stored(service, created)
    assert ids(read) == [event.id]
    assert read.state == {}


async def test_the_state_of_app_and_user_outlives_their_sessions(service: BaseSessionService, app: str):
    session = await service.create_session(
        app_name=app, user_id=USER, state={"k": 1, "app:a": 1, "user:u": 1}
    )
    await service.append_event(session, change({"k": 2, "app:b": 2, "user:v": 2}))

    await service.delete_session(app_name=app, user_id=USER, session_id=session.id)

    created = await service.create_session(app_name=app, user_id=USER)
    assert created.state == {"app:a": 1, "app:b": 2, "user:u": 1, "user:v": 2}


async def test_deleting_what_does_not_exist_changes_nothing(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER, session_id="s")

    await service.delete_session(app_name=app, user_id=USER, session_id="unknown")
    await service.delete_session(app_name=app, user_id="ben", session_id="s")
    await service.delete_session(app_name=f"{app}2", user_id=USER, session_id="s")

    assert await stored(service, session) == session


async def test_only_sessions_that_exist_take_events(service: BaseSessionService, app: str):
    unknown = Session(app_name=app, user_id=USER, id="unknown")
    deleted = await service.create_session(app_name=app, user_id=USER, session_id="deleted")
    await service.delete_session(app_name=app, user_id=USER, session_id="deleted")

    for session in (unknown, deleted):
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, change({"app:a": 1, "user:u": 1}))

    assert await listed(service, app) == set()
    assert (await service.create_session(app_name=app, user_id=USER)).state == {}


async def with_history(service: BaseSessionService, app: str, length: int) -> Session:
    """A session whose events are a second apart and numbered."""
    session = await service.create_session(app_name=app, user_id=USER, session_id="s")
    base = session.last_update_time
    for number in range(length):
        event = change({"last": number}, custom_metadata={"n": number}, timestamp=base + 1 + number)
        await service.append_event(session, event)
    return session


async def listed(service: BaseSessionService, app: str, user: str | None = None) -> set[tuple[str, str]]:
    found = (await service.list_sessions(app_name=app, user_id=user)).sessions
    return {(session.user_id, session.id) for session in found}


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
