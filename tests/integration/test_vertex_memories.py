"""Google's own clients use our memories as if they were Memory Bank's."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from google.genai import errors
from tests.ingesting import is_ready
from tests.memory_verbs import check_memories_rebuild, opened_memories
from tests.processes import until
from tests.querying import served
from tests.vertex_clients import KEY_ONLY, PROJECT, TOKEN, WAYS, WITH_KEY
from tests.vertex_memories import ENGINES, INVALID, NOT_FOUND, SCOPE, new_engine, refusal, rememberer

from runfold.api.app import build_app
from runfold.settings import Settings
from runfold_schemas.memories import Memory

YEAR = timedelta(days=365)
SOON = timedelta(seconds=30)


@pytest.fixture(scope="module")
async def engine(url: str) -> str:
    return await new_engine(url, displayName="memories")


@pytest.fixture
def google(url: str, engine: str) -> Any:
    return rememberer(url, engine)


@pytest.mark.parametrize("way", WAYS)
async def test_every_client_goes_through_the_life_of_a_memory(url: str, way: str):
    google = rememberer(url, await new_engine(url), way)

    created = await google.create("Likes tea", display_name="Drinks", description="What to offer")
    read = await google.get(created.name)
    await google.update(created.name, "Likes coffee")
    updated = await google.get(created.name)
    newest, oldest = await google.revisions(created.name)
    await google.rollback(created.name, oldest.name.rpartition("/")[2])
    rolled_back = await google.get(created.name)
    listed = [each.name for each in await google.list()]
    await google.delete(created.name)

    assert created.name.startswith(f"{google.engine}/memories/")
    assert (created.fact, created.scope) == ("Likes tea", SCOPE)
    assert (created.display_name, created.description) == ("Drinks", "What to offer")
    assert created.create_time == created.update_time
    assert created.expire_time is None
    assert read == created
    assert updated.fact == "Likes coffee"
    assert (updated.create_time, updated.display_name) == (created.create_time, "Drinks")
    assert updated.update_time > created.update_time
    assert [newest.fact, oldest.fact] == ["Likes coffee", "Likes tea"]
    assert rolled_back.fact == "Likes tea"
    assert listed == [created.name]
    assert await refusal(google.get(created.name)) == NOT_FOUND
    assert await google.list() == []
    assert await google.retrieve() == []
    assert await google.facts(created.name) == ["", "Likes tea", "Likes coffee", "Likes tea"]
    await google.rollback(created.name, newest.name)
    assert (await google.get(created.name)).fact == "Likes coffee"


@pytest.mark.parametrize(
    ("given", "project"),
    [(TOKEN, PROJECT), (WITH_KEY, PROJECT), (KEY_ONLY, "projects/runfold/locations/local")],
)
async def test_whichever_way_a_client_is_authorized_names_are_full(
    url: str, engine: str, given: dict[str, Any], project: str
):
    short = f"reasoningEngines/{engine.rpartition('/')[2]}"
    google = rememberer(url, short, given=given)

    created = await google.create()

    memory_id = created.name.rpartition("/")[2]
    assert created.name == f"{project}/{short}/memories/{memory_id}"
    assert await google.get(f"{short}/memories/{memory_id}") == created
    assert (await google.revisions(created.name))[0].name.startswith(f"{created.name}/revisions/")


async def test_what_a_memory_holds_comes_back_as_it_was(google: Any):
    at = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=-3)))
    metadata = {
        "text_key": {"string_value": ""},
        "numberKey": {"double_value": 3.0},
        "flag": {"bool_value": False},
        "when": {"timestamp_value": at},
    }
    topics = [{"managed_memory_topic": "USER_PREFERENCES"}, {"custom_memory_topic_label": "drinks"}]
    scope = {"user_id": 'a "b" \\ ü', "camelKey": "X"}

    created = await google.create("Mag Tee ☕", scope, metadata=metadata, topics=topics, expire_time=at)

    values = {key: value.model_dump(exclude_none=True) for key, value in created.metadata.items()}
    assert values == metadata
    assert [topic.model_dump(exclude_none=True, mode="json") for topic in created.topics] == topics
    assert (created.fact, created.scope, created.expire_time) == ("Mag Tee ☕", scope, at)
    assert [each.memory for each in await google.retrieve(scope)] == [created]


async def test_a_memory_has_the_id_that_is_chosen(google: Any):
    created = await google.create(memory_id="tea-1")

    assert created.name.endswith("/memories/tea-1")
    assert await refusal(google.create(memory_id="tea-1")) == (409, "ALREADY_EXISTS")
    for wrong in ("1-tea", "Tea", "tea-", "tea_1", "t" * 64, "tee:rollback"):
        assert await refusal(google.create(memory_id=wrong)) == INVALID
    assert (await google.create(memory_id="t" * 63)).fact == "Likes tea"


async def test_a_time_to_live_is_the_requests_or_else_the_engines(url: str):
    at = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=123457)
    ttl = {"ttlConfig": {"defaultTtl": "864000s", "granularTtlConfig": {"createTtl": "86400s"}}}
    granular = rememberer(url, await new_engine(url, contextSpec={"memoryBankConfig": ttl}))
    plain = {"memory_bank_config": {"ttl_config": {"default_ttl": "864000.5s"}}}
    default = rememberer(url, await new_engine(url, context_spec=plain))

    by_engine = await granular.create()
    by_default = await default.create()
    by_ttl = await granular.create(ttl="3600.25s")
    by_time = await granular.create(expire_time=at)

    assert_about(by_engine.expire_time - by_engine.create_time, timedelta(days=1))
    assert_about(by_default.expire_time - by_default.create_time, timedelta(days=10, seconds=0.5))
    assert_about(by_ttl.expire_time - by_ttl.create_time, timedelta(seconds=3600.25))
    assert by_time.expire_time == at


def assert_about(found: timedelta, wanted: timedelta) -> None:
    assert abs(found - wanted) < SOON


async def test_what_has_expired_is_not_there(google: Any):
    scope = {"user_id": "soon"}
    created = await google.create(scope=scope, ttl="0.3s", memory_id="soon")

    async def is_gone() -> bool:
        try:
            await google.get(created.name)
        except errors.ClientError as error:
            return error.code == 404
        return False

    await until(is_gone, what="a memory's expiry")
    assert await google.retrieve(scope) == []
    assert created.name not in [each.name for each in await google.list()]
    assert await refusal(google.update(created.name, "late")) == NOT_FOUND
    assert await google.facts(created.name) == ["Likes tea"]
    assert (await google.create("Again", scope, memory_id="soon")).fact == "Again"


async def test_a_mask_says_what_changes(google: Any):
    created = await google.create(
        display_name="first", description="d", topics=[{"custom_memory_topic_label": "a"}], ttl="3600s"
    )
    name = created.name

    await google.update(name, "Second", display_name="second", update_mask="fact")
    masked = await google.get(name)
    await google.update(name, update_mask="display_name,topics,expireTime,metadata")
    cleared = await google.get(name)
    await google.update(name, "Third", ttl="7200s", update_mask="expire_time")
    lasting = await google.get(name)
    await google.update(name, "Fourth", SCOPE, metadata={"k": {"double_value": 1}})
    whole = await google.get(name)

    assert (masked.fact, masked.display_name) == ("Second", "first")
    assert (cleared.fact, cleared.description) == ("Second", "d")
    assert (cleared.display_name, cleared.topics, cleared.expire_time) == (None, None, None)
    assert_about(lasting.expire_time - lasting.update_time, timedelta(hours=2))
    assert lasting.fact == "Second"
    assert (whole.fact, whole.metadata["k"].double_value) == ("Fourth", 1.0)
    assert await refusal(google.update(name, "x", update_mask="name")) == INVALID
    assert await refusal(google.update(name, update_mask="fact")) == INVALID
    assert await refusal(google.update(name, scope={"user_id": "eve"})) == INVALID
    assert (await google.get(name)) == whole


async def test_lists_are_filtered_and_ordered(url: str):
    google = rememberer(url, await new_engine(url))
    first = await google.create("one", {"user_id": "ann", "app": "a"})
    second = await google.create("two", {"user_id": "ann", "app": 'b "x"'})
    third = await google.create('a "quoted" fact', {"user_id": "bob", "app": "a"})
    await google.update(first.name, "uno")

    async def found(filter_: str | None = None, **config: Any) -> list[str]:
        listed = await google.list(**({"filter": filter_} if filter_ else {}), **config)
        return [each.name for each in listed]

    one, two, three = first.name, second.name, third.name
    assert await found() == await found(order_by="create_time desc") == [three, two, one]
    assert await found(order_by="createTime asc") == await found(order_by="create_time") == [one, two, three]
    assert await found(order_by="update_time desc") == [one, three, two]
    assert await found(order_by="update_time  asc") == [two, three, one]
    assert await found('scope="{\\"app\\": \\"a\\", \\"user_id\\": \\"ann\\"}"') == [one]
    assert await found('scope="{\\"user_id\\": \\"ann\\"}"') == []
    assert await found('scope.user_id="ann"') == await found("scope.user_id=ann") == [two, one]
    assert await found('scope.app="b \\"x\\""') == [two]
    assert await found('fact="a \\"quoted\\" fact"') == [three]
    after = second.create_time.astimezone(timezone(timedelta(hours=2))).isoformat()
    assert await found(f'create_time>="{after}"') == [three, two]
    assert await found(f'createTime>"{after}" AND scope.app="a"') == [three]
    assert await found(f'update_time<="{after}"') == [two]
    assert await refusal(google.list(filter="facts=x")) == INVALID
    assert await refusal(google.list(order_by="fact")) == INVALID
    assert await refusal(google.list(page_token="x")) == INVALID


@pytest.mark.parametrize("way", ["agentplatform v1 sync", "vertexai v1beta1 async"])
async def test_pages_end_where_nothing_follows(url: str, way: str):
    google = rememberer(url, await new_engine(url), way)
    for number in range(4):
        await google.create(f"fact {number}", {"user_id": "ann" if number % 2 else "bob"})

    for size in (1, 2, 3, 4, 100):
        assert len(await google.list(page_size=size)) == 4
        assert len(await google.list(page_size=size, filter='scope.user_id="bob"')) == 2
        assert len(await google.list(page_size=size, order_by="update_time asc")) == 4


async def test_a_purge_counts_and_only_by_force_deletes(url: str):
    google = rememberer(url, await new_engine(url))
    for number in range(6):
        await google.create(f"fact {number}", metadata={"n": {"double_value": number}})
    await google.create("of bob", {"user_id": "bob"})
    large = [{"filters": [{"key": "n", "value": {"double_value": 3}, "op": "GREATER_THAN"}]}]

    counted = await google.purge(filter='scope.user_id="ann"')
    by_groups = await google.purge(filter_groups=large)
    none = await google.purge(filter='fact="fact 0"', filter_groups=large, force=True)
    before = len(await google.list())
    purged = await google.purge(filter_groups=large, force=True)

    assert (counted, by_groups, none, before, purged) == (6, 2, 0, 7, 2)
    assert len(await google.list()) == 5
    for nothing in ({}, {"filter": ""}, {"filter_groups": []}):
        assert await refusal(google.purge(**nothing, force=True)) == INVALID
    assert await google.purge(filter='scope.user_id="ann"', force=True) == 4
    assert [each.fact for each in await google.list()] == ["of bob"]


async def test_writers_at_the_same_time_all_leave_their_revision(url: str, google: Any):
    created = await google.create("0")
    others = [rememberer(url, google.engine, way) for way in WAYS]

    await asyncio.gather(
        *(other.update(created.name, f"by {way}") for other, way in zip(others, WAYS, strict=True))
    )
    await asyncio.gather(
        *(other.update(created.name, display_name="d") for other in others[:4]),
        *(other.update(created.name, description="e") for other in others[4:]),
    )

    facts = await google.facts(created.name)
    after = await google.get(created.name)
    assert len(facts) == 17
    assert set(facts) == {"0", *(f"by {way}" for way in WAYS)}
    assert (after.display_name, after.description, after.fact) == ("d", "e", facts[0])


async def test_what_one_server_acknowledged_another_one_has(settings: Settings, google: Any):
    """Without waiting for an operation, as clients do with updates and deletions."""
    async with served(build_app(settings)) as http:
        await until(lambda: is_ready(http), what="the other server's connection to Kafka")
        there = rememberer(str(http.base_url).rstrip("/"), google.engine)
        for number in range(5):
            created = await google.create(f"fact {number}", {"user_id": "both"})
            assert (await there.get(created.name)).fact == f"fact {number}"
            await there.update(created.name, "changed")
            assert (await google.get(created.name)).fact == "changed"
            assert await google.facts(created.name) == ["changed", f"fact {number}"]
            assert [each.memory.fact for each in await google.retrieve({"user_id": "both"})] == ["changed"]
            await google.delete(created.name)
            assert await refusal(there.get(created.name)) == NOT_FOUND
            assert await there.retrieve({"user_id": "both"}) == []


async def test_what_is_wrong_is_said_as_google_says_it(url: str, google: Any):
    at = datetime.now(UTC) + YEAR
    unknown = rememberer(url, "reasoningEngines/404")
    foreign = rememberer(url, "reasoningEngines/travel")

    for engine in (unknown, foreign):
        assert await refusal(engine.create()) == NOT_FOUND
        assert await refusal(engine.list()) == NOT_FOUND
        assert await refusal(engine.retrieve()) == NOT_FOUND
        assert await refusal(engine.nearest("tea")) == NOT_FOUND
        assert await refusal(engine.purge(force=True)) == NOT_FOUND
    nobody = f"{google.engine}/memories/nobody"
    assert await refusal(google.get(nobody)) == NOT_FOUND
    assert await refusal(google.update(nobody, "x")) == NOT_FOUND
    assert await refusal(google.delete(nobody)) == NOT_FOUND
    assert await refusal(google.revisions(nobody)) == NOT_FOUND
    assert await refusal(google.create("")) == INVALID
    assert await refusal(google.create(scope={"user_id": "*"})) == INVALID
    assert await refusal(google.create(scope={f"k{n}": "v" for n in range(6)})) == INVALID
    assert await refusal(google.create(ttl="3600s", expire_time=at)) == INVALID
    assert await refusal(google.create(revision_ttl="3600s", revision_expire_time=at)) == INVALID
    assert await refusal(google.create(ttl="-1s")) == INVALID
    assert await refusal(google.create(ttl="an hour")) == INVALID
    assert await refusal(google.create(expire_time=at - 2 * YEAR)) == INVALID
    assert await refusal(google.create(metadata={"k": {}})) == INVALID
    assert await refusal(google.retrieve({"user_id": "*"})) == INVALID


async def test_a_memory_of_our_own_verbs_is_there_whatever_its_id(settings: Settings, google: Any):
    engine_id = google.engine.rpartition("/")[2]
    async with opened_memories(settings) as memories:
        made = Memory(fact="From elsewhere", scope={"user_id": "odd"})
        await memories.create(engine_id, made, memory_id="a/b %2F:c ü")
        await memories.create_bank("travel-odd")
        await memories.create("travel-odd", made)

    [retrieved] = await google.retrieve({"user_id": "odd"})
    await google.update(retrieved.memory.name, "Changed here")

    assert (await google.get(retrieved.memory.name)).fact == "Changed here"
    async with opened_memories(settings) as memories:
        assert (await memories.get(engine_id, "a/b %2F:c ü")).memory.fact == "Changed here"


async def test_an_operation_is_answered_again(url: str, engine: str):
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        made = {"fact": "x", "scope": SCOPE, "revision_labels": {"some_key": "v"}, "unknown": 1}
        created = (await http.post(f"/v1/{engine}/memories", json=made, params={"memory_id": "op"})).json()
        updated = await http.patch(f"/v1beta1/{created['response']['name']}", json={"fact": "y"})
        again = (await http.get(f"/v1/{updated.json()['name']}")).json()
        purged = (await http.post(f"/v1/{engine}/memories:purge", json={"filter": 'fact="y"'})).json()
        purged_again = (await http.get(f"/v1beta1/{purged['name']}")).json()
        deleted = (await http.delete(f"/v1/{created['response']['name']}")).json()
        deleted_again = (await http.get(f"/v1/{deleted['name']}")).json()
        gone = await http.get(f"/v1/{created['name']}")
        unknown = await http.get(f"{ENGINES}/1/memories/2/operations/3")

    assert again == updated.json()
    assert again["name"].startswith(f"{engine}/memories/op/operations/")
    assert purged_again == purged
    assert purged["response"]["purgeCount"] == 1
    assert deleted_again == deleted
    assert deleted["done"]
    for answer in (gone, unknown):
        assert answer.status_code == 404
        assert answer.json()["error"]["status"] == "NOT_FOUND"


async def test_a_rebuild_reads_the_same(settings: Settings, url: str):
    await rememberer(url, await new_engine(url)).create("likes tea", scope=SCOPE)
    before = await everything(url)

    await check_memories_rebuild(settings)

    assert await everything(url) == before


async def everything(url: str) -> dict[str, list[Any]]:
    """What the wire lists of all engines."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        engines = (await http.get(ENGINES, params={"pageSize": 1000})).json()["reasoningEngines"]

        async def of_engine(name: str) -> list[Any]:
            listed = (await http.get(f"/v1/{name}/memories", params={"pageSize": 1000})).json()["memories"]
            near = {"scope": SCOPE, "similaritySearchParams": {"searchQuery": "tea", "topK": 100}}
            return [*listed, (await http.post(f"/v1/{name}/memories:retrieve", json=near)).json()]

        read = await asyncio.gather(*(of_engine(engine["name"]) for engine in engines))
        return {engine["name"]: [engine, *of] for engine, of in zip(engines, read, strict=True)}
