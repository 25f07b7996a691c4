"""What ADK's agents give is what they get back, to the last bit: keys, values, events, and the
order of events.
"""

import copy
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from tests import adk_services
from tests.adk_events import FREE, complete_event, parts
from tests.adk_services import USER, change, ids, said, stored
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold.settings import Settings

app, opening, service = adk_services.app, adk_services.opening, adk_services.service

KEYS = [
    *("a.b", ".", "a..b", "$", "$set", "$a.$b", "a$", "_id", "id", "x-y", "a b", " ", "tab\t", "line\nend"),
    *(
        "a\0b",
        "ключ",
        "😀",
        "\U0001d4b3",
        "é",
        "e\u0301",
        "__proto__",
        "constructor",
        "",
        "'",
        '"',
        "\\",
        "%",
        "[0]",
    ),
    *("k" * 2000, "app", "user", "temp", "APP:a", "a:b", "nullable", "0", "-1", "true", "null"),
]
VALUES: list[Any] = [
    *(0, 1, -1, 2**31, 2**53 + 1, 2**63, 2**80, -(2**80), 10**300),
    *(0.1, 1.0, -0.0, 1e16, 1e-300, 5e-324, 1.7976931348623157e308, 0.30000000000000004),
    *(True, False, None, "", "a\0b", "😀\u2028", "x" * 300_000, "2026-01-01T00:00:00Z", "null", "1"),
    *(
        [],
        {},
        [[]],
        {"": {}},
        [None, True, 1, 1.0, "1"],
        {"a.b": {"$set": {"": 2**80}}},
        {"__proto__": {"x": 1}},
    ),
]


@pytest.mark.parametrize("scope", ["", "app:", "user:"])
@pytest.mark.parametrize("through", ["creation", "an event"])
async def test_any_text_is_a_key(service: BaseSessionService, app: str, scope: str, through: str):
    state = {scope + key: [key] for key in KEYS}
    created = state if through == "creation" else {}
    session = await service.create_session(app_name=app, user_id=USER, state=created)

    await service.append_event(session, change({} if created else state))
    await service.append_event(session, change({f"{scope}last": 1}))

    assert (await stored(service, session)).state == {**state, f"{scope}last": 1}
    assert (await service.list_sessions(app_name=app)).sessions[0].state == {**state, f"{scope}last": 1}


async def test_any_text_is_a_key_of_the_users_state(service: BaseSessionService, app: str):
    await service.create_session(app_name=app, user_id=USER, state={f"user:{key}": 1 for key in KEYS})

    assert await service.get_user_state(app_name=app, user_id=USER) == dict.fromkeys(KEYS, 1)


@pytest.mark.parametrize("scope", ["", "app:", "user:"])
@pytest.mark.parametrize("through", ["creation", "an event"])
async def test_a_value_comes_back_as_it_was_given(
    service: BaseSessionService, app: str, scope: str, through: str
):
    state = {f"{scope}v{number:02}": value for number, value in enumerate(VALUES)}
    created = state if through == "creation" else {}
    session = await service.create_session(app_name=app, user_id=USER, state=created)

    await service.append_event(session, change({} if created else state))
    await service.append_event(session, change({f"{scope}zzz": 1}))

    assert exact((await stored(service, session)).state) == exact({**state, f"{scope}zzz": 1})


async def test_a_change_comes_back_as_it_was_given(service: BaseSessionService, app: str):
    delta = {f"v{number:02}": value for number, value in enumerate(VALUES)} | dict.fromkeys(KEYS)
    session = await service.create_session(app_name=app, user_id=USER)

    await service.append_event(session, change(delta))

    read = await stored(service, session)
    assert exact(read.events[0].actions.state_delta) == exact(delta)


async def test_what_the_caller_does_to_a_session_is_not_stored(service: BaseSessionService, app: str):
    given = {"list": [1], "app:list": [1], "user:list": [1]}
    created = await service.create_session(app_name=app, user_id=USER, state=given)
    original = copy.deepcopy(created)

    given["list"].append(2)
    created.state["list"].append(3)
    created.state["app:list"].append(3)
    created.state["user:list"].append(3)
    created.state["more"] = True
    created.events.append(said())
    read = await stored(service, original)
    read.state["list"].append(4)
    read.events.append(said())

    assert await stored(service, original) == original


@pytest.mark.parametrize("timestamps", [(3.0, 1.0, 2.0), (5.0, 5.0, 5.0), (2.0, 2.0, 1.0), (0.0, -1.0, 4e9)])
async def test_history_is_in_the_order_of_the_appends(
    service: BaseSessionService, app: str, timestamps: tuple[float, ...]
):
    session = await service.create_session(app_name=app, user_id=USER)
    names = ["z", "a", "m"]

    for name, timestamp in zip(names, timestamps, strict=True):
        await service.append_event(session, said(id=name, timestamp=timestamp))

    assert ids(session) == names
    assert ids(await stored(service, session)) == names
    assert ids(await stored(service, session, num_recent_events=2)) == names[1:]
    assert (await stored(service, session)).last_update_time == timestamps[-1]


@pytest.mark.parametrize(
    "timestamp", [1_700_000_000.123457, 1_763_747_000.000001, 0.1 + 0.2, 1e-7, 4e9 + 1 / 3]
)
async def test_a_moment_is_kept_to_the_last_bit(service: BaseSessionService, app: str, timestamp: float):
    session = await service.create_session(app_name=app, user_id=USER)

    await service.append_event(session, said(timestamp=timestamp))

    read = await stored(service, session)
    assert read.events[0].timestamp == timestamp
    assert read.last_update_time == session.last_update_time == timestamp
    # A list reads no events, and our own times are exact to the microsecond.
    listed = (await service.list_sessions(app_name=app)).sessions[0]
    assert listed.last_update_time == pytest.approx(timestamp, abs=1e-6)
    assert len((await stored(service, session, after_timestamp=timestamp)).events) == 1


@pytest.mark.parametrize(
    "event",
    [
        Event(),
        Event(author="user"),
        said(content=None, partial=None),
        said(partial=False, content={"parts": [{"text": ""}], "role": "user"}),
        said(content={"parts": []}, long_running_tool_ids=set()),
        said(custom_metadata=FREE, output=FREE),
        said(id="given", timestamp=1.5),
        said(actions={"stateDelta": {}, "route": True}),
        said(
            content={"role": "user", "parts": [{"text": "hello"}]},
            state={"k": 1},
            route="next",
            node_path="flow/node@1",
        ),
        said(content={"parts": parts(), "role": "model"}),
        complete_event(),
    ],
)
async def test_an_event_comes_back_with_what_was_set_and_nothing_else(
    service: BaseSessionService, app: str, event: Event
):
    session = await service.create_session(app_name=app, user_id=USER)
    original = event.model_copy(deep=True)

    await service.append_event(session, event.model_copy(deep=True))

    restored = (await stored(service, session)).events[0]
    assert restored == original
    assert restored.model_dump(exclude_unset=True) == original.model_dump(exclude_unset=True)
    assert restored.model_dump_json(exclude_unset=True) == original.model_dump_json(exclude_unset=True)


async def test_what_was_changed_in_place_comes_back_too(service: BaseSessionService, app: str):
    event = said()
    event.actions.state_delta["k"] = {"a": 1}
    event.actions.artifact_delta["file"] = 1
    event.node_info.path = "flow/node@1"
    original = event.model_copy(deep=True)
    session = await service.create_session(app_name=app, user_id=USER)

    await service.append_event(session, event)

    read = await stored(service, session)
    assert read.state == {"k": {"a": 1}}
    assert read.events[0] == original
    assert read.events[0].model_dump(exclude_unset=True) == original.model_dump(exclude_unset=True)


async def test_the_same_event_appended_again_is_stored_once(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER)
    event = change({"k": 1, "app:a": 1})
    await service.append_event(session, event)

    again = await service.append_event(session, event)

    assert again == event
    assert session.events == [event]
    assert await stored(service, session) == session


async def test_an_equal_event_appended_to_the_session_read_again_is_stored_once(
    service: BaseSessionService, app: str
):
    session = await service.create_session(app_name=app, user_id=USER)
    event = change({"k": 1, "app:a": 1})
    copied = event.model_copy(deep=True)
    await service.append_event(session, event)
    await service.append_event(session, change({"k": 2, "app:a": 2}))
    read = await stored(service, session)

    again = await service.append_event(read, copied)

    assert again == event
    assert ids(read) == ids(session)
    assert await stored(service, session) == session


def exact(state: dict[str, Any]) -> list[str]:
    """The state as text, in which 1, 1.0 and True are three things."""
    return sorted(f"{key!r}: {value!r}" for key, value in state.items())


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
