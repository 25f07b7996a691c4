"""Sessions over HTTP as any client meets them: what is asked, what is answered, and what is refused
with which field.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.http_sessions import created, notes
from tests.ingesting import is_ready, note
from tests.processes import until
from tests.querying import ready_api, served
from tests.session_verbs import Projector

from runfold import PlannerNote, Runfold
from runfold.api.app import build_app
from runfold.log.publisher import Outgoing
from runfold.settings import Settings

NDJSON = {"Accept": "application/x-ndjson"}
BIG = 2**80


@pytest.fixture(scope="module")
async def api(settings: Settings, projector: Projector) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


def check_problem(response: httpx.Response, status: int, name: str, **facts: Any) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["type"] == (f"urn:runfold:problem:{name}" if name else "about:blank")
    assert problem | facts == problem


async def test_a_session_is_created_and_found_where_the_answer_says(api, app):
    response = await api.post(
        "/v1/sessions",
        json={
            "app": app,
            "user": "ann",
            "session_id": f"{app}/1 ?",
            "state": {"k": BIG, "app:k": None, "temp:k": 1},
            "labels": {"team": "red"},
            "display_name": "A talk",
            "ttl_seconds": 7200,
        },
    )

    assert response.status_code == 201
    assert response.headers["location"] == f"/v1/sessions/{quote(app + '/1 ?', safe='')}"
    session = response.json()
    lifetime = moment(session["expires_at"]) - moment(session["created_at"])
    assert lifetime == timedelta(hours=2)
    assert session == {
        "session_id": f"{app}/1 ?",
        "app": app,
        "user": "ann",
        "run_id": session["run_id"],
        "status": "active",
        "created_at": session["created_at"],
        "updated_at": session["created_at"],
        "expires_at": session["expires_at"],
        "display_name": "A talk",
        "labels": {"team": "red"},
        "state": {"k": BIG, "app:k": None},
        "next_offset": 1,
        "last_offset": 0,
    }
    assert (await api.get(response.headers["location"])).json() == session
    taken = await api.post("/v1/sessions", json={"app": "b", "session_id": f"{app}/1 ?"})
    check_problem(taken, 409, "SessionConflict", session_id=f"{app}/1 ?")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "app"),
        ({"app": ""}, "app"),
        ({"app": "a", "colour": "red"}, "colour"),
        ({"app": "a", "session_id": ""}, "session_id"),
        ({"app": "a", "ttl_seconds": 0}, "ttl_seconds"),
        ({"app": "a", "ttl_seconds": 1e300}, "ttl_seconds"),
        ({"app": "a", "state": [1]}, "state"),
        ({"app": "a", "user": "u" * 501}, "user"),
        ({"app": "a", "display_name": "n" * 501}, "display_name"),
        ({"app": "a", "labels": {"k": 1}}, "labels.k"),
    ],
)
async def test_what_cannot_be_created_is_refused_with_its_field(api, body, field):
    response = await api.post("/v1/sessions", json=body)

    assert response.status_code == 422, response.text
    assert response.json()["field"] == field


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"app": "a", "state": {"k": NaN}}'])
async def test_a_body_that_is_no_session_is_refused(api, content):
    response = await api.post("/v1/sessions", content=content, headers={"Content-Type": "application/json"})

    assert response.status_code == 422
    assert (await api.post("/v1/sessions", content=b"{}")).status_code == 415


async def test_a_value_of_the_first_state_is_named_as_it_was_given(api):
    content, headers = b'{"app": "a", "state": {"k": 1e999}}', {"Content-Type": "application/json"}

    response = await api.post("/v1/sessions", content=content, headers=headers)

    assert (response.status_code, response.json()["field"]) == (422, "state.k")


async def test_a_creation_that_is_repeated_with_its_key_is_one_session(api, app, settings):
    headers = {"Idempotency-Key": f'"{app}"'}
    first = await api.post("/v1/sessions", json={"app": app, "state": {"k": 1}}, headers=headers)
    again = await api.post("/v1/sessions", json={"app": app, "state": {"k": 1}}, headers=headers)
    other = await api.post("/v1/sessions", json={"app": app}, headers=headers)
    async with served(build_app(settings)) as elsewhere:
        await until(lambda: is_ready(elsewhere), what="the service's connection to Kafka")
        there = await elsewhere.post("/v1/sessions", json={"app": app, "state": {"k": 1}}, headers=headers)

    assert (first.status_code, again.status_code, other.status_code, there.status_code) == (
        201,
        201,
        422,
        200,
    )
    assert first.json() == again.json() == there.json()
    assert len((await api.get("/v1/sessions", params={"app": app})).json()["sessions"]) == 1


async def test_every_route_says_of_an_unknown_session_that_it_is_unknown(api):
    for method, path, body in (
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("POST", "/end", None),
        ("POST", "/events", note()),
        ("GET", "/events", None),
    ):
        response = await api.request(method, f"/v1/sessions/nobody's{path}", json=body)
        check_problem(response, 404, "SessionNotFound", session_id="nobody's")


async def test_an_event_and_a_batch_are_appended_and_change_the_state(api, app):
    path = await created(api, app=app, user="ann")

    one = await api.post(f"{path}/events", json=note("1", state_delta={"k": BIG, "user:k": 1, "temp:t": 1}))
    batch = await api.post(f"{path}/events", json=[note("2", state_delta={"app:k": 2}), note("3")])
    lines = f"{json.dumps(note('4'))}\n\n{json.dumps(note('5'))}\n"
    lined = await api.post(f"{path}/events", content=lines, headers={"Content-Type": "application/x-ndjson"})

    session = (await api.get(path)).json()
    where = {"session_id": session["session_id"], "run_id": session["run_id"]}
    assert one.status_code == batch.status_code == lined.status_code == 201
    assert one.json() == {**where, "offset": 1, "event_id": one.json()["event_id"]}
    assert [each["offset"] for each in batch.json()["positions"]] == [2, 3]
    assert batch.json() == {**where, "positions": batch.json()["positions"]}
    assert [each["offset"] for each in lined.json()["positions"]] == [4, 5]
    assert session["state"] == {"k": BIG, "user:k": 1, "app:k": 2}
    assert (session["next_offset"], session["last_offset"]) == (6, 5)
    assert await notes(api, path) == ["1", "2", "3", "4", "5"]
    assert (await api.get(f"/v1/apps/{app}/state")).json() == {"state": {"app:k": 2}}
    assert (await api.get(f"/v1/apps/{app}/users/ann/state")).json() == {"state": {"user:k": 1}}


async def test_state_is_found_for_any_app_and_user(api, app):
    await created(api, app=f"{app}/b %", user="c/d ?", state={"user:k": 1, "app:k": 2})
    await created(api, app=f"{app}/b %", state={"user:k": 3})
    path = f"/v1/apps/{quote(app + '/b %', safe='')}"

    assert (await api.get(f"{path}/state")).json() == {"state": {"app:k": 2}}
    assert (await api.get(f"{path}/users/{quote('c/d ?', safe='')}/state")).json() == {"state": {"user:k": 1}}
    assert (await api.get(f"{path}/users//state")).json() == {"state": {"user:k": 3}}


async def test_an_event_that_cannot_be_is_refused_with_its_field_and_place(api, app):
    path = await created(api, app=app)
    bad: list[tuple[Any, str, dict[str, Any]]] = [
        (note(turn_id="t" * 201), "turn_id", {}),
        ({"type": "nonsense", "data": {}}, "type", {}),
        ([note(), {"type": "planner_note", "data": {}}], "data.note", {"index": 1}),
        ([note(expected_offset=0), note()], "expected_offset", {"index": 0}),
        ([note(), {"type": "run_completed", "data": {}}], "type", {"index": 1}),
        ({"type": "phase_changed", "data": {"phase": "planning"}}, "type", {}),
        ({"type": "run_opened", "data": {"agent_id": "a", "log_id": "l"}}, "type", {}),
        ({"type": "run_canceled", "data": {}}, "type", {}),
        (note(state_delta=[1]), "state_delta", {}),
    ]
    for body, field, place in bad:
        response = await api.post(f"{path}/events", json=body)
        assert response.status_code == 422, response.text
        assert response.json() | {"field": field, **place} == response.json()
    assert (await api.get(path)).json()["next_offset"] == 1


async def test_an_expectation_that_lost_is_a_conflict_with_the_offset_of_the_event(api, app):
    path = await created(api, app=app)
    assert (await api.post(f"{path}/events", json=note(expected_offset=0))).status_code == 201

    lost = await api.post(f"{path}/events", json=note(expected_offset=0))

    check_problem(lost, 409, "Rejected", offset=2)
    assert (await api.get(path)).json()["last_offset"] == 1


async def test_an_event_of_another_run_is_rejected(api, app):
    path = await created(api, app=app)

    check_problem(await api.post(f"{path}/events", json=note(run_id="r")), 409, "Rejected", run_id="r")


async def test_events_that_are_repeated_with_their_key_count_once(api, app, settings):
    path = await created(api, app=app)
    headers = {"Idempotency-Key": "k"}
    body = [note("a", state_delta={"app:k": 1}), note("b")]

    first = await api.post(f"{path}/events", json=body, headers=headers)
    again = await api.post(f"{path}/events", json=body, headers=headers)
    async with served(build_app(settings)) as elsewhere:
        await until(lambda: is_ready(elsewhere), what="the service's connection to Kafka")
        there = await elsewhere.post(f"{path}/events", json=body, headers=headers)

    assert first.json() == again.json()
    assert there.status_code == 201
    assert [each["event_id"] for each in there.json()["positions"]] == [
        each["event_id"] for each in first.json()["positions"]
    ]
    assert await notes(api, path) == ["a", "b"]


async def test_a_session_comes_with_its_events_where_they_are_included(api, app, runfold):
    path = await created(api, app=app)
    body = note("é", labels={"k": "v"}, state_delta={"f": 1e22, "i": BIG})
    await api.post(f"{path}/events", json=[body, note("2")])

    plain = (await api.get(path)).json()
    whole = (await api.get(path, params={"include": "events"})).json()
    newest = (await api.get(path, params={"include": "events", "newest": 1})).json()

    events = whole.pop("events")
    assert whole == plain
    assert [(one["offset"], one["outcome"], one["event"]["data"]["note"]) for one in events] == [
        (1, "accepted", "é"),
        (2, "accepted", "2"),
    ]
    assert [one["offset"] for one in newest["events"]] == [2]
    lines = (await api.get(path, params={"include": "events"}, headers=NDJSON)).content.split(b"\n")
    run = await runfold.get_run(plain["run_id"])
    logged = [one.record.value async for one in run.history(first_offset=1)]
    assert json.loads(lines[0]) == plain
    assert [line.partition(b',"event":')[2] for line in lines[1:3]] == [value + b"}" for value in logged]
    assert lines[3:] == [b""]


async def test_an_event_that_its_producer_broke_into_lines_stays_on_one_line(api, app, runfold):
    path = await created(api, app=app)
    run = await runfold.get_run((await api.get(path)).json()["run_id"])
    event = run.event(PlannerNote(note="a\nb"))
    value = json.dumps(event.model_dump(mode="json", exclude_unset=True), indent=1).encode()
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    await run.publish(PlannerNote(note="which wakes the projector"))
    await send_raw(runfold, topic, run.run_id, value)

    body = (await api.get(path, params={"include": "events"}, headers=NDJSON)).content

    last = body.removesuffix(b"\n").split(b"\n")[-1]
    assert json.loads(last)["event"] == json.loads(value)
    assert (await api.get(path, params={"include": "events"})).json()["events"][-1]["event"] == json.loads(
        value
    )


async def test_events_are_paged_to_their_end(api, app):
    path = await created(api, app=app)
    await api.post(f"{path}/events", json=[note(f"{number}") for number in range(7)])

    first = (await api.get(f"{path}/events", params={"limit": 3})).json()
    second = (
        await api.get(f"{path}/events", params={"limit": 3, "first_offset": first["next_offset"]})
    ).json()
    third = (
        await api.get(f"{path}/events", params={"limit": 3, "first_offset": second["next_offset"]})
    ).json()

    pages = [[one["offset"] for one in page["events"]] for page in (first, second, third)]
    assert pages == [[1, 2, 3], [4, 5, 6], [7]]
    assert [page["next_offset"] for page in (first, second, third)] == [4, 7, 8]
    assert {page["end_offset"] for page in (first, second, third)} == {8}
    beyond = (await api.get(f"{path}/events", params={"first_offset": 50})).json()
    assert (beyond["events"], beyond["next_offset"]) == ([], 50)
    assert await notes(api, path, first_offset=2, end_offset=4) == ["1", "2"]
    assert await notes(api, path, newest=2) == ["5", "6"]


async def test_a_page_of_large_events_ends_by_its_size(api, app):
    path = await created(api, app=app)
    for number in range(3):
        await api.post(f"{path}/events", json=note(f"{number}" * 3_000_000))

    first = (await api.get(f"{path}/events")).json()
    second = (await api.get(f"{path}/events", params={"first_offset": first["next_offset"]})).json()

    assert [one["offset"] for one in first["events"] + second["events"]] == [1, 2, 3]
    assert (len(first["events"]), second["next_offset"]) == (2, 4)
    whole = (await api.get(path, params={"include": "events"})).json()
    assert [one["offset"] for one in whole["events"]] == [1, 2, 3]


async def test_events_are_restricted_by_time_and_kind(api, app):
    path = await created(api, app=app)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    times = [(noon + timedelta(seconds=number)).isoformat() for number in range(3)]
    await api.post(f"{path}/events", json=[note(each, timestamp=each) for each in times])
    user = {"type": "user_message", "data": {"message": "hi"}, "timestamp": times[0]}
    await api.post(f"{path}/events", json=user)

    assert await notes(api, path, since=times[1]) == times[1:]
    assert await notes(api, path, type="planner_note", newest=1) == times[2:]
    opened = await api.get(f"{path}/events", params={"type": ["run_opened", "user_message"]})
    assert [one["offset"] for one in opened.json()["events"]] == [0, 4]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("?newest=1", "include"),
        ("?include=all", "include"),
        ("?first_ofset=1", "first_ofset"),
        ("/events?type=nonsense", "type"),
        ("/events?since=2026-01-01T00:00:00", "since"),
        ("/events?limit=1001", "limit"),
        ("/events?newest=5&limit=2", "limit"),
        ("/events?first_offset=-1", "first_offset"),
    ],
)
async def test_a_wrong_parameter_is_refused_with_its_name(api, app, path, field):
    location = await created(api, app=app)

    response = await api.get(f"{location}{path}")

    assert (response.status_code, response.json()["field"]) == (422, field)


async def test_sessions_are_listed_by_app_user_and_label(api, app):
    paths = [await created(api, app=app, user=f"u{n}", labels={"a": "b:c", "n": f"{n}"}) for n in range(3)]

    async def listed(**parameters: Any) -> list[str]:
        sessions = (await api.get("/v1/sessions", params={"app": app, **parameters})).json()["sessions"]
        return [f"/v1/sessions/{one['session_id']}" for one in sessions]

    assert await listed() == paths[::-1] == await listed(label="a:b:c")
    assert await listed(user="u1") == [paths[1]] == await listed(label=["n:1", "a:b:c"])
    first = (await api.get("/v1/sessions", params={"app": app, "limit": 2})).json()
    assert await listed(limit=2, cursor=first["next_cursor"]) == [paths[0]]
    for parameters, field in (
        ({"label": "x"}, "label"),
        ({"cursor": "!"}, "cursor"),
        ({"limit": 0}, "limit"),
    ):
        response = await api.get("/v1/sessions", params=parameters)
        assert (response.status_code, response.json()["field"]) == (422, field)


async def test_a_session_is_changed_and_ended(api, app):
    path = await created(api, app=app, labels={"a": "1"})

    changed = await api.patch(path, json={"labels": {"b": "2"}, "display_name": "x", "ttl_seconds": 7200.5})
    ended = await api.post(f"{path}/end")

    assert (changed.status_code, changed.json()["labels"]) == (200, {"a": "1", "b": "2"})
    assert changed.json()["updated_at"] > changed.json()["created_at"]
    assert (ended.status_code, ended.json()["status"]) == (200, "ended")
    for refused in (
        api.post(f"{path}/end"),
        api.patch(path, json={"display_name": "y"}),
        api.post(f"{path}/events", json=note()),
        api.post(f"{path}/events", json=[note(), note()]),
    ):
        check_problem(await refused, 409, "SessionEnded")
    assert (await api.patch(path, json={"state": {}})).json()["field"] == "state"
    assert (await api.patch(path, json={"display_name": "n" * 501})).json()["field"] == "display_name"
    assert (await api.get(path)).json()["display_name"] == "x"


async def test_a_deleted_session_hides_its_events_and_its_runs_at_once(api, app, runfold):
    path = await created(api, app=app, session_id=app, state={"k": 1, "user:k": 1})
    run_id = (await api.get(path)).json()["run_id"]
    other = await runfold.open_run(agent_id="helper", session_id=app)
    await until(lambda: has_runs(api, path, 2), what="the session's second run")

    assert (await api.delete(path)).status_code == 204

    for gone in (path, f"{path}/events", f"/v1/runs/{run_id}", f"/v1/runs/{run_id}/events"):
        assert (await api.get(gone)).status_code == 404
    assert (await api.get(f"/v1/runs/{other.run_id}")).status_code == 404
    assert await has_runs(api, path, 0)
    assert (await api.get("/v1/sessions", params={"app": app})).json()["sessions"] == []
    check_problem(await api.delete(path), 404, "SessionNotFound")
    await created(api, app=app, session_id=app)
    again = (await api.get(path, params={"include": "events"})).json()
    assert (again["state"], again["next_offset"], again["events"]) == ({"user:k": 1}, 1, [])


async def test_the_api_document_describes_the_routes(api):
    paths = (await api.get("/openapi.json")).json()["paths"]

    described = {
        (method, path)
        for path, methods in paths.items()
        for method in methods
        if path.startswith(("/v1/sessions", "/v1/apps"))
    }
    assert len(described) == 14
    for method, path in described:
        assert {"503", "422"} <= paths[path][method]["responses"].keys(), (method, path)


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(api, app, projector):
    gone = await created(api, app=app, user="bob", state={"app:x": 1, "user:k": 1})
    await api.delete(f"/v1/apps/{app}/users/bob/state")
    await api.delete(f"/v1/apps/{app}/state", params={"key": "app:x"})
    await api.delete(gone)
    path = await created(api, app=app, user="ann", state={"app:k": 1, "user:k": BIG, "k": None})
    await api.post(f"{path}/events", json=[note("a"), note("b", state_delta={"app:k": 2})])
    assert await projector.differences() == []  # all is folded: a ledger lists the runs that are
    before = await everything(api)
    assert path in before

    await projector.rebuild()

    async def is_projected() -> bool:
        return (await api.get("/v1/sessions")).status_code == 200

    await until(is_projected, what="the rebuild")
    assert await everything(api) == before
    assert await projector.differences() == []


async def everything(api: httpx.AsyncClient) -> dict[str, bytes]:
    """What every route answers of every session."""
    answers: dict[str, bytes] = {}
    page = (await api.get("/v1/sessions", params={"limit": 1000})).json()["sessions"]
    for session in page:
        path = f"/v1/sessions/{quote(session['session_id'], safe='')}"
        user = quote(session["user"], safe="")
        app = f"/v1/apps/{quote(session['app'], safe='')}"
        paths = (
            *(path, f"{path}?include=events", f"{path}/events", f"{path}/ledger"),
            *(f"/v1/runs/{session['run_id']}", f"{app}/state", f"{app}/users/{user}/state"),
        )
        for each, response in zip(paths, await asyncio.gather(*map(api.get, paths)), strict=True):
            assert response.status_code == 200, response.text
            answers[each] = response.content
    return answers


async def has_runs(api: httpx.AsyncClient, path: str, count: int) -> bool:
    return len((await api.get(f"{path}/runs")).json()["runs"]) == count


async def send_raw(runfold: Runfold, topic: str, run_id: str, value: bytes) -> None:
    record = Outgoing(key=run_id.encode(), value=value, headers=[])
    await runfold.connection.publisher.wait(await runfold.connection.publisher.send(topic, record))


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
