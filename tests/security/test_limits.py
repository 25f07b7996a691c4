"""Keys that are limited to agents or users: they see their own things, and of the things of others
not even whether they exist.
"""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.principals import As
from tests.processes import until

ANN, BOB = {"user": "ann"}, {"user": "bob"}


@dataclass
class World:
    """A session, a run in it and a memory: those of ann with the app "other", and of bob with the
    app "desk".
    """

    everything: As
    name: str = field(default_factory=lambda: uuid4().hex[:8])

    async def make(self) -> None:
        make = self.everything.made
        for bank in ("desk", self.bank):
            if (await self.everything("GET", f"/v1/banks/{bank}")).status_code != 200:
                await make("POST", "/v1/banks", {"bank_id": bank})
        for app, user in (("other", "ann"), ("desk", "bob")):
            session = f"{user}-{self.name}"
            created = {"session_id": session, "app": app, "user": user, "state": {"user:secret": user}}
            await make("POST", "/v1/sessions", created)
            run = {"run_id": f"run-{session}", "agent_id": app, "session_id": session}
            await make("POST", "/v1/runs", run)
            said = {"type": "user_message", "data": {"message": f"a secret of {user}"}}
            await make("POST", f"/v1/runs/run-{session}/events", said)
            await make("POST", f"/v1/sessions/{session}/events", said)
            for bank in ("desk", self.bank):
                fact = {"memory_id": session, "fact": f"a secret of {user}", "scope": {"user": user}}
                await make("POST", f"/v1/banks/{bank}/memories", fact)
        await make("POST", "/v1/runs", {"run_id": f"alone-{self.name}", "agent_id": "other"})

    @property
    def bank(self) -> str:
        return f"bank-{self.name}"


@pytest.fixture(scope="module")
async def world(everything: As) -> World:
    world = World(everything)
    await world.make()
    return world


RUN = "/v1/runs/{run}"
SESSION = "/v1/sessions/{session}"
MEMORY = "/v1/banks/desk/memories/{session}"

OF_A_RUN: list[tuple[str, str, Any]] = [
    ("GET", RUN, None),
    ("GET", f"{RUN}/events", None),
    ("GET", f"{RUN}/ledger", None),
    ("POST", f"{RUN}/ledger", {"messages": []}),
    ("GET", f"{RUN}/follow", None),
    ("GET", f"{RUN}/blobs/{'0' * 64}", None),
    ("POST", f"{RUN}/events", {"type": "user_message", "data": {"message": "hello"}}),
    ("POST", f"{RUN}/responses", {"choices": []}),
    ("POST", f"{RUN}/repair", None),
    ("POST", f"{RUN}/status", {"action": "cancel"}),
]
OF_A_SESSION: list[tuple[str, str, Any]] = [
    ("GET", SESSION, None),
    ("GET", f"{SESSION}/events", None),
    ("GET", f"{SESSION}/ledger", None),
    ("GET", f"{SESSION}/runs", None),
    ("PATCH", SESSION, {"labels": {"a": "b"}}),
    ("POST", f"{SESSION}/events", {"type": "user_message", "data": {"message": "hello"}}),
    ("POST", f"{SESSION}/end", None),
    ("DELETE", SESSION, None),
    ("POST", "/v1/banks/desk/memories/generate", {"session": {"session_id": "{session}"}}),
    ("POST", "/v1/runs", {"agent_id": "desk", "session_id": "{session}"}),
]
OF_A_MEMORY: list[tuple[str, str, Any]] = [
    ("GET", MEMORY, None),
    ("PATCH", MEMORY, {"fact": "changed"}),
    ("GET", f"{MEMORY}/revisions", None),
    ("GET", f"{MEMORY}/revisions/00000000-0000-7000-8000-000000000000", None),
    ("POST", f"{MEMORY}/rollback", {"revision_id": "00000000-0000-7000-8000-000000000000"}),
    ("DELETE", MEMORY, None),
]


def filled(value: Any, **ids: str) -> Any:
    if isinstance(value, dict):
        return {name: filled(each, **ids) for name, each in value.items()}
    if not isinstance(value, str):
        return value
    for name, id_ in ids.items():
        value = value.replace(f"{{{name}}}", id_)
    return value


@pytest.mark.parametrize(
    "request_", [*OF_A_RUN, *OF_A_SESSION, *OF_A_MEMORY], ids=lambda request: f"{request[0]} {request[1]}"
)
async def test_a_thing_of_others_is_answered_as_one_that_does_not_exist(
    client: httpx.AsyncClient, world: World, request_: tuple[str, str, Any]
):
    method, path, body = request_
    bob = As(client, "desk-bob")
    answers = []

    for session in (f"ann-{world.name}", f"nobody-{world.name}"):
        ids = {"session": session, "run": f"run-{session}"}
        response = await bob(method, filled(path, **ids), filled(body, **ids))
        answers.append((response.status_code, response.text.replace(session, "?")))

    assert answers[0] == answers[1]
    assert answers[0][0] == 404


@pytest.mark.parametrize(
    "request_",
    [request for request in (*OF_A_RUN, *OF_A_SESSION, *OF_A_MEMORY) if request[0] == "GET"],
    ids=lambda request: f"{request[0]} {request[1]}",
)
async def test_own_things_are_answered(client: httpx.AsyncClient, world: World, request_):
    _, path, _ = request_
    session = f"bob-{world.name}"
    path = filled(path, session=session, run=f"run-{session}")

    async with client.stream("GET", path, headers={"Authorization": "Bearer desk-bob"}) as response:
        expected = {404} if "/blobs/" in path or "/revisions/" in path else {200}
        assert response.status_code in expected


async def test_lists_show_own_things_only(client: httpx.AsyncClient, world: World):
    desk, bob = As(client, "desk"), As(client, "desk-bob")
    await until(lambda: has_runs(world), what="the projector")

    runs = (await desk.made("GET", "/v1/runs?limit=500"))["runs"]
    sessions = (await bob.made("GET", "/v1/sessions?limit=500"))["sessions"]
    banks = (await desk.made("GET", "/v1/banks?limit=500"))["banks"]
    own = (await bob.made("GET", "/v1/banks/desk/memories?scope=user:bob"))["memories"]
    in_session = (await bob.made("GET", f"/v1/runs?session_id=bob-{world.name}"))["runs"]

    assert {run["agent_id"] for run in runs} == {"desk"}
    assert {(session["app"], session["user"]) for session in sessions} == {("desk", "bob")}
    assert [bank["bank_id"] for bank in banks] == ["desk"]
    assert {memory["scope"]["user"] for memory in own} == {"bob"}
    assert {run["session_id"] for run in in_session} == {f"bob-{world.name}"}


async def has_runs(world: World) -> bool:
    runs = (await world.everything.made("GET", "/v1/runs?limit=500"))["runs"]
    return len([run for run in runs if world.name in run["run_id"]]) >= 3


@pytest.mark.parametrize(
    "outside",
    [
        ("GET", "/v1/runs?agent_id=other", None, "agents"),
        ("GET", "/v1/sessions?app=other", None, "agents"),
        ("GET", "/v1/sessions?user=ann", None, "users"),
        ("GET", "/v1/apps/other/state", None, "agents"),
        ("GET", "/v1/apps/desk/users/ann/state", None, "users"),
        ("GET", "/v1/apps/desk/users//state", None, "users"),
        ("GET", "/v1/banks/other", None, "agents"),
        ("GET", "/v1/banks/desk/memories", None, "users"),
        ("GET", "/v1/banks/desk/memories?scope=user:ann", None, "users"),
        ("GET", "/v1/banks/desk/memories?scope=user:bob&scope=user_id:ann", None, "users"),
        ("GET", "/v1/banks/desk/memories?scope=team:a", None, "users"),
        ("GET", "/v1/banks/other/memories?scope=user:bob", None, "agents"),
        ("POST", "/v1/banks/desk/memories/retrieve", {"scope": ANN}, "users"),
        ("POST", "/v1/banks/desk/memories/retrieve", {"scope": ANN, "query": "a"}, "users"),
        ("POST", "/v1/banks/desk/memories/purge", {"force": True}, "users"),
        ("POST", "/v1/banks/desk/memories/purge", {"scope": ANN, "force": True}, "users"),
        ("POST", "/v1/banks/desk/memories", {"fact": "a", "scope": ANN}, "users"),
        ("POST", "/v1/banks/desk/memories/generate", {"scope": ANN, "facts": [{"fact": "a"}]}, "users"),
        ("POST", "/v1/banks/desk/memories/ingest", {"scope": ANN, "stream_id": "a"}, "users"),
        ("POST", "/v1/sessions", {"app": "other", "user": "bob"}, "agents"),
        ("POST", "/v1/sessions", {"app": "desk", "user": "ann"}, "users"),
        ("POST", "/v1/sessions", {"app": "desk", "user": "bob", "state": {"app:a": 1}}, "users"),
        ("POST", "/v1/runs", {"agent_id": "other"}, "users"),
        ("POST", "/v1/runs", {"agent_id": "desk"}, "users"),
        ("POST", "/v1/banks", {"bank_id": "desk"}, "users"),
        ("PATCH", "/v1/banks/desk", {"agents": ["other"]}, "users"),
        ("DELETE", "/v1/banks/desk?force=true", None, "users"),
    ],
)
async def test_what_a_request_names_has_to_be_within_the_limits(
    client: httpx.AsyncClient, world: World, outside: tuple[str, str, Any, str]
):
    method, path, body, limit = outside
    response = await As(client, "desk-bob")(method, path, body)

    assert response.status_code == 403, response.text
    assert response.json()["type"] == "urn:runfold:problem:OutsideLimits"
    assert response.json()["limit"] == limit
    assert "limited to other" in response.json()["detail"]


async def test_a_key_for_users_names_the_session_whose_runs_it_lists(client: httpx.AsyncClient, world: World):
    response = await As(client, "bob")("GET", "/v1/runs")
    of_ann = await As(client, "bob")("GET", f"/v1/runs?session_id=ann-{world.name}")

    assert response.status_code == 403
    assert "session_id" in response.json()["detail"]
    assert of_ann.status_code == 404


async def test_a_run_that_is_taken_does_not_name_its_owner(client: httpx.AsyncClient, world: World):
    body = {"run_id": f"alone-{world.name}", "agent_id": "desk"}

    response = await As(client, "desk")("POST", "/v1/runs", body)

    assert response.status_code == 409
    assert "other" not in response.json().values()
    assert "'other'" not in response.text


async def test_the_same_idempotency_key_of_two_users_makes_two_sessions_and_memories(
    client: httpx.AsyncClient, world: World
):
    key = {"Idempotency-Key": f"order-{world.name}"}
    made = []

    for user in ("ann", "bob"):
        session = await As(client, user)("POST", "/v1/sessions", {"app": "desk", "user": user}, key)
        memory = {"fact": "a fact", "scope": {"user": user}}
        fact = await As(client, user)("POST", "/v1/banks/desk/memories", memory, key)
        assert (session.status_code, fact.status_code) == (201, 201), fact.text
        made.append((session.json()["user"], fact.json()["scope"]["user"]))
        again = await As(client, user)("POST", "/v1/sessions", {"app": "desk", "user": user}, key)
        assert again.json()["session_id"] == session.json()["session_id"]

    assert made == [("ann", "ann"), ("bob", "bob")]


async def test_an_answer_under_an_idempotency_key_is_not_repeated_to_another_key(
    client: httpx.AsyncClient, world: World
):
    key = {"Idempotency-Key": f"shared-{world.name}"}
    body = {"app": "desk", "user": "ann", "state": {"secret": "of ann"}}
    first = await As(client, "everything")(
        "POST", "/v1/sessions", body | {"session_id": f"new-{world.name}"}, key
    )
    second = await As(client, "bob")("POST", "/v1/sessions", body | {"session_id": f"new-{world.name}"}, key)

    assert first.status_code == 201
    assert second.status_code == 403


async def test_a_key_for_agents_uses_memories_of_its_agents_in_any_bank(
    client: httpx.AsyncClient, world: World
):
    scope = {"app_name": "desk", "user_id": "ann"}
    desk, path = As(client, "desk"), f"/v1/banks/{world.bank}/memories"

    made = await desk("POST", path, {"fact": "a fact", "scope": scope})
    found = await desk("POST", f"{path}/retrieve", {"scope": scope})
    refused = await desk("POST", f"{path}/retrieve", {"scope": {"app_name": "other", "user_id": "ann"}})

    assert made.status_code == 201, made.text
    assert len(found.json()["retrieved"]) == 1
    assert refused.status_code == 403


async def test_the_engines_of_vertex_are_agents(client: httpx.AsyncClient, world: World):
    desk, make = As(client, "desk"), As(client, "everything").made
    engine = (await make("POST", "/v1beta1/reasoningEngines", {}))["response"]["name"]
    path = "/v1beta1/reasoningEngines/" + engine.rpartition("/")[2]
    made = await make("POST", f"{path}/sessions", {"userId": "ann"})
    direct = {"directMemories": [{"fact": "a"}]}
    session = f"{path}/sessions/" + made["response"]["name"].rpartition("/")[2]

    refused = [
        await desk("GET", path),
        await desk("POST", f"{path}/sessions", {"userId": "bob"}),
        await desk("GET", f"{path}/sessions"),
        await desk("POST", f"{path}/memories", {"fact": "a", "scope": BOB}),
        await desk("POST", f"{path}/memories:retrieve", {"scope": BOB}),
        await desk(
            "POST",
            f"{path}/memories:generate",
            {"scope": BOB, "directMemoriesSource": direct},
        ),
        await desk("DELETE", path),
    ]
    hidden = [await desk("GET", session), await desk("DELETE", session)]
    listed = await desk.made("GET", "/v1beta1/reasoningEngines")

    assert {answer.json()["error"]["status"] for answer in refused} == {"PERMISSION_DENIED"}
    assert {answer.json()["error"]["status"] for answer in hidden} == {"NOT_FOUND"}
    assert listed == {"reasoningEngines": []}


@pytest.mark.parametrize("name", ["bob", "desk"])
async def test_no_key_claims_the_runs_of_others_by_creating_their_session(
    client: httpx.AsyncClient, world: World, name: str
):
    session = f"never-created-{name}-{world.name}"
    run = {"run_id": f"run-{session}", "agent_id": "other", "session_id": session}
    await world.everything.made("POST", "/v1/runs", run)
    await until(lambda: has_run_in(world, session), what="the projector")
    app, user = ("other", "bob") if name == "bob" else ("desk", "")

    created = await As(client, name)(
        "POST", "/v1/sessions", {"app": app, "user": user, "session_id": session}
    )
    read = await As(client, name)("GET", f"/v1/runs/run-{session}")

    assert (created.status_code, read.status_code) == (409, 404)
    await world.everything.made("POST", "/v1/sessions", {"app": "other", "session_id": session})


async def has_run_in(world: World, session: str) -> bool:
    return bool((await world.everything.made("GET", f"/v1/runs?session_id={session}"))["runs"])


@pytest.mark.parametrize("name", ["bob", "desk"])
async def test_a_limited_key_plants_no_run_into_a_session_that_comes_later(
    client: httpx.AsyncClient, world: World, name: str
):
    session = f"later-{name}-{world.name}"

    opened = await As(client, name)("POST", "/v1/runs", {"agent_id": "desk", "session_id": session})

    assert opened.status_code == 404
    assert opened.json()["type"] == "urn:runfold:problem:SessionNotFound"


async def test_the_pages_of_banks_name_no_bank_of_others(client: httpx.AsyncClient, world: World):
    page = await As(client, "desk").made("GET", "/v1/banks?limit=1")

    assert [bank["bank_id"] for bank in page["banks"]] == ["desk"]
    assert page.get("next_cursor") is None


@pytest.mark.parametrize("engine", ["1", "2"])
async def test_contents_for_an_engine_of_others_do_not_tell_whether_it_exists(
    client: httpx.AsyncClient, world: World, engine: str
):
    if engine == "1" and (await world.everything("GET", "/v1/banks/1")).status_code != 200:
        await world.everything.made("POST", "/v1/banks", {"bank_id": "1"})
    body = {"scope": BOB, "streamId": "s", "directContentsSource": {"events": []}}

    answer = await As(client, "desk")(
        "POST", f"/v1beta1/reasoningEngines/{engine}/memories:ingestEvents", body
    )

    assert answer.status_code == 403, answer.text
