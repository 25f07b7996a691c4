"""Tenants times tenants: nothing of one tenant is ever in an answer to another one.

All tenants have runs, sessions, banks and memories of the same ids, and further ones of their own.
Each text has the mark of its tenant. Hypothesis makes requests to every route, with ids, cursors
and names that other tenants were answered.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import hypothesis
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from tests.api_tenants import name_of, open_tenants, registry, served_tenants, tenants_app
from tests.ingesting import is_ready
from tests.killing import ROUNDS
from tests.media import png
from tests.principals import As
from tests.processes import until
from tests.remembering import ScriptedModel
from tests.seeds import session_seed
from tests.session_stores import stored

from runfold.generation.model import Found
from runfold.http import idempotency
from runfold.http.route_rules import RULES, Whose
from runfold.settings import Settings
from runfold.tenants.registry import Tenants

# The service answers in another thread while a strategy draws, and takes random numbers.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")

TENANTS = ("own", "a", "b")

PARTITIONS = 2

EXAMPLES = 2 * ROUNDS
"""Requests to each route by each tenant."""

ROUTES = [name for name, rule in RULES.items() if not rule.is_public and rule.whose is not Whose.INSTALLATION]

READING_FIRST = sorted(ROUTES, key=lambda name: not name.startswith("GET"))

ENGINE = "77"

SHARED: Mapping[str, Sequence[str]] = {
    "run_id": ("r-1", "r-ended"),
    "session_id": ("s-1",),
    "bank_id": (ENGINE,),
    "engine": (ENGINE,),
    "memory_id": ("m-1",),
    "memory": ("m-1",),
    "app": ("desk", ENGINE),
    "user": ("ann",),
    "session": ("s-2",),
    "entry_id": ("run:r-1",),
    "revision_id": (),
    "revision": (),
    "operation": (),
    "sha256": ("0" * 64,),
    "key_id": ("0123456789abcdef",),
}
"""Ids of things that every tenant has, or none, by the names of parameters."""

QUERIES: Mapping[str, Sequence[str]] = {
    "GET /v1/runs": ("agent_id=desk", "session_id=s-1", "label=mark:a", "status=completed", "limit=1"),
    "GET /v1/runs/{run_id}": ("source=log", "min_offset=1"),
    "GET /v1/runs/{run_id}/events": ("source=log", "outcome=all", "first_offset=1", "min_offset=2"),
    "GET /v1/runs/{run_id}/follow": ("until_end=true", "first_offset=0"),
    "GET /v1/runs/{run_id}/ledger": ("source=log", "format=openai-chat", "validate=strict"),
    "GET /v1/sessions": ("app=desk", "user=ann", "limit=1"),
    "GET /v1/sessions/{session_id}": ("include=events",),
    "GET /v1/sessions/{session_id}/events": ("newest=5",),
    "GET /v1/sessions/{session_id}/runs": ("limit=1",),
    "GET /v1/banks": ("limit=1",),
    "GET /v1/banks/{bank_id}/memories": ("limit=1", "scope=user:ann", "order=updated_at"),
    "GET /v1/banks/{bank_id}/memories/{memory_id}/revisions": ("limit=1",),
    "DELETE /v1/banks/{bank_id}": ("force=true",),
    "GET /reasoningEngines": ("pageSize=1",),
    "GET /reasoningEngines/{engine}/sessions": ("pageSize=1", 'filter=user_id="ann"'),
    "GET /reasoningEngines/{engine}/memories": ("pageSize=1",),
    "DELETE /reasoningEngines/{engine}": ("force=true",),
}

SAID = {"type": "user_message", "data": {"message": "hello"}}

FORGED = [
    {"type": "state_changed", "data": {}, "state_delta": {"app:note": "x", "user:note": "y"}},
    {
        "type": "generation_requested",
        "data": {
            "bank_id": ENGINE,
            "scope": {"user": "ann"},
            "first_offset": 0,
            "end_offset": 3,
            "reason": "request",
            "options": {"run_id": "r-1"},
        },
    },
    {"type": "memory_deleted", "data": {"bank_id": ENGINE, "memory_id": "m-1"}},
]

BODIES: Mapping[str, Sequence[Any]] = {
    "POST /v1/runs": (
        {"agent_id": "desk", "run_id": "r-1"},
        {"agent_id": "desk", "session_id": "s-1"},
        {"agent_id": ENGINE, "run_id": "r-ended"},
    ),
    "POST /v1/runs/{run_id}/events": (SAID, [SAID, SAID], *FORGED),
    "POST /v1/runs/{run_id}/responses": ({"choices": []},),
    "POST /v1/runs/{run_id}/status": ({"action": "pause"},),
    "POST /v1/runs/{run_id}/ledger": ({"messages": []},),
    "POST /v1/sessions": (
        {"app": "desk", "user": "ann", "session_id": "s-1"},
        {"app": "desk", "user": "ann"},
    ),
    "PATCH /v1/sessions/{session_id}": ({"labels": {"seen": "yes"}},),
    "POST /v1/sessions/{session_id}/events": (SAID, FORGED[0]),
    "POST /v1/banks": ({"bank_id": ENGINE}, {"bank_id": "78"}),
    "PATCH /v1/banks/{bank_id}": ({"agents": ["desk"]},),
    "POST /v1/banks/{bank_id}/memories": ({"memory_id": "m-1", "fact": "x", "scope": {"user": "ann"}},),
    "PATCH /v1/banks/{bank_id}/memories/{memory_id}": ({"fact": "changed"},),
    "POST /v1/banks/{bank_id}/memories/generate": (
        {"scope": {"user": "ann"}, "facts": [{"fact": "likes tea"}]},
        {"scope": {"user": "ann"}, "session": {"session_id": "s-1"}},
    ),
    "POST /v1/banks/{bank_id}/memories/ingest": (
        {
            "scope": {"user": "ann"},
            "stream_id": "stream",
            "contents": [{"content": {"role": "user", "parts": [{"text": "hello"}]}}],
            "flush": True,
        },
    ),
    "POST /v1/banks/{bank_id}/memories/purge": ({"scope": {"user": "ann"}},),
    "POST /v1/banks/{bank_id}/memories/retrieve": (
        {"scope": {"user": "ann"}},
        {"scope": {"user": "ann"}, "query": "mark"},
    ),
    "POST /v1/banks/{bank_id}/memories/{memory_id}/rollback": ({"revision_id": "r"},),
    "POST /v1/quarantine/{entry_id}/skip": ({"offset": 0},),
    "POST /v1/dead-letters/{letter_id}/requeue": ({},),
    "POST /v1/keys": ({"name": "another", "scopes": ["read"]},),
    "POST /v1/keys/{key_id}/rotate": ({},),
    "POST /reasoningEngines": ({"displayName": "another"},),
    "PATCH /reasoningEngines/{engine}": ({"displayName": "changed"},),
    "POST /reasoningEngines/{engine}/sessions": ({"userId": "ann"},),
    "PATCH /reasoningEngines/{engine}/sessions/{session}": ({"displayName": "changed"},),
    "POST /reasoningEngines/{engine}/sessions/{session}:appendEvent": (
        {"author": "user", "invocationId": "i", "timestamp": "2026-01-01T00:00:00Z"},
    ),
    "POST /reasoningEngines/{engine}/memories": ({"fact": "x", "scope": {"user": "ann"}},),
    "POST /reasoningEngines/{engine}/memories:generate": (
        {"directMemoriesSource": {"directMemories": [{"fact": "x"}]}, "scope": {"user": "ann"}},
    ),
    "POST /reasoningEngines/{engine}/memories:ingestEvents": (
        {"scope": {"user": "ann"}, "streamId": "stream", "directContentsSource": {"events": []}},
    ),
    "POST /reasoningEngines/{engine}/memories:purge": ({"filter": 'scope.user="ann"'},),
    "POST /reasoningEngines/{engine}/memories:retrieve": ({"scope": {"user": "ann"}},),
    "POST /reasoningEngines/{engine}/memories:retrieveProfiles": ({"scope": {"user": "ann"}},),
    "PATCH /reasoningEngines/{engine}/memories/{memory}": ({"fact": "changed"},),
    "POST /reasoningEngines/{engine}/memories/{memory}:rollback": ({"targetRevisionId": "r"},),
}

WORD = re.compile(r"[A-Za-z0-9_=-]{20,}")
"""What ids, cursors and names of operations look like."""


def mark_of(tenant: str) -> str:
    return f"mark-of-{tenant}"


@dataclass
class World:
    """What each tenant was answered about itself."""

    url: str
    client: httpx.AsyncClient
    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    words: dict[str, set[str]] = field(default_factory=dict)
    """The ids, cursors and names that only this tenant has."""
    topics: dict[str, str] = field(default_factory=dict)
    """The beginnings of the names of topics."""
    used: set[str] = field(default_factory=set)
    """The names of routes that were requested."""

    async def remember(self) -> None:
        self.answers = {name: await crawl(As(self.client, name)) for name in TENANTS}
        found = {name: set(WORD.findall(str(answers))) for name, answers in self.answers.items()}
        for name in TENANTS:
            others = set().union(*(found[other] for other in TENANTS if other != name))
            self.words[name] = {word for word in found[name] - others if not word.startswith("mark-of")}

    def new_client(self) -> httpx.AsyncClient:
        """After an attack, the service is closing the connections of the first one."""
        return httpx.AsyncClient(base_url=self.url, timeout=60)

    def foreign(self, tenant: str) -> set[str]:
        return set().union(*(self.words[other] for other in TENANTS if other != tenant))


async def populate(who: As, tenant: str, *, extra: int) -> None:
    """Makes the things that all tenants have, and `extra` ones of this tenant alone."""
    mark, make = mark_of(tenant), who.made
    picture = base64.b64encode(png(mark.encode() * 300)).decode()
    shown = {"type": "image", "media_type": "image/png", "data": picture}
    said = {"type": "user_message", "data": {"message": f"I am {mark}"}}
    for run_id in ("r-1", "r-ended", *(f"only-of-{tenant}-{number}" for number in range(extra))):
        await make("POST", "/v1/runs", {"agent_id": "desk", "run_id": run_id, "labels": {"mark": mark}})
        seen = {
            "type": "user_message",
            "data": {"message": mark, "parts": [{"type": "text", "text": mark}, shown]},
        }
        await make("POST", f"/v1/runs/{run_id}/events", [said] * (extra + 1) + [seen])
    await make("POST", "/v1/runs/r-ended/status", {"action": "fail", "error": mark})
    for session_id in ("s-1", *(f"session-of-{tenant}-{number}" for number in range(extra))):
        state = {"note": mark, "app:note": mark, "user:note": mark}
        await make(
            "POST", "/v1/sessions", {"session_id": session_id, "app": "desk", "user": "ann", "state": state}
        )
        await make("POST", f"/v1/sessions/{session_id}/events", said)
        await make("POST", "/v1/runs", {"agent_id": "desk", "session_id": session_id})
    await make("POST", "/v1/banks", {"bank_id": ENGINE, "config": {"display_name": mark}})
    for memory_id in ("m-1", *(f"memory-of-{tenant}-{number}" for number in range(extra))):
        memory = {"memory_id": memory_id, "fact": mark, "scope": {"user": "ann"}}
        await make("POST", f"/v1/banks/{ENGINE}/memories", memory)
        await make("PATCH", f"/v1/banks/{ENGINE}/memories/{memory_id}", {"fact": f"{mark} again"})
    engine = f"/v1beta1/reasoningEngines/{ENGINE}"
    session = {"userId": "ann", "sessionState": {"note": mark}}
    await make("POST", f"{engine}/sessions?sessionId=s-2", session)
    await make("POST", f"{engine}/memories", {"fact": f"{mark} by name", "scope": {"user": "ann"}})
    await make("POST", "/v1/keys", {"name": mark, "scopes": ["read"]})


async def renew(who: As, tenant: str) -> None:
    """Makes something of each kind, after an attack in which the tenant has deleted its own."""
    mark, name = mark_of(tenant), uuid4().hex[:8]
    await who.made("POST", "/v1/runs", {"agent_id": "desk", "run_id": name, "labels": {"mark": mark}})
    await who.made("POST", "/v1/sessions", {"session_id": name, "app": "desk", "display_name": mark})
    await who("POST", "/v1/banks", {"bank_id": ENGINE})
    memory = {"memory_id": name, "fact": mark, "scope": {"user": "ann"}}
    await who.made("POST", f"/v1/banks/{ENGINE}/memories", memory)


async def crawl(who: As) -> dict[str, str]:
    """The answers to requests that read, by path."""
    first = {parameter: ids[0] for parameter, ids in SHARED.items() if ids}
    answers: dict[str, str] = {}
    for name in ROUTES:
        path = path_of(name, first | {"run_id": "r-ended"})
        if not name.startswith("GET") or "{" in path or "sha256" in name or "/v1/keys" in name:
            continue
        if name in MOVING:
            continue
        path += "?until_end=true" if name.endswith("/follow") else ""
        for shown in {path, f"{path}?limit=1" if name in LISTS else path}:
            answers[shown] = CLOCK.sub("", (await who("GET", shown)).text)
    return answers


CLOCK = re.compile(r'"(?:since|until)":"[^"]+"')
"""The window of statistics, which moves with the time of an answer."""


MOVING = {"GET /v1/operations"}
"""Routes whose answers change by themselves. Attacks look into them as into all others."""


LISTS = {"GET /v1/runs", "GET /v1/sessions", "GET /v1/banks", "GET /v1/banks/{bank_id}/memories"}


def path_of(name: str, ids: Mapping[str, str]) -> str:
    path = name.partition(" ")[2]
    if path.startswith("/reasoningEngines"):
        path = f"/v1beta1{path}"
    return re.sub(r"\{(\w+)\}", lambda match: ids.get(match[1], match[0]), path)


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    blobs = f"file://{tmp_path_factory.mktemp('blobs')}"
    options = {"blobs": blobs, "blob_bytes_min": 1024, "wait_timeout_seconds": 20}
    names = {"prefix": name, "database": name}
    return Settings(kafka=kafka, mongo=mongo, partitions=PARTITIONS, **names, **options)


@pytest.fixture(scope="module")
def tenants(settings: Settings) -> Tenants:
    return registry(settings, "a", "b", partitions=PARTITIONS)


@pytest.fixture(scope="module")
def app(settings: Settings, tenants: Tenants) -> FastAPI:
    model = ScriptedModel(found=[Found(fact="likes tea", topics=["USER_PREFERENCES"])])
    return tenants_app(settings, tenants, "a", "b", "unknown", model=model)


@pytest.fixture(scope="module")
async def client(settings: Settings, app: FastAPI, tenants: Tenants) -> AsyncIterator[httpx.AsyncClient]:
    async with served_tenants(settings, app, tenants) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield client


@pytest.fixture(scope="module")
async def world(client: httpx.AsyncClient, settings: Settings) -> World:
    """`a` has more of everything than `b`, and comes after it."""
    await asyncio.gather(*(populate(As(client, name), name, extra=1) for name in ("own", "b")))
    await are_folded(settings, "own", "b")
    before = {name: await crawl(As(client, name)) for name in ("own", "b")}
    await populate(As(client, "a"), "a", extra=3)
    await are_folded(settings, "a")
    world = World(str(client.base_url), client)
    world.topics = {name: f"{name_of(settings, name)}." for name in TENANTS}
    await world.remember()
    for name, answers in before.items():
        assert world.answers[name] == answers, "what `a` made changes no list and no count of others"
    return world


async def are_folded(settings: Settings, *names: str) -> None:
    """Waits until MongoDB has everything in the logs of the tenants, so that answers are equal."""
    await asyncio.gather(*(_is_folded(settings, name_of(settings, name)) for name in names))


async def _is_folded(settings: Settings, name: str) -> None:
    async with stored(settings.of_tenant(name, database=name, partitions=PARTITIONS)) as stores:
        assert await stores.differences() == []


async def test_every_tenant_reads_its_own(world):
    for name in TENANTS:
        text = str(world.answers[name])
        assert text.count(mark_of(name)) > 50
        assert not any(mark_of(other) in text for other in TENANTS if other != name)
        assert len(world.words[name]) > 10


@pytest.mark.parametrize("tenant", ["b", "own", "a"])
async def test_nothing_of_a_tenant_is_in_an_answer_to_another(world, tenant):
    leaks = await asyncio.to_thread(attack, world, tenant)

    assert leaks == []
    for victim in (set(TENANTS) - {tenant}) & world.answers.keys():
        async with world.new_client() as client:
            assert await crawl(As(client, victim)) == world.answers[victim]
    # From here on it has what it made itself.
    world.answers.pop(tenant)


def test_every_route_was_requested(world):
    assert world.used == set(ROUTES)
    assert {name for name, rule in RULES.items() if rule.whose is Whose.INSTALLATION} == {"GET /metrics"}


async def test_metrics_are_for_the_operator(client):
    assert (await As(client, "a")("GET", "/metrics")).status_code == 403
    assert (await As(client, "own")("GET", "/metrics")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/runs", "/v1beta1/reasoningEngines", "/v1/banks/77/memories"])
async def test_a_tenant_that_does_not_exist_is_answered_nothing(client, path):
    response = await As(client, "unknown")("GET", path)

    assert response.status_code == 403
    assert "mark-of" not in response.text


# Whether the suite would notice.


@pytest.mark.parametrize("part", ["reading", "connection", "sessions", "memories"])
async def test_a_part_of_another_tenant_would_be_noticed(world, app, part, monkeypatch):
    async with world.new_client() as client:
        for name in ("a", "b"):
            await renew(As(client, name), name)
    tenants = open_tenants(app)
    of_a, of_b = [await tenants.hold(f"{app.state.tenant}-{name}") for name in ("a", "b")]
    monkeypatch.setattr(of_b.parts, part, getattr(of_a.parts, part))

    leaks = await asyncio.to_thread(attack, world, "b", until_first=True)

    of_a.release()
    of_b.release()
    assert leaks


async def test_a_shared_memory_of_keys_would_be_noticed(world, monkeypatch):
    async def answers() -> list[httpx.Response]:
        body, key = {"app": "keys", "user": "ann"}, {"Idempotency-Key": uuid4().hex}
        async with world.new_client() as client:
            return [await As(client, name)("POST", "/v1/sessions", body, key) for name in ("a", "b")]

    of_a, of_b = await answers()
    assert of_a.json()["run_id"] != of_b.json()["run_id"]

    monkeypatch.setattr(idempotency, "held_tenant", lambda: None)
    of_a, of_b = await answers()
    assert of_a.json()["run_id"] == of_b.json()["run_id"]


def attack(world: World, tenant: str, *, until_first: bool = False) -> list[str]:
    """Sends requests to every route as `tenant`. Returns the answers with something of others. With
    `until_first`, it reads first, sends none that deletes, and ends at the first such answer.
    """
    leaks: list[str] = []
    sent: set[str] = set()
    foreign = world.foreign(tenant)
    marks = [mark for other in TENANTS if other != tenant for mark in (mark_of(other), world.topics[other])]
    headers = {"Authorization": f"Bearer {tenant}"}
    with httpx.Client(base_url=world.url, headers=headers, timeout=60) as client:

        def send(name: str, request: httpx.Request) -> None:
            world.used.add(name)
            text = answer_of(client, request)
            asked = f"{request.url}{request.headers}{request.content!r}"
            # What it has sent itself may be in later answers.
            sent.update(WORD.findall(request.content.decode()))
            if tenant == "own" and "/v1/keys" in name:
                return  # the operator manages the keys of all tenants
            secrets = [word for word in foreign - sent if word in text and word not in asked]
            if secrets or any(mark in text for mark in marks):
                leaks.append(f"{request.method} {request.url}: {secrets} {text[:300]}")

        for name in READING_FIRST if until_first else ROUTES:
            if until_first and (leaks or re.search("DELETE|purge", name)):
                continue
            send_examples(client, name, sorted(foreign), send, 3 if until_first else EXAMPLES)
    return leaks


def send_examples(client: httpx.Client, name: str, foreign: list[str], send: Any, examples: int) -> None:
    @hypothesis.seed(session_seed())
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(request=requests_to(client, name, foreign))
    def run(request: httpx.Request) -> None:
        send(name, request)

    run()


@st.composite
def requests_to(draw: st.DrawFn, client: httpx.Client, name: str, foreign: list[str]) -> httpx.Request:
    """A request to this route, with ids that all tenants have and with those of others."""
    method, _, template = name.partition(" ")
    others = [f"only-of-{other}-0" for other in TENANTS] + [f"memory-of-{other}-0" for other in TENANTS]
    ids = {
        parameter: draw(st.sampled_from([*SHARED.get(parameter, ()) * 6, *others, *foreign]))
        for parameter in re.findall(r"\{(\w+)\}", template)
    }
    queries = [query for query in QUERIES.get(name, ()) if draw(st.booleans())]
    if name in LISTS and draw(st.booleans()):
        queries.append(f"cursor={draw(st.sampled_from(foreign))}")
    if template.startswith("/reasoningEngines") and method == "GET" and draw(st.booleans()):
        queries.append(f"pageToken={draw(st.sampled_from(foreign))}")
    if name.endswith("/follow") and "until_end=true" not in queries:
        queries.append("until_end=true")
    path = path_of(name, ids) + ("?" + "&".join(queries) if queries else "")
    headers = {"Idempotency-Key": draw(st.sampled_from(["k-1", "k-2"]))} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        headers |= {"If-None-Match": draw(st.sampled_from(foreign)), "Last-Event-ID": "0"}
    if method in ("GET", "DELETE"):
        return client.build_request(method, path, headers=headers)
    bodies = [*BODIES.get(name, ()), {}]
    return client.build_request(method, path, headers=headers, json=draw(st.sampled_from(bodies)))


def answer_of(client: httpx.Client, request: httpx.Request) -> str:
    """The answer with its headers. A stream without an end is read for a moment."""
    chunks: list[bytes] = []
    request.extensions["timeout"] = {"connect": 60, "read": 60, "write": 60, "pool": 60}
    response = client.send(request, stream=True)
    if request.url.path.endswith("/follow"):
        # Of the body alone: a busy machine may take longer for the head.
        request.extensions["timeout"]["read"] = 0.5
    try:
        chunks.extend(response.iter_raw())
    except httpx.ReadTimeout:
        pass
    finally:
        response.close()
    return f"{response.headers}{b''.join(chunks).decode(errors='replace')}"
