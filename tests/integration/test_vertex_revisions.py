"""Google's own clients read what memories were, and go back to it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.memory_verbs import check_memories_rebuild
from tests.processes import until
from tests.vertex_clients import WAYS
from tests.vertex_memories import INVALID, NOT_FOUND, new_engine, refusal, rememberer

from runfold.settings import Settings

SOON = timedelta(seconds=30)
YEAR = timedelta(days=365)


@pytest.fixture(scope="module")
async def engine(url: str) -> str:
    return await new_engine(url)


@pytest.fixture
def google(url: str, engine: str) -> Any:
    return rememberer(url, engine)


def labelled(**labels: str) -> dict[str, Any]:
    """What the client has no field for."""
    return {"http_options": {"extra_body": {"revisionLabels": labels}}}


def revision_id(name: str) -> str:
    return name.rpartition("/")[2]


async def becomes_true(check: Callable[[], Awaitable[bool]]) -> None:
    await until(check, what="an expiry")


@pytest.mark.parametrize("way", WAYS)
async def test_every_change_leaves_a_revision_that_stays_as_it_is(url: str, engine: str, way: str):
    google = rememberer(url, engine, way)

    created = await google.create("one", **labelled(some_key="a"))
    [first] = await google.revisions(created.name)
    await google.update(created.name, "two")
    await google.rollback(created.name, revision_id(first.name))
    await google.delete(created.name)

    deleted, rolled_back, updated, oldest = await google.revisions(created.name)
    assert [deleted.fact or "", rolled_back.fact, updated.fact, oldest.fact] == ["", "one", "two", "one"]
    assert oldest.labels == {"some_key": "a"}
    assert oldest.create_time == created.create_time
    assert first.name == oldest.name
    times = [one.create_time for one in (oldest, updated, rolled_back, deleted)]
    assert times == sorted(set(times))
    for one in (deleted, rolled_back, updated, oldest):
        assert one.name.startswith(f"{created.name}/revisions/")
        read = await google.revision(one.name)
        assert (read.name, read.fact, read.create_time) == (one.name, one.fact, one.create_time)


async def test_a_revision_is_kept_for_as_long_as_somebody_says(url: str, google: Any):
    at = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=123457)
    ttl = {"ttl_config": {"memory_revision_default_ttl": "864000s"}}
    config = {"context_spec": {"memory_bank_config": ttl}}
    of_engine = rememberer(url, await new_engine(url, **config))

    async def kept(google: Any, **asked: Any) -> timedelta:
        [revision] = await google.revisions((await google.create(**asked)).name)
        return revision.expire_time - revision.create_time

    assert abs(await kept(google) - YEAR) < SOON
    assert abs(await kept(of_engine) - timedelta(days=10)) < SOON
    assert abs(await kept(of_engine, revision_ttl="3600.5s") - timedelta(hours=1, seconds=0.5)) < SOON
    [exact] = await of_engine.revisions((await of_engine.create(revision_expire_time=at)).name)
    assert exact.expire_time == at


async def test_an_expired_revision_is_not_there(google: Any):
    created = await google.create("one")
    passing = (await google.revisions(created.name))[0]
    while passing.fact != "two":  # a busy machine may look too late
        await google.update(created.name, "two", revision_ttl="4s")
        passing = (await google.revisions(created.name))[0]
    await google.update(created.name, "three")

    async def is_gone() -> bool:
        return await google.facts(created.name) == ["three", "one"]

    await becomes_true(is_gone)
    assert await refusal(google.revision(passing.name)) == NOT_FOUND
    assert await refusal(google.rollback(created.name, revision_id(passing.name))) == NOT_FOUND
    assert (await google.get(created.name)).fact == "three"


async def test_revisions_can_be_switched_off(url: str, google: Any):
    config = {"memoryBankConfig": {"disableMemoryRevisions": True}}
    silent = rememberer(url, await new_engine(url, contextSpec=config))

    of_engine = await silent.create("one")
    await silent.update(of_engine.name, "two")
    by_request = await google.create("one", disable_memory_revisions=True)
    await google.update(by_request.name, "two")
    await google.update(by_request.name, "three", disable_memory_revisions=True)

    assert (await silent.get(of_engine.name)).fact == "two"
    assert await silent.facts(of_engine.name) == []
    assert await google.facts(by_request.name) == ["two"]
    assert (await google.get(by_request.name)).fact == "three"


@pytest.mark.parametrize("way", ["agentplatform v1 sync", "vertexai v1beta1 async"])
async def test_revisions_are_filtered_by_their_labels_and_come_in_pages(url: str, engine: str, way: str):
    google = rememberer(url, engine, way)
    created = await google.create("0", **labelled(source="form"))
    for number in range(1, 7):
        labels = {"source": "chat"} if number % 2 else {"source": "form", "some_key": 'a "b"'}
        await google.update(created.name, str(number), **labelled(**labels))

    async def found(filter_: str, **config: Any) -> list[str]:
        return [one.fact for one in await google.revisions(created.name, filter=filter_, **config)]

    for size in (1, 2, 3, 7, 100):
        assert [one.fact for one in await google.revisions(created.name, page_size=size)] == list("6543210")
        assert await found('labels.source="chat"', page_size=size) == list("531")
        assert await found('labels.source="form" AND NOT labels.some_key:*', page_size=size) == ["0"]
    assert await found('labels.some_key="a \\"b\\""') == list("642")
    assert await found('labels.source="chat" AND labels.some_key="x"') == []
    assert await refusal(google.revisions(created.name, filter="label=1")) == INVALID
    assert await refusal(google.revisions(created.name, page_token="x")) == INVALID


async def test_a_memory_has_no_revision_of_another_one(url: str, google: Any):
    first, second = await google.create("first"), await google.create("second")
    other = rememberer(url, await new_engine(url))
    third = await other.create("third")
    [of_first] = await google.revisions(first.name)
    [of_third] = await other.revisions(third.name)
    foreign = f"{second.name}/revisions/{revision_id(of_first.name)}"

    assert await refusal(google.revision(foreign)) == NOT_FOUND
    for revision in (of_first.name, foreign, revision_id(of_first.name), of_third.name, "nobody"):
        assert await refusal(google.rollback(second.name, revision)) == NOT_FOUND
    assert await refusal(google.rollback(second.name, second.name)) == INVALID
    assert await refusal(google.rollback(second.name + "1", revision_id(of_first.name))) == NOT_FOUND
    assert (await google.get(second.name)) == second
    assert await google.facts(second.name) == ["second"]


@pytest.mark.parametrize("way", ["agentplatform v1beta1 sync", "vertexai v1 async"])
async def test_a_rollback_takes_a_revisions_id_and_its_full_name(url: str, engine: str, way: str):
    google = rememberer(url, engine, way)
    created = await google.create("one", display_name="n", topics=[{"custom_memory_topic_label": "t"}])
    await google.update(created.name, "two", display_name="m", topics=[])
    _, first = await google.revisions(created.name)

    await google.rollback(created.name, first.name)
    by_name = await google.get(created.name)
    await google.update(created.name, "three")
    await google.rollback(created.name, revision_id(first.name))
    by_id = await google.get(created.name)

    assert (by_name.fact, by_name.display_name) == ("one", "n")
    assert by_name.topics == created.topics
    assert (by_name.create_time, by_name.scope) == (created.create_time, created.scope)
    assert by_name.update_time > created.update_time
    assert by_id.fact == "one"
    assert await google.facts(created.name) == ["one", "three", "one", "two", "one"]


async def test_what_was_deleted_is_there_for_two_days_and_comes_back(url: str, google: Any):
    created = await google.create("one", {"user_id": "back"}, memory_id="back")
    await google.delete(created.name)
    deletion, first = await google.revisions(created.name)

    kept = [one.expire_time - deletion.create_time for one in (deletion, first)]
    assert await refusal(google.rollback(created.name, deletion.name)) == INVALID
    gone = await google.retrieve({"user_id": "back"})
    await google.rollback(created.name, first.name)

    assert kept == [timedelta(hours=48)] * 2
    assert gone == []
    assert [one.memory.fact for one in await google.retrieve({"user_id": "back"})] == ["one"]
    assert (await google.get(created.name)).create_time == created.create_time
    newest, *_, oldest = await google.revisions(created.name)
    assert newest.expire_time - newest.create_time > timedelta(days=360)
    assert oldest.expire_time - oldest.create_time > timedelta(days=360)


async def test_rollbacks_and_updates_at_once_all_leave_their_revision(url: str, google: Any):
    created = await google.create("0")
    [first] = await google.revisions(created.name)
    there = rememberer(url, google.engine, "vertexai v1 async")

    await asyncio.gather(
        *(google.update(created.name, str(number)) for number in range(1, 6)),
        *(there.rollback(created.name, first.name) for _ in range(5)),
    )

    facts = await google.facts(created.name)
    assert sorted(facts) == sorted([*"12345", *"000000"])
    assert (await google.get(created.name)).fact == facts[0]


async def test_a_rebuild_reads_the_same(settings: Settings, google: Any):
    await google.update((await google.create("one")).name, "two")
    names = [one.name for one in await google.list()]
    before = [await google.revisions(name) for name in names]

    await check_memories_rebuild(settings)

    assert [await google.revisions(name) for name in names] == before
