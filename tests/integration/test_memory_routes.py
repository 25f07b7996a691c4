"""Memories and their generation over HTTP as any client meets them: what is asked, what is
answered, and what is refused.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from tests.ingesting import is_ready
from tests.memory_verbs import check_memories_rebuild
from tests.processes import until
from tests.querying import Projected, ready_api, served
from tests.remembering import ScriptedModel

from runfold.api.app import build_app
from runfold.generation.model import Found
from runfold.http.bodies import JSON
from runfold.settings import Settings

SCOPE = {"user": "ann"}
HELLO = {"role": "user", "parts": [{"text": "I prefer window seats."}]}
SEATS = Found(fact="Prefers window seats", topics=["USER_PREFERENCES"])


@pytest.fixture(scope="module")
def model() -> ScriptedModel:
    return ScriptedModel(found=[SEATS])


@pytest.fixture(scope="module")
async def api(
    settings: Settings, stored: Projected, model: ScriptedModel
) -> AsyncIterator[httpx.AsyncClient]:
    """With a model."""
    async with ready_api(settings, model=model) as client:
        yield client


@pytest.fixture(scope="module")
async def without_model(settings: Settings, stored: Projected) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


@pytest.fixture
async def bank(api: httpx.AsyncClient) -> str:
    """The path of a new bank."""
    response = await api.post("/v1/banks", json={})
    assert response.status_code == 201, response.text
    return str(response.headers["location"])


async def created(api: httpx.AsyncClient, bank: str, fact: str = "likes tea", **fields: Any) -> str:
    """The path of a new memory."""
    response = await api.post(f"{bank}/memories", json={"fact": fact, "scope": SCOPE, **fields})
    assert response.status_code == 201, response.text
    return str(response.headers["location"])


async def facts(api: httpx.AsyncClient, bank: str) -> list[str]:
    return sorted(one["fact"] for one in (await api.get(f"{bank}/memories")).json()["memories"])


async def generated(
    api: httpx.AsyncClient, bank: str, headers: dict[str, str] | None = None, **asked: Any
) -> list[Any]:
    response = await api.post(
        f"{bank}/memories/generate", json={"scope": SCOPE, **asked}, headers=headers or {}
    )
    assert response.status_code == 200, response.text
    return list(response.json()["generated"])


async def ingested(api: httpx.AsyncClient, bank: str, **asked: Any) -> Any:
    response = await api.post(f"{bank}/memories/ingest", json={"stream_id": "s", "scope": SCOPE, **asked})
    assert response.status_code == 200, response.text
    return response.json()


def check_problem(response: httpx.Response, status: int, name: str, **facts: Any) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["type"] == (f"urn:runfold:problem:{name}" if name else "about:blank")
    assert problem | facts == problem


async def test_a_memory_is_created_and_found_where_the_answer_says(api):
    made = await api.post("/v1/banks", json={"bank_id": f"a/b {uuid4()}", "config": {"display_name": "A"}})
    bank = made.headers["location"]
    said = {
        "fact": "likes tea",
        "scope": SCOPE,
        "topics": [{"managed": "USER_PREFERENCES"}, {"custom": "drinks"}],
        "metadata": {"sure": True, "since": {"timestamp": "2026-01-01T00:00:00Z"}},
        "display_name": "Tea",
    }

    response = await api.post(f"{bank}/memories", json={**said, "memory_id": "m/1 ?", "ttl_seconds": 7200})

    assert response.status_code == 201
    assert response.headers["location"] == f"{bank}/memories/{quote('m/1 ?', safe='')}"
    memory = response.json()
    assert (await api.get(response.headers["location"])).json() == memory
    assert [memory[name] for name in ("fact", "scope", "metadata", "display_name")] == [
        said[name] for name in ("fact", "scope", "metadata", "display_name")
    ]
    assert memory["expires_at"] is not None
    taken = await api.post(f"{bank}/memories", json={"fact": "x", "scope": SCOPE, "memory_id": "m/1 ?"})
    check_problem(taken, 409, "MemoryConflict", memory_id="m/1 ?")


@pytest.mark.parametrize("named", [{}, {"memory_id": "m"}])
async def test_a_key_makes_creation_safe_to_repeat(api, without_model, bank, named):
    said, key = {"fact": "likes tea", "scope": SCOPE, **named}, {"Idempotency-Key": str(uuid4())}

    answers = [
        await process.post(f"{bank}/memories", json=said, headers=key)
        for process in (api, without_model, api)
    ]

    assert [one.status_code for one in answers] == [201, 200, 201]
    assert answers[0].json() == answers[1].json() == answers[2].json()
    assert len((await api.get(f"{answers[0].headers['location']}/revisions")).json()["revisions"]) == 1
    assert await facts(api, bank) == ["likes tea"]


async def test_another_key_does_not_take_a_memory_for_its_own(api, bank):
    said = {"fact": "likes tea", "scope": SCOPE, "memory_id": "m"}
    await created(api, bank, memory_id="m")

    response = await api.post(f"{bank}/memories", json=said, headers={"Idempotency-Key": "k"})

    check_problem(response, 409, "MemoryConflict", memory_id="m")


async def test_two_writers_lose_nothing_of_each_other(api, without_model, bank):
    path = await created(api, bank)

    await asyncio.gather(
        *(
            process.patch(path, json={name: value})
            for process, name, value in ((api, "display_name", "a"), (without_model, "description", "b"))
        )
    )

    memory = (await api.get(path)).json()
    assert (memory["fact"], memory["display_name"], memory["description"]) == ("likes tea", "a", "b")
    assert len((await api.get(f"{path}/revisions")).json()["revisions"]) == 3


async def test_what_is_left_out_stays_and_null_takes_away(api, bank):
    path = await created(api, bank, description="d", ttl_seconds=7200)

    changed = (await api.patch(path, json={"description": None, "expires_at": None})).json()

    assert (changed["fact"], changed["description"], changed["expires_at"]) == ("likes tea", None, None)


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "", {"bank_id": ""}, "bank_id"),
        ("POST", "", {"colour": "red"}, "colour"),
        ("POST", "", {"config": {"memory_ttl_seconds": 0}}, "config.memory_ttl_seconds"),
        ("GET", "?limit=0", None, "limit"),
        ("GET", "?colour=red", None, "colour"),
        ("GET", "?cursor=x", None, "cursor"),
        ("POST", "/b/memories", {"scope": SCOPE}, "fact"),
        ("POST", "/b/memories", {"fact": "", "scope": SCOPE}, "fact"),
        ("POST", "/b/memories", {"fact": "x"}, "scope"),
        ("POST", "/b/memories", {"fact": "x", "scope": {}}, "scope"),
        ("POST", "/b/memories", {"fact": "x", "scope": {"a": "*"}}, "scope.a"),
        ("POST", "/b/memories", {"fact": "x", "scope": SCOPE, "ttl_seconds": 0}, "ttl_seconds"),
        ("POST", "/b/memories", {"fact": "x", "scope": SCOPE, "topics": [{}]}, "topics.0"),
        ("POST", "/b/memories", {"fact": "x", "scope": SCOPE, "memory_id": ""}, "memory_id"),
        ("PATCH", "/b/memories/m", {"scope": SCOPE}, "scope"),
        ("PATCH", "/b/memories/m", {"expires_at": "soon"}, "expires_at"),
        ("GET", "/b/memories?scope=x", None, "scope"),
        ("GET", "/b/memories?order=size", None, "order"),
        ("POST", "/b/memories/retrieve", {"query": "x"}, "scope"),
        ("POST", "/b/memories/retrieve", {"scope": SCOPE, "limit": 101}, "limit"),
        ("POST", "/b/memories/purge", {"scope": {}}, "scope"),
        ("POST", "/b/memories/purge", {"everything": "maybe"}, "everything"),
        ("POST", "/b/memories/m/rollback", {}, "revision_id"),
        ("POST", "/b/memories/generate", {"scope": SCOPE}, "facts"),
        ("POST", "/b/memories/generate", {"facts": [{"fact": "x"}], "contents": [HELLO]}, "contents"),
        ("POST", "/b/memories/generate", {"scope": SCOPE, "facts": []}, "facts"),
        ("POST", "/b/memories/generate", {"scope": SCOPE, "facts": [{"fact": "x"}] * 6}, "facts"),
        ("POST", "/b/memories/generate", {"scope": SCOPE, "facts": [{"fact": ""}]}, "facts.0.fact"),
        ("POST", "/b/memories/generate", {"scope": SCOPE, "contents": [{"parts": []}]}, "contents.0.parts"),
        ("POST", "/b/memories/generate", {"scope": SCOPE, "session": {}}, "session.session_id"),
        ("POST", "/b/memories/generate", {"scope": SCOPE, "metadata_merge": "some"}, "metadata_merge"),
        ("POST", "/b/memories/ingest", {"scope": SCOPE}, "stream_id"),
        ("POST", "/b/memories/ingest", {"stream_id": "s"}, "scope"),
        ("POST", "/b/memories/ingest", {"stream_id": "s", "scope": SCOPE, "rule": {"x": 1}}, "rule.x"),
        (
            "POST",
            "/b/memories/ingest",
            {"stream_id": "s", "scope": SCOPE, "rule": {"event_count": 0}},
            "rule.event_count",
        ),
        (
            "POST",
            "/b/memories/ingest",
            {"stream_id": "s", "scope": SCOPE, "contents": [{"content": HELLO, "event_time": "now"}]},
            "contents.0.event_time",
        ),
    ],
)
async def test_what_is_wrong_is_named(api, method, path, body, field):
    response = await api.request(method, f"/v1/banks{path}", json=body)

    assert response.status_code == 422, response.text
    assert response.json()["field"] == field


GENERATE = '"contents": [{"role": "user", "parts": [{"text": VALUE}]}]'
INGEST = '"stream_id": "s", "contents": [{"content": {"parts": [{"text": VALUE}]}}]'


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("path", "said"),
    [
        *(
            (path, said.replace("VALUE", value))
            for path, said in (("/generate", GENERATE), ("/ingest", INGEST))
            for value in (nested(300), "1e999", "NaN")
        ),
        ("", '"fact": "x", "metadata": {"n": 1e999}'),
        ("", f'"fact": "x", "metadata": {{"n": 1{"0" * 400}}}'),
    ],
)
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}])
async def test_what_is_no_json_is_refused_with_and_without_a_key(api, bank, path, said, key):
    body = f'{{"scope": {{"user": "ann"}}, {said}}}'

    response = await api.post(f"{bank}/memories{path}", content=body, headers={"Content-Type": JSON, **key})

    assert response.status_code == 422, response.text


@pytest.mark.parametrize("path", ["", "/b/memories", "/b/memories/purge", "/b/memories/generate"])
async def test_no_more_of_a_body_is_read_than_a_request_could_need(api, path):
    body = json.dumps({"fact": "x" * 33 * 1024 * 1024}).encode()

    response = await api.post(f"/v1/banks{path}", content=body, headers={"Content-Type": JSON})

    check_problem(response, 413, "")


async def test_what_no_topic_holds_is_refused_and_nothing_else_fails_by_it(api, bank):
    large = {"foreign": {"a": ["x" * 1024 * 1024] * 9}}

    response = await api.patch(bank, json=large)

    check_problem(response, 413, "EventTooLarge", limit=8 * 1024 * 1024)
    await created(api, bank)


async def test_whatever_a_memory_may_not_hold_is_named_whether_it_is_new_or_not(api, bank):
    path, too_much = (
        await created(api, bank),
        {
            "fact": "x" * 20_001,
            "topics": [{"custom": "x" * 201}],
            "metadata": {str(number): number for number in range(65)},
            "display_name": "x" * 501,
            "description": "x" * 10_001,
            "expires_at": "9999-12-31T23:59:59-12:00",
        },
    )

    for field, value in too_much.items():
        new = await api.post(f"{bank}/memories", json={"fact": "x", "scope": SCOPE, field: value})
        changed = await api.patch(path, json={field: value})

        for response in (new, changed):
            assert response.status_code == 422, (field, response.text)
            assert response.json()["field"].startswith(field)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {}),
        ("DELETE", "", None),
        ("GET", "/memories", None),
        ("POST", "/memories", {"fact": "x", "scope": SCOPE}),
        ("GET", "/memories/m", None),
        ("GET", "/memories/m/revisions", None),
        ("POST", "/memories/retrieve", {"scope": SCOPE}),
        ("POST", "/memories/purge", {}),
        ("POST", "/memories/generate", {"scope": SCOPE, "facts": [{"fact": "x"}]}),
        ("POST", "/memories/ingest", {"scope": SCOPE, "stream_id": "s", "contents": [{"content": HELLO}]}),
    ],
)
async def test_a_bank_that_is_not_there_is_named(api, method, path, body):
    response = await api.request(method, f"/v1/banks/nobodys{path}", json=body)

    check_problem(response, 404, "BankNotFound", bank_id="nobodys")


async def test_facts_need_no_model_and_the_same_again_updates_the_memory(without_model, bank):
    told = {"fact": "The user likes tea", "topics": [{"custom": "drinks"}]}
    [first] = await generated(without_model, bank, facts=[told])

    [again] = await generated(without_model, bank, facts=[{"fact": "the user likes tea"}])

    assert (first["action"], first["previous_revision_id"]) == ("created", None)
    assert first["memory"]["topics"] == [{"managed": None, "custom": "drinks"}]
    assert (again["action"], again["memory_id"]) == ("updated", first["memory_id"])
    assert again["previous_revision_id"] == first["memory"]["revision_id"]
    assert await facts(without_model, bank) == ["The user likes tea"]


async def test_what_needs_a_model_says_how_to_configure_one(without_model, bank):
    asked: dict[str, Any] = {"scope": SCOPE}
    requests = {
        "generate": [{**asked, "contents": [HELLO]}, {**asked, "session": {"session_id": "s"}}],
        "ingest": [{**asked, "stream_id": "s", "contents": [{"content": HELLO}]}],
    }

    for verb, bodies in requests.items():
        for body in bodies:
            response = await without_model.post(f"{bank}/memories/{verb}", json=body)
            check_problem(response, 409, "NoModel")
            assert "RUNFOLD_GENERATION_MODEL" in response.json()["detail"]


async def test_memories_of_a_conversation_have_what_was_asked_for_them(api, bank, model):
    [made] = await generated(
        api,
        bank,
        contents=[HELLO],
        metadata={"trip": "oslo"},
        revision={"labels": {"source": "chat"}, "ttl_seconds": 86_400},
    )

    assert (made["action"], made["memory"]["fact"]) == ("created", SEATS.fact)
    assert made["memory"]["metadata"] == {"trip": "oslo"}
    assert model.read[-1][0] == '{"role": "user", "text": "I prefer window seats."}'
    path = f"{bank}/memories/{made['memory_id']}/revisions/{made['memory']['revision_id']}"
    revision = (await api.get(path)).json()
    assert (revision["labels"], revision["extracted"][0]["fact"]) == ({"source": "chat"}, SEATS.fact)
    assert revision["run_id"] is not None


async def test_metadata_is_merged_as_asked_and_nothing_is_consolidated_where_that_is_off(without_model, bank):
    told = {"facts": [{"fact": "likes tea"}]}
    await generated(without_model, bank, **told, metadata={"a": 1})

    [merged] = await generated(without_model, bank, **told, metadata={"b": 2}, metadata_merge="merge")
    [other] = await generated(without_model, bank, **told, disable_consolidation=True)

    assert (merged["action"], merged["memory"]["metadata"]) == ("updated", {"a": 1.0, "b": 2.0})
    assert other["action"] == "created"


async def test_only_a_word_of_its_own_purges_a_whole_bank(api, bank):
    await created(api, bank)

    for body in ({}, {"scope": None}, {"everything": False}, {"scope": SCOPE, "everything": True}):
        for force in (True, False):
            refused = await api.post(f"{bank}/memories/purge", json={**body, "force": force})
            assert (refused.status_code, refused.json()["field"]) == (422, "scope")
    assert await facts(api, bank) == ["likes tea"]

    purged = await api.post(f"{bank}/memories/purge", json={"everything": True, "force": True})
    assert (purged.json(), await facts(api, bank)) == ({"count": 1}, [])


async def test_facts_with_the_same_words_in_another_order_are_two_memories(without_model, bank):
    for told in ("Anna lent Tom 50 euros", "Tom lent Anna 50 euros"):
        [made] = await generated(without_model, bank, facts=[{"fact": told}])
        assert (made["action"], made["memory"]["fact"]) == ("created", told)


async def test_a_session_is_remembered_in_its_users_scope(api, bank):
    made = await api.post("/v1/sessions", json={"app": "shop", "user": "ben"})
    event = {"type": "user_message", "data": {"message": "I prefer window seats."}}
    await api.post(f"{made.headers['location']}/events", json=event)

    [one] = await generated(api, bank, scope=None, session={"session_id": made.json()["session_id"]})

    assert one["memory"]["scope"] == {"user_id": "ben"}
    gone = {"session": {"session_id": "nobody's"}}
    missing = await api.post(f"{bank}/memories/generate", json={"scope": SCOPE, **gone})
    check_problem(missing, 404, "SessionNotFound", session_id="nobody's")


async def test_under_a_key_a_generation_is_answered_once(api, bank, model):
    key, count = {"Idempotency-Key": str(uuid4())}, len(model.read)

    first = await generated(api, bank, key, contents=[HELLO])
    again = await generated(api, bank, key, contents=[HELLO])

    assert again == first
    assert len(model.read) == count + 1
    other = await api.post(
        f"{bank}/memories/generate", json={"scope": SCOPE, "facts": [{"fact": "x"}]}, headers=key
    )
    check_problem(other, 422, "IdempotencyKeyReused")


async def test_contents_of_a_stream_count_once_and_wait_for_its_rule(api, bank, model):
    count = len(model.read)
    told = {"content": HELLO, "event_id": "e-1", "event_time": "2026-01-01T00:00:00Z"}

    first = await ingested(api, bank, contents=[told], rule={"event_count": 3})
    again = await ingested(api, bank, contents=[told])
    assert (again["run_id"], len(model.read), await facts(api, bank)) == (first["run_id"], count, [])
    nothing = await ingested(api, bank, flush=True)

    assert nothing == {"run_id": first["run_id"], "offset": None}
    assert (await api.get(f"/v1/runs/{first['run_id']}")).json()["agent_id"] == bank.rpartition("/")[2]
    assert model.read[count][0] == '{"role": "user", "text": "I prefer window seats."}'
    assert await facts(api, bank) == [SEATS.fact]


async def test_without_a_rule_memories_are_there_when_the_contents_are(api, bank):
    await ingested(api, bank, contents=[{"content": HELLO}])

    assert await facts(api, bank) == [SEATS.fact]


async def test_under_a_key_contents_without_ids_count_once_in_every_process(
    api, settings, stored, bank, model
):
    key, count = {"Idempotency-Key": str(uuid4())}, len(model.read)
    said = {"stream_id": "s", "scope": SCOPE, "contents": [{"content": HELLO}], "rule": {"event_count": 9}}
    async with served(build_app(settings, model=model)) as elsewhere:
        await until(lambda: is_ready(elsewhere), what="the service's connection to Kafka")
        for process in (api, elsewhere):
            response = await process.post(f"{bank}/memories/ingest", json=said, headers=key)
            assert response.status_code == 200, response.text

    await ingested(api, bank, flush=True)

    assert [read for read, _ in model.read[count:]] == ['{"role": "user", "text": "I prefer window seats."}']


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(api, settings):
    await check_memories_rebuild(settings)
