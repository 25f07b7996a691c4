"""Google's own clients generate memories on ours, with a model and without."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.ingesting import is_ready
from tests.memory_verbs import check_memories_rebuild
from tests.processes import until
from tests.querying import Projected, served
from tests.remembering import ScriptedModel
from tests.vertex_clients import PROJECT, WAYS, called, caller
from tests.vertex_memories import (
    INVALID,
    NOT_FOUND,
    PRECONDITION,
    Rememberer,
    new_engine,
    refusal,
    rememberer,
)

from runfold.api.app import build_app
from runfold.generation.model import Action, Found
from runfold.settings import Settings

MODEL = ScriptedModel()
MODELLED = ["vertexai v1beta1 sync", "agentplatform v1 async"]
HELLO = {"content": {"role": "user", "parts": [{"text": "I prefer window seats."}]}}
SEATS = Found(fact="Prefers window seats", topics=["USER_PREFERENCES"])
CREATE = Action(kind="create", facts=[0], memory=None, text="Prefers window seats")


@asynccontextmanager
async def remembering(settings: Settings, model: ScriptedModel | None) -> AsyncIterator[str]:
    async with served(build_app(settings, model=model)) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield str(client.base_url).rstrip("/")


@pytest.fixture(scope="module")
async def without_model(settings: Settings, stored: Projected) -> AsyncIterator[str]:
    async with remembering(settings, None) as url:
        yield url


@pytest.fixture(scope="module")
async def with_model(settings: Settings, stored: Projected) -> AsyncIterator[str]:
    async with remembering(settings, MODEL) as url:
        yield url


@pytest.fixture(scope="module")
async def engine(without_model: str) -> str:
    return await new_engine(without_model)


@pytest.fixture
def scope() -> dict[str, str]:
    return {"user_id": uuid4().hex}


@pytest.fixture(autouse=True)
def model() -> ScriptedModel:
    MODEL.found, MODEL.actions, MODEL.failure = [SEATS], [CREATE], None
    MODEL.read.clear()
    return MODEL


def facts(*texts: str) -> dict[str, Any]:
    return {"direct_memories": [{"fact": text} for text in texts]}


@pytest.mark.parametrize("way", WAYS)
async def test_facts_are_remembered_without_a_model(
    without_model: str, engine: str, way: str, scope: dict[str, str]
):
    google = rememberer(without_model, engine, way)
    topics = [{"managed_memory_topic": "USER_PREFERENCES"}]
    source = {"direct_memories": [{"fact": "Likes tea", "topics": topics}, {"fact": "Lives in Oslo"}]}

    generated = await google.generate(direct_memories_source=source, scope=scope)

    tea, oslo = generated.generated_memories
    assert [tea.action.value, oslo.action.value] == ["CREATED", "CREATED"]
    assert tea.previous_revision is None
    made = await google.get(tea.memory.name)
    assert (made.fact, made.scope) == ("Likes tea", scope)
    assert [topic.managed_memory_topic.value for topic in made.topics] == ["USER_PREFERENCES"]
    assert {each.memory.fact for each in await google.retrieve(scope)} == {"Likes tea", "Lives in Oslo"}


async def test_a_duplicate_is_an_update_with_what_was_extracted(
    without_model: str, engine: str, scope: dict[str, str]
):
    google = rememberer(without_model, engine)
    created = await google.create("Likes tea", scope)
    [before] = await google.revisions(created.name)

    [same] = (
        await google.generate(direct_memories_source=facts("likes tea."), scope=scope)
    ).generated_memories

    assert (same.memory.name, same.action.value) == (created.name, "UPDATED")
    assert same.previous_revision == before.name
    newest, oldest = await google.revisions(created.name)
    assert oldest.name == before.name
    assert newest.fact
    assert [one.fact for one in newest.extracted_memories] == ["likes tea."]


async def test_facts_with_the_same_words_in_another_order_are_two_memories(
    without_model: str, engine: str, scope: dict[str, str]
):
    google = rememberer(without_model, engine)
    for told in ("Anna lent Tom 50 euros", "Tom lent Anna 50 euros"):
        await google.generate(direct_memories_source=facts(told), scope=scope)

    kept = [one.memory.fact for one in await google.retrieve(scope)]
    assert sorted(kept) == ["Anna lent Tom 50 euros", "Tom lent Anna 50 euros"]


async def test_options_of_a_generation_are_those_of_what_it_leaves(
    without_model: str, engine: str, scope: dict[str, str]
):
    google = rememberer(without_model, engine)
    config = {
        "disable_consolidation": True,
        "metadata": {"n": {"double_value": 1}},
        "revision_labels": {"some_key": "v"},
        "revision_ttl": "3600s",
    }
    source = facts("Likes tea", "Likes tea!")

    generated = await google.generate(direct_memories_source=source, scope=scope, config=config)
    merging = {"metadata": {"m": {"bool_value": True}}, "metadata_merge_strategy": "MERGE"}
    merged = await google.generate(direct_memories_source=facts("Likes tea"), scope=scope, config=merging)
    silent = {"disable_memory_revisions": True}
    await google.generate(direct_memories_source=facts("Quiet"), scope=scope, config=silent)

    assert len({one.memory.name for one in generated.generated_memories}) == len(generated.generated_memories)
    [revision] = await google.revisions(generated.generated_memories[-1].memory.name)
    assert revision.labels == {"some_key": "v"}
    assert revision.expire_time - revision.create_time < timedelta(hours=2)
    metadata = (await google.get(merged.generated_memories[0].memory.name)).metadata
    assert (metadata["n"].double_value, metadata["m"].bool_value) == (1, True)
    [quiet] = [one.memory for one in await google.retrieve(scope) if one.memory.fact == "Quiet"]
    assert await google.revisions(quiet.name) == []


async def test_an_engine_gives_generated_memories_their_time_to_live(
    without_model: str, scope: dict[str, str]
):
    ttl = {"granularTtlConfig": {"generateCreatedTtl": "3600s", "generateUpdatedTtl": "7200s"}}
    engine = await new_engine(without_model, contextSpec={"memoryBankConfig": {"ttlConfig": ttl}})
    google = rememberer(without_model, engine)

    [created] = (await google.generate(direct_memories_source=facts("Tea"), scope=scope)).generated_memories
    first = await google.get(created.memory.name)
    await google.generate(direct_memories_source=facts("tea"), scope=scope)
    second = await google.get(created.memory.name)
    by_request = await google.create("No generation", scope)

    assert abs(first.expire_time - first.update_time - timedelta(hours=1)) < timedelta(seconds=30)
    assert abs(second.expire_time - second.update_time - timedelta(hours=2)) < timedelta(seconds=30)
    assert by_request.expire_time is None


@pytest.mark.parametrize("way", MODELLED)
async def test_contents_become_memories(
    with_model: str, engine: str, way: str, scope: dict[str, str], model: ScriptedModel
):
    google = rememberer(with_model, engine, way)

    generated = await google.generate(direct_contents_source={"events": [HELLO]}, scope=scope)

    [made] = generated.generated_memories
    assert (await google.get(made.memory.name)).fact == "Prefers window seats"
    assert "I prefer window seats." in model.read[0][0]


@pytest.mark.parametrize("way", MODELLED)
async def test_a_session_becomes_memories_of_its_user(
    with_model: str, engine: str, way: str, model: ScriptedModel
):
    google, sessions, user = rememberer(with_model, engine, way), caller(with_model, way), uuid4().hex
    session = await sessions.create(user, engine=engine)
    noon = datetime(2030, 1, 2, 12, tzinfo=UTC)
    for minute in range(4):
        content = {"role": "user", "parts": [{"text": f"said at minute {minute}"}]}
        await sessions.append(session.name, noon + timedelta(minutes=minute), content=content)
    source = {
        "session": session.name,
        "start_time": noon + timedelta(minutes=1),
        "end_time": noon + timedelta(minutes=3),
    }

    generated = await google.generate(vertex_session_source=source)

    [made] = generated.generated_memories
    assert (await google.get(made.memory.name)).scope == {"user_id": user}
    [(said, _)] = model.read
    assert [f"minute {minute}" in said for minute in range(4)] == [False, True, True, False]


@pytest.mark.parametrize("way", WAYS)
async def test_events_are_ingested_once_and_remembered(
    with_model: str, engine: str, way: str, scope: dict[str, str], model: ScriptedModel
):
    google = rememberer(with_model, engine, way)
    now = datetime.now(UTC)
    events = {"events": [{**HELLO, "event_id": "e-1", "event_time": now}]}
    rule = {"generation_rule": {"idle_duration": "3600s"}}

    for _ in range(2):
        await ingest(
            google, scope=scope, direct_contents_source=events, generation_trigger_config=rule, stream_id="s"
        )
    pending = await google.retrieve(scope)
    await ingest(google, scope=scope, stream_id="s", config={"force_flush": True})

    assert pending == []
    assert [one.memory.fact for one in await google.retrieve(scope)] == ["Prefers window seats"]
    [(said, _)] = model.read
    assert said.count("I prefer window seats.") == 1


async def test_what_is_ingested_without_a_rule_is_remembered_at_once(
    with_model: str, engine: str, scope: dict[str, str]
):
    google = rememberer(with_model, engine)

    await ingest(google, scope=scope, direct_contents_source={"events": [HELLO]})

    assert [one.memory.fact for one in await google.retrieve(scope)] == ["Prefers window seats"]


async def test_an_engine_says_when_its_streams_are_remembered(with_model: str, scope: dict[str, str]):
    rule = {"generationTriggerConfig": {"generation_rule": {"event_count": 2}}}
    config = {"memoryBankConfig": {"generationConfig": rule}}
    google = rememberer(with_model, await new_engine(with_model, contextSpec=config))
    contents = {"events": [HELLO]}
    at_once = {"generation_rule": {}}

    await ingest(google, scope=scope, direct_contents_source=contents)
    by_engine = await google.retrieve(scope)
    other = {**scope, "app": "x"}
    await ingest(google, scope=other, direct_contents_source=contents, generation_trigger_config=at_once)
    by_request = await google.retrieve(other)

    assert (len(by_engine), len(by_request)) == (0, 1)


async def ingest(google: Rememberer, **asked: Any) -> Any:
    of = google.memories if hasattr(google.memories, "ingest_events") else google.client.memory_banks
    operation = await called(of.ingest_events, name=google.engine, **asked)
    assert operation.done
    return operation


async def test_what_needs_a_model_says_so_where_there_is_none(
    without_model: str, engine: str, scope: dict[str, str]
):
    google = rememberer(without_model, engine)
    contents = {"events": [HELLO]}

    assert await refusal(google.generate(direct_contents_source=contents, scope=scope)) == PRECONDITION
    assert await refusal(ingest(google, direct_contents_source=contents, scope=scope)) == PRECONDITION
    async with httpx.AsyncClient(base_url=without_model, timeout=60) as http:
        asked = {"directContentsSource": contents, "scope": scope}
        error = (await http.post(f"/v1/{engine}/memories:generate", json=asked)).json()["error"]
    assert "RUNFOLD_GENERATION_MODEL" in error["message"]


async def test_what_is_wrong_is_said_as_google_says_it(with_model: str, engine: str, scope: dict[str, str]):
    google = rememberer(with_model, engine)
    unknown = rememberer(with_model, f"{PROJECT}/reasoningEngines/404")
    tea = facts("Likes tea")

    assert await refusal(unknown.generate(direct_memories_source=tea, scope=scope)) == NOT_FOUND
    assert await refusal(ingest(unknown, scope=scope)) == NOT_FOUND
    assert await refusal(google.generate(scope=scope)) == INVALID
    assert await refusal(google.generate(direct_memories_source=tea)) == INVALID
    assert await refusal(google.generate(direct_memories_source=facts(*"abcdef"), scope=scope)) == INVALID
    assert await refusal(google.generate(direct_memories_source={}, scope=scope)) == INVALID
    assert await refusal(google.generate(direct_contents_source={"events": []}, scope=scope)) == INVALID
    both = {"direct_memories_source": tea, "direct_contents_source": {"events": [HELLO]}}
    assert await refusal(google.generate(**both, scope=scope)) == INVALID
    session = {"session": f"{engine}/sessions/nobody"}
    assert await refusal(google.generate(vertex_session_source=session)) == NOT_FOUND
    assert await refusal(google.generate(vertex_session_source={"session": engine})) == INVALID
    rule = {"generation_rule": {"idle_duration": "0s"}}
    assert await refusal(ingest(google, scope=scope, generation_trigger_config=rule)) == INVALID


async def test_an_operation_is_answered_again(without_model: str, engine: str, scope: dict[str, str]):
    async with httpx.AsyncClient(base_url=without_model, timeout=60) as http:
        asked = {"scope": scope, "direct_memories_source": {"directMemories": [{"fact": "A"}, {"fact": "B"}]}}
        done = (await http.post(f"/v1/{engine}/memories:generate", json=asked)).json()
        again = (await http.get(f"/v1beta1/{done['name']}")).json()

    assert done["name"].startswith(f"{engine}/operations/")
    assert len(done["response"]["generatedMemories"]) == 2
    assert again == done


async def test_a_rebuild_reads_the_same(settings: Settings, without_model: str, with_model: str):
    await check_memories_rebuild(settings)
