"""Google's own clients use our banks as if they were Agent Engine's engines."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.memory_verbs import check_memories_rebuild, opened_memories
from tests.vertex_clients import KEY_ONLY, PROJECT, TOKEN, called, called_for_all, caller, client_of
from tests.vertex_memories import (
    ENGINES,
    INVALID,
    NOT_FOUND,
    PRECONDITION,
    SCOPE,
    new_engine,
    refusal,
    rememberer,
)

from runfold.settings import Settings
from runfold_schemas.memories import BankConfig, Customization, MemoryTopic, TopicConfig

MEMORY_CONFIG: dict[str, Any] = {
    "disable_memory_revisions": False,
    "ttl_config": {"default_ttl": "3600.5s", "memory_revision_default_ttl": "86400s"},
    "customization_configs": [
        {
            "scope_keys": ["user_id"],
            "memory_topics": [
                {"custom_memory_topic": {"label": "some_label", "description": "Drinks"}},
                {"managed_memory_topic": {"managed_topic_enum": "USER_PREFERENCES"}},
            ],
            "generate_memories_examples": [
                {
                    "conversation_source": {
                        "events": [{"content": {"role": "user", "parts": [{"text": "I like tea"}]}}]
                    },
                    "generated_memories": [
                        {"fact": "Likes tea", "topics": [{"custom_memory_topic_label": "some_label"}]}
                    ],
                }
            ],
            "enable_third_person_memories": True,
        }
    ],
    "structured_memory_configs": [
        {
            "scope_keys": ["user_id"],
            "schema_configs": [
                {
                    "id": "person",
                    "memory_schema": {"type": "OBJECT", "properties": {"first_name": {"type": "STRING"}}},
                }
            ],
        }
    ],
}

RULE = {"generationTriggerConfig": {"generationRule": {"overlapEventCount": 1000}}}

VERTEX = {
    **MEMORY_CONFIG,
    "generation_config": {"model": "projects/p/locations/l/publishers/google/models/m"},
}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_vertexai_goes_through_the_life_of_an_engine(url: str, version: str):
    engines = client_of(url, f"vertexai {version} sync").agent_engines
    asked = {
        "display_name": "Trips",
        "description": "All about trips",
        "labels": {"some_key": "a"},
        "context_spec": {"memory_bank_config": VERTEX},
    }

    created = (await called(engines.create, config=asked)).api_resource
    read = (await called(engines.get, name=created.name)).api_resource
    listed = [each.api_resource.name for each in await called_for_all(engines.list)]
    updated = (await called(engines.update, name=created.name, config={"display_name": "T"})).api_resource
    await called(engines.delete, name=created.name)

    assert created.name.startswith(f"{PROJECT}/reasoningEngines/")
    assert created.name.rpartition("/")[2].isdigit()
    assert (created.display_name, created.description) == ("Trips", "All about trips")
    assert created.labels == {"some_key": "a"}
    assert created.create_time == created.update_time
    assert created.etag
    given = created.context_spec.memory_bank_config.model_dump(exclude_none=True, mode="json")
    assert given == VERTEX
    assert read == created
    assert created.name in listed
    assert (updated.display_name, updated.description) == ("T", "All about trips")
    assert updated.context_spec == created.context_spec
    assert updated.update_time > created.create_time
    assert updated.etag != created.etag
    assert await refusal(called(engines.get, name=created.name)) == NOT_FOUND


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_agentplatform_goes_through_the_life_of_a_memory_bank(url: str, kind: str, version: str):
    client = client_of(url, f"agentplatform {version} {kind}")
    banks = client.memory_banks
    unstructured = MEMORY_CONFIG["customization_configs"]
    ttl = {"granular_ttl_config": {"create_ttl": "60s", "generate_updated_ttl": "70s"}}
    config = {"unstructured_memory_configs": unstructured, "ttl_config": ttl}

    created = await called(
        banks.create, managed_semantic_memory_config=config, config={"display_name": "Trips"}
    )
    read = await called(banks.get, name=created.name)
    await called(banks.update, name=created.name, config={"display_name": "T"})
    renamed = await called(banks.get, name=created.name)
    revisions = {"disable_memory_revisions": True}
    await called(banks.update, name=created.name, managed_semantic_memory_config=revisions)
    switched = await called(banks.get, name=created.name)
    listed = [each.name for each in await called_for_all(banks.list)]
    await called(banks.delete, name=created.name)

    assert created.name.rpartition("/")[2].isdigit()
    assert read.display_name == "Trips"
    given = read.managed_semantic_memory_config.model_dump(exclude_none=True, mode="json")
    assert given == config
    assert renamed.display_name == "T"
    assert renamed.managed_semantic_memory_config == read.managed_semantic_memory_config
    assert switched.managed_semantic_memory_config.disable_memory_revisions
    assert (
        switched.managed_semantic_memory_config.ttl_config == read.managed_semantic_memory_config.ttl_config
    )
    assert created.name in listed
    assert await refusal(called(banks.get, name=created.name)) == NOT_FOUND


@pytest.mark.parametrize("given", [TOKEN, KEY_ONLY])
async def test_a_full_name_and_a_short_one_are_the_same(url: str, given: dict[str, Any]):
    name = await new_engine(url, displayName="both")
    client = client_of(url, "agentplatform v1beta1 async", given)

    read = await client.memory_banks.get(name=name.removeprefix(f"{PROJECT}/"))

    assert read.display_name == "both"
    project = PROJECT if given is TOKEN else "projects/runfold/locations/local"
    assert read.name == name.replace(PROJECT, project)


@pytest.mark.parametrize("way", ["agentplatform v1beta1 async", "vertexai v1beta1 sync"])
@pytest.mark.parametrize("child", ["memory", "session"])
async def test_what_has_children_is_deleted_only_by_force(url: str, way: str, child: str):
    name = await new_engine(url)
    other = await new_engine(url)
    google, sessions = rememberer(url, name), caller(url)
    if child == "memory":
        made = (await google.create()).name
    else:
        made = (await sessions.create("ann", engine=name)).name
    kept = await sessions.create("ann", engine=other)
    client = client_of(url, way)
    engines = client.memory_banks if way.startswith("agentplatform") else client.agent_engines

    assert await refusal(called(engines.delete, name=name)) == PRECONDITION
    assert await refusal(called(engines.delete, name=name, force=False)) == PRECONDITION
    read = google.get if child == "memory" else sessions.get
    assert (await read(made)).name == made
    await called(engines.delete, name=name, force=True)

    assert await refusal(read(made)) == NOT_FOUND
    assert await refusal(google.list()) == NOT_FOUND
    assert await refusal(sessions.list(engine=name)) == NOT_FOUND
    assert await refusal(sessions.create("ann", engine=name)) == NOT_FOUND
    assert await refusal(called(engines.delete, name=name, force=True)) == NOT_FOUND
    assert (await sessions.get(kept.name)).name == kept.name


async def test_force_may_come_in_the_query(url: str):
    name = await new_engine(url)
    await rememberer(url, name).create()

    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        refused = await http.delete(f"/v1/{name}", params={"force": "false"})
        deleted = await http.delete(f"/v1/{name}", params={"force": "true"})
        operation = await http.get(f"/v1/{deleted.json()['name']}")

    assert refused.status_code == 400
    assert deleted.json()["done"]
    assert operation.json() == deleted.json()


async def test_what_an_engine_was_created_with_is_given_back(url: str):
    spec = {"agentFramework": "google-adk", "classMethods": [{"api_mode": "", "parameters": {"a_b": {}}}]}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        made = {
            "displayName": "deployed",
            "spec": spec,
            "encryption_spec": {"kms_key_name": "k"},
            "contextSpec": {"memoryBankConfig": {"similaritySearchConfig": {"embedding_model": "e"}}},
        }
        created = (await http.post(ENGINES, json=made)).json()["response"]
        name = created["name"]
        masked = {"spec": {"agentFramework": "langgraph"}, "displayName": "not named", "etag": "x"}
        await http.patch(f"/v1/{name}", json=masked, params={"updateMask": "spec"})
        updated = (await http.get(f"/v1/{name}")).json()

    assert created["spec"] == spec
    assert created["encryptionSpec"] == {"kmsKeyName": "k"}
    assert created["contextSpec"] == {"memoryBankConfig": {"similaritySearchConfig": {"embeddingModel": "e"}}}
    assert updated["spec"] == {"agentFramework": "langgraph"}
    assert updated["displayName"] == "deployed"


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        ("context_spec", []),
        ("contextSpec.memoryBankConfig", []),
        ("context_spec.memory_bank_config.ttl_config", ["customization_configs", "generation_config"]),
        (None, ["customization_configs", "generation_config"]),
        ("description", ["customization_configs", "generation_config", "default_ttl"]),
    ],
)
async def test_a_mask_says_what_of_the_configuration_changes(url: str, mask: str | None, kept: list[str]):
    name = await new_engine(url, contextSpec={"memoryBankConfig": VERTEX})
    changed = {"contextSpec": {"memoryBankConfig": {"ttlConfig": {"memory_revision_default_ttl": "90000s"}}}}

    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        params = {"updateMask": mask} if mask else {}
        answer = await http.patch(f"/v1beta1/{name}", json=changed, params=params)
        config = answer.json()["response"]["contextSpec"]["memoryBankConfig"]

    ttl = config["ttlConfig"]
    assert ("customizationConfigs" in config) == ("customization_configs" in kept)
    assert ("generationConfig" in config) == ("generation_config" in kept)
    assert ("defaultTtl" in ttl) == ("default_ttl" in kept)
    assert ttl["memoryRevisionDefaultTtl"] == ("86400s" if "default_ttl" in kept else "90000s")


async def test_our_own_verbs_and_the_wire_have_one_configuration(settings: Settings, url: str):
    name = await new_engine(url, display_name="one", contextSpec={"memoryBankConfig": VERTEX})
    bank_id = name.rpartition("/")[2]
    engines = client_of(url, "vertexai v1beta1 sync").agent_engines

    async with opened_memories(settings) as memories:
        config = (await memories.bank(bank_id)).config
        topic = TopicConfig(topic=MemoryTopic(custom="new"), description="d")
        changes = {"customizations": (Customization(topics=(topic,)),), "memory_ttl_seconds": 5.0}
        await memories.update_bank(bank_id, changes)

    assert (config.display_name, config.memory_ttl_seconds) == ("one", 3600.5)
    assert config.revision_ttl_seconds == 86_400
    [customization] = config.customizations
    assert customization.scope_keys == ("user_id",)
    assert customization.topics[1].topic == MemoryTopic(managed="USER_PREFERENCES")
    assert customization.examples[0].conversation[0].text == "I like tea"
    assert customization.examples[0].memories[0].topics == (MemoryTopic(custom="some_label"),)
    read = (await called(engines.get, name=name)).api_resource.context_spec.memory_bank_config
    assert read.ttl_config.default_ttl == "5s"
    assert read.ttl_config.memory_revision_default_ttl == "86400s"
    [customized] = read.customization_configs
    assert customized.memory_topics[0].custom_memory_topic.label == "new"
    assert read.generation_config.model == VERTEX["generation_config"]["model"]


async def test_only_banks_that_are_called_as_engines_are_engines(settings: Settings, url: str):
    client = client_of(url, "agentplatform v1 async")
    engines = client.memory_banks
    async with opened_memories(settings) as memories:
        await memories.create_bank("travel")
        await memories.create_bank("20250101", BankConfig(display_name="of our own", description="d"))

    listed = {each.name.rpartition("/")[2] async for each in await engines.list()}

    assert "travel" not in listed
    assert "20250101" in listed
    assert (await engines.get(name="reasoningEngines/20250101")).display_name == "of our own"
    for other in ("travel", "1" * 20):
        assert await refusal(engines.get(name=f"reasoningEngines/{other}")) == NOT_FOUND
        assert await refusal(engines.delete(name=f"reasoningEngines/{other}", force=True)) == NOT_FOUND
    async with opened_memories(settings) as memories:
        assert (await memories.bank("travel")).bank_id == "travel"


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_lists_end_where_nothing_follows(url: str, kind: str):
    client = client_of(url, f"agentplatform v1beta1 {kind}")
    names = [await new_engine(url) for n in range(3)]

    whole = [each.name for each in await called_for_all(client.memory_banks.list)]
    for size in (1, 2, len(whole), 1000):
        config = {"page_size": size}
        assert [each.name for each in await called_for_all(client.memory_banks.list, config=config)] == whole
    assert whole[:3] == names[::-1]
    assert await refusal(called(client.memory_banks.list, config={"page_token": "x"})) == INVALID


async def test_lists_are_filtered(url: str):
    engines = client_of(url, "vertexai v1beta1 sync").agent_engines
    names = [await new_engine(url, displayName="listed", labels={"n": str(n)}) for n in range(4)]

    async def found(filter_: str) -> list[str]:
        listed = await called_for_all(engines.list, config={"page_size": 2, "filter": filter_})
        return [each.api_resource.name for each in listed]

    assert await found('display_name="listed"') == names[::-1]
    assert await found('displayName="listed" AND labels.n=3') == [names[3]]
    assert await found('display_name="listed" AND NOT labels.n=3 create_time<"2000-01-01T00:00:00Z"') == []
    assert await refusal(found("spec=1")) == INVALID


@pytest.mark.parametrize(
    "engine",
    [
        {"displayName": 1},
        {"displayName": "x" * 600},
        {"contextSpec": {"memoryBankConfig": {"ttlConfig": {"defaultTtl": "0s"}}}},
        {"contextSpec": {"memoryBankConfig": {"ttlConfig": {"defaultTtl": "soon"}}}},
        {"contextSpec": {"memoryBankConfig": {"customizationConfigs": [{"memoryTopics": [{}]}]}}},
        {"contextSpec": {"memoryBankConfig": 1}},
        {"contextSpec": {"memoryBankConfig": {"generationConfig": RULE}}},
        {"context_spec": 1},
    ],
)
async def test_what_is_wrong_is_said_as_google_says_it(url: str, engine: dict[str, Any]):
    name = await new_engine(url)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for answer in (await http.post(ENGINES, json=engine), await http.patch(f"/v1/{name}", json=engine)):
            error = answer.json()["error"]
            assert (answer.status_code, error["status"]) == INVALID
            assert error["message"]


async def test_engines_that_are_made_at_once_are_different(url: str):
    names = await asyncio.gather(*(new_engine(url) for _ in range(20)))

    assert len(set(names)) == 20


async def test_a_rebuild_reads_the_same(settings: Settings, url: str):
    name = await new_engine(url, contextSpec={"memoryBankConfig": VERTEX})
    await rememberer(url, name).create(scope=SCOPE)

    async def engines() -> list[Any]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            return list((await http.get(ENGINES, params={"pageSize": 1000})).json()["reasoningEngines"])

    before = await engines()
    await check_memories_rebuild(settings)

    assert await engines() == before
