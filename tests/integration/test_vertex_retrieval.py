"""Google's own clients retrieve memories for an agent."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.memory_verbs import check_memories_rebuild
from tests.vertex_clients import WAYS, called
from tests.vertex_memories import INVALID, SCOPE, new_engine, refusal, rememberer

from runfold.settings import Settings

FACTS = [
    "The user drinks green tea every morning",
    "The user lives in Oslo",
    "The user plays the piano",
    "The user is allergic to peanuts",
]
NOON = datetime(2030, 1, 2, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
async def engine(url: str) -> str:
    """With four memories of a user, and some that resemble his."""
    name = await new_engine(url)
    google = rememberer(url, name)
    for number, fact in enumerate(FACTS):
        metadata = {
            "n": {"double_value": number},
            "place": {"string_value": "home" if number % 2 else "abroad"},
            "at": {"timestamp_value": NOON.replace(hour=number)},
            **({"checked": {"bool_value": True}} if number == 3 else {}),
        }
        await google.create(fact, metadata=metadata)
    await google.create(FACTS[0], {"user_id": "Ann"})
    await google.create(FACTS[0], {**SCOPE, "app": "a"})
    return name


@pytest.fixture
def google(url: str, engine: str) -> Any:
    return rememberer(url, engine)


def found(retrieved: Any) -> list[int]:
    """Which of the facts."""
    return [FACTS.index(one.memory.fact) for one in retrieved]


@pytest.mark.parametrize("way", WAYS)
async def test_every_client_retrieves_what_is_near_in_meaning(url: str, engine: str, way: str):
    google = rememberer(url, engine, way)

    retrieved = await google.nearest("Which hot beverages does she like?")

    assert found(retrieved)[0] == 0
    assert len(retrieved) == 3
    distances = [one.distance for one in retrieved]
    assert distances == sorted(distances)
    assert 0 < distances[0] < distances[1]
    assert retrieved[0].memory == await google.get(retrieved[0].memory.name)
    [same] = await google.nearest(FACTS[2], top_k=1)
    assert found([same]) == [2]
    assert same.distance == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("way", WAYS)
async def test_every_client_retrieves_all_of_a_scope(url: str, engine: str, way: str):
    google = rememberer(url, engine, way)

    retrieved = await google.retrieve()
    profiles = await called(google.memories.retrieve_profiles, name=engine, scope=SCOPE)

    assert found(retrieved) == [3, 2, 1, 0]
    assert all(one.distance is None for one in retrieved)
    assert not profiles.profiles


async def test_a_scope_is_matched_whole_and_to_the_letter(google: Any):
    assert len(await google.retrieve({"user_id": "Ann"})) == 1
    assert len(await google.retrieve({"app": "a", **SCOPE})) == 1
    assert len(await google.nearest("tea", top_k=100)) == 4
    for other in ({"user_id": "ANN"}, {"app": "a"}, {"User_id": "ann"}):
        assert await google.retrieve(other) == []
        assert await google.nearest("tea", scope=other) == []


async def test_pages_are_walked_by_hand(url: str, google: Any):
    params: dict[str, Any] = {"page_size": 3}
    pager = await google.pager(simple_retrieval_params=params)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        pages = [[FACTS.index(one.memory.fact) for one in pager.page]]
        asked = {"scope": SCOPE, "simpleRetrievalParams": {"page_size": 2}}
        while True:
            page = (await http.post(f"/v1/{google.engine}/memories:retrieve", json=asked)).json()
            pages.append([FACTS.index(one["memory"]["fact"]) for one in page["retrievedMemories"]])
            if "nextPageToken" not in page:
                break
            asked["simpleRetrievalParams"] = {"page_size": 2, "page_token": page["nextPageToken"]}

    assert pages == [[3, 2, 1], [3, 2], [1, 0]]


async def test_sizes_have_a_default_and_a_maximum(url: str):
    google = rememberer(url, await new_engine(url))
    for number in range(5):
        await google.create(f"fact {number}")

    async with httpx.AsyncClient(base_url=url, timeout=60) as http:

        async def size(**asked: Any) -> tuple[int, bool]:
            answer = await http.post(f"/v1/{google.engine}/memories:retrieve", json={"scope": SCOPE, **asked})
            retrieved = answer.json()
            return len(retrieved["retrievedMemories"]), "nextPageToken" in retrieved

        assert await size(simpleRetrievalParams={}) == (3, True)
        assert await size(simpleRetrievalParams={"pageSize": 1000}) == (5, False)
        assert await size(similaritySearchParams={"searchQuery": "x"}) == (3, False)
        assert await size(similaritySearchParams={"searchQuery": "x", "topK": 0}) == (3, False)
        assert await size(similaritySearchParams={"search_query": "x", "top_k": 101}) == (5, False)
        assert await size() == (5, False)


@pytest.mark.parametrize(
    ("filter_", "wanted"),
    [
        (f'fact="{FACTS[1]}"', {1}),
        (f'fact!="{FACTS[1]}"', {0, 2, 3}),
        ('create_time<"2030-01-01T00:00:00Z"', {0, 1, 2, 3}),
        ('update_time>"2030-01-01T00:00:00+00:00"', set()),
        (f'fact="{FACTS[1]}" OR fact="{FACTS[2]}"', {1, 2}),
    ],
)
async def test_what_is_retrieved_is_filtered(google: Any, filter_: str, wanted: set[int]):
    assert set(found(await google.retrieve(config={"filter": filter_}))) == wanted
    near = await google.nearest("x", top_k=100, config={"filter": filter_})
    assert set(found(near)) == wanted


def of(key: str, op: str = "EQUAL", *, negate: bool = False, **value: Any) -> dict[str, Any]:
    return {"key": key, "op": op, "negate": negate, "value": value}


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ([[of("n", double_value=2)]], {2}),
        ([[of("n", "GREATER_THAN", double_value=0), of("n", "LESS_THAN", double_value=3)]], {1, 2}),
        ([[of("place", string_value="home"), of("n", "GREATER_THAN", double_value=1)]], {3}),
        ([[of("place", string_value="home")], [of("n", double_value=0)]], {0, 1, 3}),
        ([[of("place", string_value="home", negate=True)]], {0, 2}),
        ([[of("checked", bool_value=True)]], {3}),
        ([[of("checked", bool_value=True, negate=True)]], {0, 1, 2}),
        ([[of("at", "LESS_THAN", timestamp_value=NOON.replace(hour=2))]], {0, 1}),
        ([[of("n", string_value="2")]], set()),
        ([[of("other", double_value=1)]], set()),
    ],
)
async def test_groups_of_filters_are_an_or_of_ands(
    google: Any, groups: list[list[dict[str, Any]]], wanted: set[int]
):
    config = {"filter_groups": [{"filters": filters} for filters in groups]}

    assert set(found(await google.retrieve(config=config))) == wanted
    assert set(found(await google.nearest("music", top_k=100, config=config))) == wanted
    both = {**config, "filter": f'fact="{FACTS[3]}"'}
    assert set(found(await google.retrieve(config=both))) == wanted & {3}


async def test_texts_are_the_only_type_of_memory(google: Any):
    texts, profiles = "NATURAL_LANGUAGE_COLLECTION", "STRUCTURED_PROFILE"

    assert len(await google.retrieve(config={"memory_types": [texts, profiles]})) == 4
    assert await google.retrieve(config={"memory_types": [profiles]}) == []
    assert await google.nearest("tea", config={"memory_types": [profiles]}) == []


async def test_there_are_no_profiles_whatever_the_engine_is_configured_with(url: str):
    memory = {"structuredMemoryConfigs": [{"schemaConfigs": [{"id": "s", "schema": {"type": "OBJECT"}}]}]}
    engine = await new_engine(url, contextSpec={"memoryBankConfig": memory})
    memories = f"{url}/v1beta1/{engine}/memories"
    async with httpx.AsyncClient(timeout=60) as http:
        profiles = await http.post(f"{memories}:retrieveProfiles", json={"scope": SCOPE})
        asked = {"scope": SCOPE, "memoryTypes": ["STRUCTURED_PROFILE"]}
        retrieved = await http.post(
            f"{memories}:retrieve", json={**asked, "similaritySearchParams": {"searchQuery": "x"}}
        )

    assert (profiles.status_code, profiles.json()) == (200, {"profiles": {}})
    assert (retrieved.status_code, retrieved.json()) == (200, {"retrievedMemories": []})


async def test_what_changed_is_retrieved_as_it_is(url: str):
    google = rememberer(url, await new_engine(url))
    created = await google.create("Lives in Oslo")

    assert [one.memory.fact for one in await google.nearest("home town")] == ["Lives in Oslo"]
    await google.update(created.name, "Lives in Bergen")
    assert [one.memory.fact for one in await google.nearest("home town")] == ["Lives in Bergen"]
    await google.delete(created.name)
    assert await google.nearest("home town") == []


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        yield http


@pytest.mark.parametrize(
    "asked",
    [
        {"scope": {}},
        {"scope": {"a": "*"}},
        {"scope": {"a": 1}},
        {},
        {"scope": SCOPE, "similaritySearchParams": {}},
        {"scope": SCOPE, "similaritySearchParams": {"searchQuery": ""}},
        {"scope": SCOPE, "similaritySearchParams": {"searchQuery": "x", "topK": -1}},
        {"scope": SCOPE, "similaritySearchParams": {"searchQuery": "x"}, "simpleRetrievalParams": {}},
        {"scope": SCOPE, "simpleRetrievalParams": {"pageToken": "x"}},
        {"scope": SCOPE, "filter": "fact="},
        {"scope": SCOPE, "filterGroups": [{}]},
        {"scope": {"a": "nobody"}, "filterGroups": [{"filters": [{"key": "n", "value": {}}]}]},
        {"scope": SCOPE, "filterGroups": [{"filters": [{"key": "n", "op": "LIKE", "value": {}}]}]},
    ],
)
async def test_what_is_wrong_is_said_as_google_says_it(
    http: httpx.AsyncClient, engine: str, asked: dict[str, Any]
):
    answer = await http.post(f"/v1/{engine}/memories:retrieve", json=asked)

    assert (answer.status_code, answer.json()["error"]["status"]) == INVALID


async def test_a_scope_is_needed(google: Any):
    assert await refusal(called(google.memories.retrieve_profiles, name=google.engine, scope={})) == INVALID


async def test_a_rebuild_retrieves_the_same(settings: Settings, google: Any):
    before = await google.nearest("tea", top_k=100), await google.retrieve()

    await check_memories_rebuild(settings)

    near, whole = await google.nearest("tea", top_k=100), await google.retrieve()
    assert (found(near), whole) == (found(before[0]), before[1])
    assert [one.distance for one in near] == pytest.approx([one.distance for one in before[0]], abs=1e-5)
