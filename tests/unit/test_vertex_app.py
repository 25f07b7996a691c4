"""The application of Agent Engine's routes beside our own: whose path is whose, and how errors
look.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.http.app import new_app
from runfold.http.route_rules import RULES, Rule, Whose
from runfold.vertex import RouteGroup, build_vertex_app, mount
from runfold.vertex.errors import Status, WireError, status_of
from runfold.vertex.generation import generation_routes
from runfold.vertex.memories import memory_routes
from runfold.vertex.messages import Message
from runfold.vertex.names import Name
from runfold.vertex.operations import finished_operation
from runfold.vertex.paging import requested_page, token_of
from runfold.vertex.requests import json_response, name_of, read_message
from runfold_schemas.errors import (
    EventTooLargeError,
    InvalidEventError,
    InvalidIdError,
    NotYetVisibleError,
    QuarantinedError,
    RejectedError,
    RunfoldError,
    SessionConflictError,
    SessionEndedError,
    SessionNotFoundError,
    UnavailableError,
)

ENGINE = "/v1beta1/projects/p/locations/l/reasoningEngines/1"
SHORT = "/v1/reasoningEngines/1"


OWN = dict.fromkeys(
    ("GET /v1/things", "POST /reasoningEngines/{engine}:fail"), Rule((frozenset(),), Whose.NOBODY)
)


class Thing(Message):
    proto = "test.Thing"

    some_text: str = ""
    count: int | None = None


async def create(request: Request) -> Response:
    thing = await read_message(request, Thing)
    return finished_operation(name_of(request).child("sessions", "2"), "createThing", thing, "fact")


async def created(name: Name, facts: Sequence[str]) -> Message:
    if name.id == "gone":
        raise SessionNotFoundError("gone")
    return Thing(some_text=f"{name.id} {facts}")


async def show(request: Request) -> Response:
    return json_response(
        {"name": str(name_of(request)), "size": requested_page(request, default=7, most=9).size}
    )


async def fail(request: Request) -> Response:
    kind = request.query_params["kind"]
    raise ZeroDivisionError("secret") if kind == "bug" else WireError("UNIMPLEMENTED", "not here")


async def ready() -> None:
    """Always."""


@pytest.fixture
async def client() -> Any:
    app = new_app("ours", ready=ready, rules=RULES | OWN)

    @app.get("/v1/things")
    async def things() -> dict[str, str]:
        return {"ours": "yes"}

    one = "/reasoningEngines/{engine}"
    routes = [
        Route(f"{one}/sessions", create, methods=["POST"]),
        Route(f"{one}/sessions/{{session}}", show, methods=["GET"]),
        Route(f"{one}:fail", fail, methods=["POST"]),
    ]
    mount(app, build_vertex_app(RouteGroup(routes, {"createThing": created}), rules=RULES | OWN))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
        yield client


def error_of(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["message"]
    assert error["details"] == []
    return error["code"], error["status"]


@pytest.mark.parametrize("path", [ENGINE, SHORT, "/v1/projects/p/locations/l/reasoningEngines/1"])
async def test_a_resource_is_there_under_every_prefix(client: httpx.AsyncClient, path: str):
    response = await client.get(f"{path}/sessions/a%7Eb?$alt=json&unknown=1")

    project = "p/locations/l" if "projects" in path else "runfold/locations/local"
    assert response.status_code == 200
    assert response.json()["name"] == f"projects/{project}/reasoningEngines/1/sessions/a~b"


async def test_a_client_that_sends_everything_to_the_root_is_told_what_it_lacks(client: httpx.AsyncClient):
    response = await client.post("/", json={})

    assert error_of(response) == (400, "INVALID_ARGUMENT")
    assert "project and a location" in response.json()["error"]["message"]
    assert (await client.get("/")).headers["location"] == "docs"


async def test_an_operation_is_done_and_can_be_asked_for_again(client: httpx.AsyncClient):
    first = (await client.post(f"{ENGINE}/sessions", json={"some_text": "x"})).json()
    again = (await client.get(f"/v1/{first['name']}")).json()

    assert first["done"] is again["done"] is True
    assert first["name"].startswith("projects/p/locations/l/reasoningEngines/1/sessions/2/operations/")
    assert first["response"] == {"@type": "type.googleapis.com/test.Thing", "someText": "x"}
    assert again["response"]["someText"] == "2 ['fact']"
    assert again["metadata"] == first["metadata"]


async def test_no_more_of_a_body_is_read_than_an_event_could_need(client: httpx.AsyncClient):
    async def chunks() -> AsyncIterator[bytes]:
        for number in range(40):
            assert number < 34, "what is too large is not read to its end"
            yield b" " * 1024 * 1024

    response = await client.post(f"{ENGINE}/sessions", content=chunks())

    assert error_of(response) == (400, "INVALID_ARGUMENT")


async def test_an_operation_on_what_is_gone_is_gone(client: httpx.AsyncClient):
    token = token_of("createThing", "1.000000")

    response = await client.get(f"{ENGINE}/sessions/gone/operations/{token}")

    assert error_of(response) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "id_",
    [
        "1",
        "!",
        token_of(),
        token_of("other", "1"),
        token_of("createThing", "x"),
        token_of(1, "1"),
        token_of("createThing", "nan"),
    ],
)
async def test_an_operation_that_never_was_is_not_found(client: httpx.AsyncClient, id_: str):
    assert error_of(await client.get(f"{ENGINE}/operations/{id_}")) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "id_",
    [
        token_of("purgeMemories", "0"),
        token_of("purgeMemories", "0", "x"),
        token_of("purgeMemories", "0", "9" * 5_000),
        token_of("purgeMemories", "0", "1", "2"),
        token_of("generateMemories", "0", "C/\ud800"),
        token_of("generateMemories", "0", "C"),
        token_of("generateMemories", "0", "X/m"),
    ],
)
async def test_an_operation_on_memories_that_never_was_is_not_found(id_: str):
    nowhere: Any = None
    app = new_app("ours", ready=ready)
    mount(app, build_vertex_app(memory_routes(nowhere), generation_routes(nowhere)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://any") as client:
        assert error_of(await client.get(f"{ENGINE}/operations/{id_}")) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1beta1/nothing"),
        ("GET", "/v1/projects/p"),
        ("GET", "/v1/reasoningEngines"),
        ("PUT", f"{ENGINE}/sessions"),
        ("GET", f"{ENGINE}/sessions"),
    ],
)
async def test_what_is_not_there_is_said_in_googles_form(client: httpx.AsyncClient, method: str, path: str):
    assert error_of(await client.request(method, path)) == (404, "NOT_FOUND")


async def test_our_own_paths_stay_ours(client: httpx.AsyncClient):
    assert (await client.get("/v1/things")).json() == {"ours": "yes"}
    for path in ("/v1/nothing", "/v1"):
        assert (await client.get(path)).headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"1", b'{"count": "x"}', b'{"count": NaN}', b'{"someText": 1}', b"\xff"]
)
async def test_a_body_that_is_wrong_is_an_invalid_argument(client: httpx.AsyncClient, body: bytes):
    headers = {"Content-Type": "application/json; charset=utf-8"}
    answer = await client.post(f"{ENGINE}/sessions", content=body, headers=headers)
    assert error_of(answer) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "text/json", ""])
async def test_a_body_of_another_media_type_is_refused(client: httpx.AsyncClient, media_type: str):
    headers = {"Content-Type": media_type} if media_type else {}
    answer = await client.post(f"{ENGINE}/sessions", content=b"{}", headers=headers)
    assert error_of(answer) == (415, "INVALID_ARGUMENT")


async def test_no_body_is_an_empty_message(client: httpx.AsyncClient):
    assert (await client.post(f"{ENGINE}/sessions")).status_code == 200


async def test_a_bug_tells_nothing(client: httpx.AsyncClient):
    response = await client.post(f"{ENGINE}:fail?kind=bug")

    assert error_of(response) == (500, "INTERNAL")
    assert "secret" not in response.text


async def test_an_error_of_the_protocol_has_its_status(client: httpx.AsyncClient):
    assert error_of(await client.post(f"{ENGINE}:fail?kind=wire")) == (501, "UNIMPLEMENTED")


@pytest.mark.parametrize(("size", "expected"), [("", 7), ("0", 7), ("3", 3), ("10", 9)])
async def test_the_size_of_a_page_has_bounds(client: httpx.AsyncClient, size: str, expected: int):
    for name in ("pageSize", "page_size"):
        response = await client.get(f"{ENGINE}/sessions/1", params={name: size})
        assert response.json()["size"] == expected


@pytest.mark.parametrize("size", ["-1", "x", "1.5"])
async def test_what_is_no_size_is_refused(client: httpx.AsyncClient, size: str):
    response = await client.get(f"{ENGINE}/sessions/1", params={"pageSize": size})

    assert error_of(response) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidEventError("x"), "INVALID_ARGUMENT"),
        (EventTooLargeError(size=2, limit=1), "INVALID_ARGUMENT"),
        (InvalidIdError("x", name="a", value="b"), "INVALID_ARGUMENT"),
        (SessionNotFoundError("x"), "NOT_FOUND"),
        (SessionConflictError("x"), "ALREADY_EXISTS"),
        (SessionEndedError("x"), "FAILED_PRECONDITION"),
        (RejectedError("x", offset=1, reason="y"), "ABORTED"),
        (UnavailableError("Kafka", reason="x"), "UNAVAILABLE"),
        (NotYetVisibleError("x", min_offset=1, timeout_seconds=1), "DEADLINE_EXCEEDED"),
        (QuarantinedError("run:x", reason="y"), "FAILED_PRECONDITION"),
        (RunfoldError("x"), "INTERNAL"),
    ],
)
def test_our_errors_have_googles_names(error: RunfoldError, status: Status):
    assert status_of(error) == status
