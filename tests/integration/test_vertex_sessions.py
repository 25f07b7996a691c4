"""Google's own clients use our sessions as if they were Agent Engine's."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from google.genai import errors, types
from tests.querying import Projected
from tests.session_verbs import check_rebuild
from tests.vertex_clients import (
    ENGINE,
    KEY_ONLY,
    PROJECT,
    TOKEN,
    UNKNOWN_ENGINE,
    WAYS,
    WITH_KEY,
    Caller,
    caller,
    vertex,
)

from runfold.settings import Settings
from runfold.vertex.paging import token_of

EARLY = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
YEAR = timedelta(days=365)


@pytest.fixture(scope="module")
async def http(settings: Settings, stored: Projected) -> AsyncIterator[httpx.AsyncClient]:
    async with vertex(settings) as client:
        yield client


@pytest.fixture(scope="module")
def url(http: httpx.AsyncClient) -> str:
    return str(http.base_url).rstrip("/")


@pytest.fixture(scope="module")
def google(url: str) -> Caller:
    return caller(url)


def said(text: str, role: str = "user") -> types.Content:
    return types.Content(role=role, parts=[types.Part(text=text)])


@pytest.mark.parametrize("way", WAYS)
async def test_every_client_goes_through_the_life_of_a_session(url: str, way: str):
    google = caller(url, way)

    created = await google.create("ann", display_name="Trip", session_state={"n": None}, labels={"a": "b"})
    await google.append(
        created.name,
        EARLY,
        content=said("Hello"),
        actions={"state_delta": {"step_one": {"a_b": 1}, "n": 2}},
    )
    read = await google.get(created.name)
    [event] = await google.events(created.name)
    await google.update(created.name, display_name="Long trip")
    updated = await google.get(created.name)
    listed = [each.name for each in await google.list(filter='user_id="ann"')]
    await google.delete(created.name)

    assert created.name.startswith(f"{PROJECT}/reasoningEngines/{ENGINE}/sessions/")
    assert created.name.rpartition("/")[2].isdigit()
    assert (created.user_id, created.display_name, created.labels) == ("ann", "Trip", {"a": "b"})
    assert created.session_state == {"n": None}
    assert created.expire_time - created.create_time - YEAR < timedelta(seconds=30)
    assert read.session_state == {"step_one": {"a_b": 1}, "n": 2}
    assert read.update_time > created.update_time
    assert event.name.startswith(f"{created.name}/events/")
    assert (event.author, event.invocation_id, event.timestamp) == ("ann", "i-1", EARLY)
    assert event.content == said("Hello")
    assert event.actions.state_delta == {"step_one": {"a_b": 1}, "n": 2}
    assert updated.display_name == "Long trip"
    assert created.name in listed
    with pytest.raises(errors.ClientError) as raised:
        await google.get(created.name)
    assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")
    assert created.name not in [each.name for each in await google.list()]


@pytest.mark.parametrize(
    ("given", "project"),
    [(TOKEN, PROJECT), (WITH_KEY, PROJECT), (KEY_ONLY, "projects/runfold/locations/local")],
)
async def test_whichever_way_a_client_is_authorized_names_are_full(
    url: str, given: dict[str, Any], project: str
):
    google = caller(url, given=given)

    created = await google.create()

    assert created.name.startswith(f"{project}/reasoningEngines/{ENGINE}/sessions/")
    assert (await google.get(created.name)).name == created.name


async def test_a_full_name_and_a_short_one_are_the_same(google: Caller):
    full = f"{PROJECT}/reasoningEngines/{ENGINE}"

    created = await google.create(engine=full, session_id="both-ways")

    short = await google.get(f"reasoningEngines/{ENGINE}/sessions/both-ways")
    assert short == created
    assert created.name == f"{full}/sessions/both-ways"


async def test_each_engine_has_sessions_of_its_own(google: Caller):
    other = "reasoningEngines/77"

    first = await google.create(session_id="same", session_state={"k": 1})
    second = await google.create(engine=other, session_id="same")

    assert first.name != second.name
    assert second.session_state == {}
    assert [each.name for each in await google.list(engine=other)] == [second.name]


async def test_keys_of_an_app_and_of_a_user_are_in_all_sessions_that_share_them(google: Caller):
    given = {"app:motd": "hi", "user:lang": "en", "temp:x": 1, "own": 1}
    first = await google.create("carl", engine="reasoningEngines/88", session_state=given)
    second = await google.create("carl", engine="reasoningEngines/88")
    other = await google.create("dora", engine="reasoningEngines/88")
    await google.append(second.name, EARLY, actions={"state_delta": {"user:lang": "de", "temp:y": 2}})

    read = await google.get(first.name)
    [event] = await google.events(second.name)

    assert first.session_state == {"app:motd": "hi", "user:lang": "en", "own": 1}
    assert second.session_state == {"app:motd": "hi", "user:lang": "en"}
    assert read.session_state == {"app:motd": "hi", "user:lang": "de", "own": 1}
    assert (await google.get(other.name)).session_state == {"app:motd": "hi"}
    assert event.actions.state_delta == {"user:lang": "de"}


async def test_events_come_by_their_times_whatever_order_they_came_in(google: Caller):
    session = await google.create()
    times = [EARLY + timedelta(seconds=second) for second in (3, 1, 2)]
    for time in times:
        await google.append(session.name, time)

    east = timezone(timedelta(hours=5, minutes=30))
    late = (EARLY + timedelta(seconds=2)).astimezone(east).isoformat()

    assert [each.timestamp for each in await google.events(session.name)] == sorted(times)
    assert [each.timestamp for each in await google.events(session.name, filter=f'timestamp>="{late}"')] == [
        EARLY + timedelta(seconds=2),
        EARLY + timedelta(seconds=3),
    ]
    between = f'timestamp>"{EARLY.isoformat()}" AND timestamp<"{late}"'
    assert [each.timestamp for each in await google.events(session.name, filter=between)] == [
        EARLY + timedelta(seconds=1)
    ]


@pytest.mark.parametrize("seconds", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (0, 1, 4, 3, 2), (1, 1, 1, 0, 0)])
async def test_pages_go_on_where_they_were_whatever_comes_meanwhile(
    google: Caller, http: httpx.AsyncClient, seconds: tuple[int, ...]
):
    session = await google.create()
    for second in seconds:
        await google.append(session.name, EARLY + timedelta(seconds=second))
    late = [EARLY + timedelta(seconds=second) for second in (9, 8)]
    shown, token = [], ""
    while token is not None:
        page = await answered(http, f"/v1/{session.name}/events", pageSize=2, pageToken=token)
        shown += page["sessionEvents"]
        token = page.get("nextPageToken")
        if late:
            await google.append(session.name, late.pop())

    assert len({each["name"] for each in shown}) == len(shown) == 7
    assert [each["timestamp"] for each in shown] == sorted(each["timestamp"] for each in shown)


@pytest.mark.parametrize(
    "token", [token_of(10**15, 10**15), token_of(0, 10**15), token_of("x", -1), token_of()]
)
async def test_a_token_from_elsewhere_does_no_harm(google: Caller, http: httpx.AsyncClient, token: str):
    session = await google.create()
    await google.append(session.name, EARLY)

    assert await answered(http, f"/v1/{session.name}/events", pageToken=token)


@pytest.mark.parametrize(
    "token", [token_of(1), token_of(-1, 1), token_of(2, 1), token_of(0, 2**63), token_of(True, True), "x"]
)
async def test_a_token_that_cannot_be_is_refused(google: Caller, token: str):
    session = await google.create()

    assert await refusal(google.events(session.name, page_token=token)) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("way", ["agentplatform v1 sync", "vertexai v1beta1 async"])
async def test_pages_end_where_nothing_follows(url: str, way: str):
    google = caller(url, way)
    session = await google.create(way)
    for number in range(4):
        await google.append(session.name, EARLY + timedelta(seconds=number))
        await google.create(way)

    for size in (1, 2, 4, 5, 100):
        assert len(await google.events(session.name, page_size=size)) == 4
        assert len({each.name for each in await google.list(page_size=size, filter=f'user_id="{way}"')}) == 5


async def test_what_a_filter_does_not_hold_of_makes_no_empty_page(google: Caller):
    kept = await google.create("filter", labels={"tier": "gold"})
    for _ in range(3):
        await google.create("filter", labels={"tier": "lead"})

    found = await google.list(page_size=1, filter='user_id="filter" AND NOT labels.tier="lead"')

    assert [each.name for each in found] == [kept.name]
    assert len(await google.list(filter='userId="filter" labels.tier="lead"')) == 3


async def test_users_may_have_quotes_in_their_names(google: Caller):
    user = 'a "quoted" \\ user + ü'
    session = await google.create(user)

    found = await google.list(filter='user_id="a \\"quoted\\" \\\\ user + ü"')

    assert [(each.name, each.user_id) for each in found] == [(session.name, user)]


async def test_a_time_to_expire_is_given_out_as_it_was_set(google: Caller):
    at = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=123456)

    created = await google.create(expire_time=at)
    updated = await google.update(created.name, ttl="172800.5s", update_mask="ttl,display_name")

    assert created.expire_time == at
    assert updated.expire_time < at
    assert (await google.update(created.name, expire_time=at)).expire_time == at


async def test_a_mask_says_what_changes(google: Caller):
    created = await google.create(display_name="first", labels={"a": "1"})

    masked = await google.update(
        created.name, display_name="second", labels={"a": "2", "b": "3"}, update_mask="labels"
    )
    cleared = await google.update(created.name, update_mask="display_name")
    stateful = await google.update(created.name, session_state={"k": [1]})

    assert masked.name == created.name
    assert (masked.display_name, masked.labels) == ("first", {"a": "2", "b": "3"})
    assert cleared.display_name is None
    assert stateful.session_state == {"k": [1]}


async def test_labels_that_would_have_to_be_taken_away_are_refused(google: Caller):
    created = await google.create(labels={"a": "1", "b": "2"})

    for change in ({"labels": {"a": "2"}}, {"update_mask": "labels"}):
        with pytest.raises(errors.ServerError) as raised:
            await google.update(created.name, **change)
        assert (raised.value.code, raised.value.status) == (501, "UNIMPLEMENTED")
    assert (await google.get(created.name)).labels == {"a": "1", "b": "2"}


async def test_a_large_event_comes_back_as_it_was(google: Caller):
    part = types.Part(inline_data=types.Blob(mime_type="image/png", data=b"\xff\xfe\xfb" * 50_000))
    called = types.Part(
        function_call=types.FunctionCall(id="c", name="f", args={"some_key": {"x_y": None, "big": 2**70}}),
        thought_signature=b"\xff\xfe",
    )
    session = await google.create()
    given = {
        "content": types.Content(role="model", parts=[part, called]),
        "event_metadata": {"partial": True, "custom_metadata": {"a_b": {"c_d": 1}}, "branch": "a.b"},
        "error_code": "E",
        "error_message": "broken",
        "raw_event": {"id": "own", "odd_key": [None, {"a_b": None}]},
    }

    await google.append(session.name, EARLY, author="agent", **given)
    [event] = await google.events(session.name)

    assert event.content == given["content"]
    assert event.event_metadata.partial
    assert event.event_metadata.custom_metadata == {"a_b": {"c_d": 1}}
    assert (event.error_code, event.error_message) == ("E", "broken")
    assert event.raw_event == given["raw_event"]


async def test_the_ledger_has_what_was_said(google: Caller, http: httpx.AsyncClient):
    session = await google.create(session_id="ledger")
    await google.append(session.name, EARLY, content=said("Is it raining?"))
    await google.append(
        session.name, EARLY, author="agent", content=said("Ye", "model"), event_metadata={"partial": True}
    )
    await google.append(session.name, EARLY, author="agent", content=said("Yes.", "model"))

    run_id = (await http.get(f"/v1/sessions/{ENGINE}%2Fledger")).json()["run_id"]
    ledger = (await http.get(f"/v1/runs/{run_id}/ledger", params={"source": "log"})).json()

    told = [(each["role"], each["parts"][0]["text"]) for each in ledger["messages"]]
    assert told == [("user", "Is it raining?"), ("assistant", "Yes.")]


async def refusal(call: Any) -> tuple[int, str]:
    with pytest.raises(errors.ClientError) as raised:
        await call
    assert raised.value.message
    return raised.value.code, raised.value.status


async def test_what_is_wrong_is_said_as_google_says_it(google: Caller):
    session = await google.create(session_id="refused")
    invalid = (400, "INVALID_ARGUMENT")
    at = EARLY + YEAR

    assert await refusal(google.create(session_id="refused")) == (409, "ALREADY_EXISTS")
    assert await refusal(google.create(engine=f"reasoningEngines/{UNKNOWN_ENGINE}")) == (404, "NOT_FOUND")
    assert await refusal(google.list(engine=f"reasoningEngines/{UNKNOWN_ENGINE}")) == (404, "NOT_FOUND")
    assert await refusal(google.delete(session.name + "1")) == (404, "NOT_FOUND")
    assert await refusal(google.events(session.name + "1")) == (404, "NOT_FOUND")
    assert await refusal(google.append(session.name + "1", EARLY)) == (404, "NOT_FOUND")
    assert await refusal(google.create(session_id="a:b")) == invalid
    assert await refusal(google.create(ttl="3600s")) == invalid
    assert await refusal(google.create(ttl="1 day")) == invalid
    assert await refusal(google.create(ttl="172800s", expire_time=at)) == invalid
    assert await refusal(google.list(filter="user_id=")) == invalid
    assert await refusal(google.list(page_token="x")) == invalid
    assert await refusal(google.events(session.name, page_token="WzFd")) == invalid
    assert await refusal(google.update(session.name, user_id="eve")) == invalid
    assert await refusal(google.update(session.name, update_mask="name")) == invalid
    assert (
        await refusal(google.append(session.name, EARLY, actions={"state_delta": {"k" * 10_001: 1}}))
        == invalid
    )


async def test_an_operation_is_answered_by_whoever_is_asked(settings: Settings, http: httpx.AsyncClient):
    path = f"/v1/projects/q/locations/l/reasoningEngines/{ENGINE}/sessions"
    created = (
        await http.post(path, json={"userId": "ann"}, params={"$alt": "json;enum-encoding=int"})
    ).json()

    async with vertex(settings) as elsewhere:
        again = (await elsewhere.get(f"/v1beta1/{created['name']}")).json()
        deleted = (await elsewhere.delete(f"/v1beta1/{created['response']['name']}")).json()
        gone = await elsewhere.get(f"/v1/{created['name']}")
        done = await elsewhere.get(f"/v1/{deleted['name']}")

    assert created["done"]
    assert again == created
    assert gone.status_code == 404
    assert done.json() == deleted
    assert deleted["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}


async def everything(http: httpx.AsyncClient) -> dict[str, Any]:
    """All that the wire reads of sessions."""
    found: dict[str, Any] = {}
    for engine in (ENGINE, "77", "88"):
        path = f"/v1/{PROJECT}/reasoningEngines/{engine}/sessions"
        token: str | None = ""
        while token is not None:
            page = await answered(http, path, pageSize=50, pageToken=token)
            token = page.get("nextPageToken")
            for one in page["sessions"]:
                events = await answered(http, f"/v1/{one['name']}/events", pageSize=1000)
                found[one["name"]] = (one, await answered(http, f"/v1/{one['name']}"), events)
    return found


async def answered(http: httpx.AsyncClient, path: str, **params: Any) -> dict[str, Any]:
    response = await http.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_rebuild_reads_the_same(settings: Settings, http: httpx.AsyncClient, google: Caller):
    await google.create("ann", display_name="Trip", session_state={"n": 1})
    before = await everything(http)

    await check_rebuild(settings)

    assert await everything(http) == before
