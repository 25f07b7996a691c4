"""Memories by their verbs, read from the log alone and from MongoDB: each change is a revision, and
what was can be again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import pytest
from tests.memory_verbs import check_memories_rebuild, expiring, memories_by, opened_memories, until_passed
from tests.processes import DEADLINE_SECONDS
from tests.querying import Projected, projected
from tests.session_verbs import patiently

from runfold import PlannerNote
from runfold.client.memory import MemorySelection, MemoryVerbs, RevisionOptions
from runfold.ids import new_event_id
from runfold.log.shared import send_shared
from runfold.settings import Settings
from runfold.verify.memories import verify_memories
from runfold.verify.shared import SharedDifference
from runfold_projections.memory import MemoryRecord
from runfold_projections.state import Forward
from runfold_schemas.codec import new_event
from runfold_schemas.errors import (
    BankConflictError,
    BankNotEmptyError,
    BankNotFoundError,
    ConfigurationError,
    InvalidEventError,
    MemoryConflictError,
    MemoryNotFoundError,
    RevisionNotFoundError,
    UndecidedError,
)
from runfold_schemas.memories import (
    BankConfig,
    MemoriesGenerated,
    Memory,
    MemoryCreated,
    MemoryDeleted,
    MemoryUpdated,
    memory_key,
)

WAYS = ("log", "stored", "http")
LOCAL = ("log", "stored")
"""Which can be given a function to filter by."""

SCOPE = {"user": "ann"}


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str) -> Settings:
    return Settings(kafka=kafka, mongo=mongo, prefix=f"m{uuid4().hex[:8]}", wait_timeout_seconds=20)


@pytest.fixture(scope="module")
async def worker(settings: Settings) -> AsyncIterator[Projected]:
    async with projected(settings) as at_work:
        yield at_work


@pytest.fixture(scope="module", params=WAYS)
async def memories(request, settings: Settings, worker: Projected) -> AsyncIterator[MemoryVerbs]:
    async with memories_by(request.param, settings) as memories:
        yield memories


@pytest.fixture
async def bank(memories: MemoryVerbs) -> str:
    return (await memories.create_bank()).bank_id


def memory(fact: str = "likes tea", **fields) -> Memory:
    return Memory(**{"fact": fact, "scope": SCOPE, **fields})


async def history(memories: MemoryVerbs, bank: str, memory_id: str) -> list[tuple[str, str]]:
    found, following = await memories.revisions(bank, memory_id)
    assert following is None
    return [(one.action, one.fact) for one in found]


async def names_of(memories: MemoryVerbs, bank: str, limit: int = 10, **wanted) -> list[str]:
    """The ids of all pages, in their order."""
    names, cursor = [], None
    while True:
        page, cursor = await memories.list(bank, MemorySelection(**wanted), limit=limit, cursor=cursor)
        assert len(page) <= limit
        names += [one.memory_id for one in page]
        if cursor is None:
            return names


async def test_what_is_created_is_read(memories, bank):
    said = memory(
        topics=({"managed": "USER_PREFERENCES"}, {"custom": "drinks"}),
        metadata={"sure": True, "of": 0.5, "by": "me", "since": {"timestamp": "2026-01-01T00:00:00.000001Z"}},
        display_name="Tea",
        description="What ann drinks",
        expires_at=datetime.now(UTC) + timedelta(days=1),
    )

    created = await memories.create(bank, said, memory_id="tea")

    assert created.memory == said
    assert await memories.get(bank, "tea") == created
    assert (await memories.list(bank)) == ([created], None)


async def test_of_two_creations_of_one_id_the_first_stands(memories, bank):
    async def create(fact: str) -> MemoryRecord:
        return await memories.create(bank, memory(fact), memory_id="m")

    made = await asyncio.gather(*map(create, "abcd"), return_exceptions=True)

    [stands] = [one for one in made if not isinstance(one, Exception)]
    assert sum(isinstance(one, MemoryConflictError) for one in made) == 3
    assert await memories.get(bank, "m") == stands
    assert await history(memories, bank, "m") == [("created", stands.memory.fact)]


async def test_from_create_to_rollback(memories, bank):
    created = await memories.create(bank, memory("likes tea"))
    name = created.memory_id
    await memories.update(bank, name, {"fact": "likes coffee"})

    back = await memories.rollback(bank, name, created.revision_id)

    assert (back.memory, back.created_at) == (created.memory, created.created_at)
    expected = [("rolled_back", "likes tea"), ("updated", "likes coffee"), ("created", "likes tea")]
    assert await history(memories, bank, name) == expected


async def test_a_deleted_memory_is_gone_at_once_and_can_be_rolled_back(memories, bank):
    created = await memories.create(bank, memory())
    name = created.memory_id

    await memories.delete(bank, name)

    with pytest.raises(MemoryNotFoundError):
        await memories.get(bank, name)
    with pytest.raises(MemoryNotFoundError):
        await memories.update(bank, name, {"fact": "x"})
    with pytest.raises(MemoryNotFoundError):
        await memories.delete(bank, name)
    assert (await memories.list(bank)) == ([], None)
    deletion, first = (await memories.revisions(bank, name))[0]
    assert (deletion.action, deletion.fact) == ("deleted", "")
    assert first.expires_at == deletion.created_at + timedelta(hours=48)
    with pytest.raises(InvalidEventError, match="earlier"):
        await memories.rollback(bank, name, deletion.revision_id)
    assert (await memories.rollback(bank, name, first.revision_id)).memory == created.memory
    assert (await memories.revision(bank, name, first.revision_id)).expires_at > first.expires_at


async def test_what_is_created_anew_has_nothing_of_what_had_its_id_before(memories, bank):
    before = await memories.create(bank, memory("a secret"), memory_id="m")
    await memories.delete(bank, "m")

    await memories.create(bank, memory("hers", scope={"user": "ben"}), memory_id="m")

    assert await history(memories, bank, "m") == [("created", "hers")]
    for verb in (memories.revision, memories.rollback):
        with pytest.raises(RevisionNotFoundError):
            await verb(bank, "m", before.revision_id)
    await memories.delete_bank(bank, force=True)
    await memories.create_bank(bank)
    for verb in (memories.revision, memories.rollback):
        with pytest.raises(MemoryNotFoundError):
            await verb(bank, "m", before.revision_id)
    with pytest.raises(MemoryNotFoundError):
        await memories.revisions(bank, "m")


async def test_a_rollback_keeps_what_was_said_of_its_expiry(memories, bank):
    later = datetime.now(UTC) + timedelta(hours=1)
    long = await memories.create(bank, memory(expires_at=later))
    await memories.delete(bank, long.memory_id)

    async def expired_and_back(soon: datetime) -> tuple[MemoryRecord, MemoryRecord]:
        short = await memories.create(bank, memory(expires_at=soon))
        await until_passed(soon)
        # Afterwards it lives for as long again, and is read in this time.
        return short, await memories.rollback(bank, short.memory_id, short.revision_id)

    (short, again), soon = await expiring(expired_and_back)
    deleted = await memories.rollback(bank, long.memory_id, long.revision_id)

    assert again.memory.expires_at - again.updated_at == soon - short.created_at
    assert deleted.memory.expires_at == later


async def test_writers_of_one_memory_lose_nothing_of_each_other(memories, bank):
    name = (await memories.create(bank, memory())).memory_id
    changes = [{"display_name": "a"}, {"description": "b"}, {"fact": "c"}, {"metadata": {"d": 1}}]

    await asyncio.gather(*(memories.update(bank, name, one) for one in changes))

    held = (await memories.get(bank, name)).memory
    assert (held.display_name, held.description, held.fact, held.metadata) == ("a", "b", "c", {"d": 1})
    assert len(await history(memories, bank, name)) == 5


async def test_writers_of_one_bank_lose_nothing_of_each_other(memories, bank):
    changes = [{"display_name": "a"}, {"description": "b"}, {"labels": {"c": "d"}}, {"agents": ("e",)}]

    await asyncio.gather(*(memories.update_bank(bank, one) for one in changes))

    config = (await memories.bank(bank)).config
    told = (config.display_name, config.description, config.labels, config.agents)
    assert told == ("a", "b", {"c": "d"}, ("e",))


@pytest.mark.parametrize(
    "expires_at", [datetime(2020, 1, 1, tzinfo=UTC), datetime.fromisoformat("9999-12-31T23:59:59-12:00")]
)
async def test_a_memory_expires_in_times_to_come_that_can_be_reckoned_with(memories, bank, expires_at):
    with pytest.raises(InvalidEventError):
        await memories.create(bank, memory().model_copy(update={"expires_at": expires_at}))
    made = await memories.create(bank, memory())
    with pytest.raises(InvalidEventError):
        await memories.update(bank, made.memory_id, {"expires_at": expires_at})

    assert len(await history(memories, bank, made.memory_id)) == 1


async def test_a_scope_never_changes(memories, bank):
    created = await memories.create(bank, memory())

    with pytest.raises(InvalidEventError, match="scope"):
        await memories.update(bank, created.memory_id, {"scope": {"user": "ben"}})
    with pytest.raises(InvalidEventError, match="no field"):
        await memories.update(bank, created.memory_id, {"colour": "red"})

    assert await memories.get(bank, created.memory_id) == created


async def test_a_revision_is_its_own_memorys(memories, bank):
    one, other = [await memories.create(bank, memory(fact)) for fact in ("one", "other")]

    with pytest.raises(RevisionNotFoundError):
        await memories.revision(bank, one.memory_id, other.revision_id)
    with pytest.raises(RevisionNotFoundError):
        await memories.rollback(bank, one.memory_id, other.revision_id)
    assert await memories.get(bank, one.memory_id) == one


async def test_revisions_are_paged_newest_first_and_filtered_by_labels(memories, bank):
    name = (await memories.create(bank, memory("0"))).memory_id
    for number in range(1, 5):
        labels = {"even": str(number % 2 == 0)}
        await memories.update(bank, name, {"fact": f"{number}"}, revision=RevisionOptions(labels=labels))

    first, cursor = await memories.revisions(bank, name, limit=3)
    second, end = await memories.revisions(bank, name, limit=3, cursor=cursor)
    assert [one.fact for one in [*first, *second]] == ["4", "3", "2", "1", "0"]
    assert end is None
    even, _ = await memories.revisions(bank, name, labels={"even": "True"})
    assert [one.fact for one in even] == ["4", "2"]


async def test_revisions_can_be_disabled_for_a_change_and_for_a_bank(memories, bank):
    name = (await memories.create(bank, memory())).memory_id
    await memories.update(bank, name, {"fact": "b"}, revision=RevisionOptions(disabled=True))
    await memories.update_bank(bank, {"disable_revisions": True})
    await memories.update(bank, name, {"fact": "c"})

    assert (await memories.get(bank, name)).memory.fact == "c"
    assert await history(memories, bank, name) == [("created", "likes tea")]


async def test_the_request_decides_how_long_a_revision_is_kept_then_the_bank_then_a_year(memories, bank):
    async def kept_for(revision: RevisionOptions | None = None) -> timedelta:
        made = await memories.create(bank, memory(), revision=revision)
        found = await memories.revision(bank, made.memory_id, made.revision_id)
        return found.expires_at - found.created_at

    assert await kept_for() == timedelta(days=365)
    await memories.update_bank(bank, {"revision_ttl_seconds": 3600})
    assert await kept_for() == timedelta(hours=1)
    until = datetime.now(UTC) + timedelta(days=2)
    assert await kept_for(RevisionOptions(expires_at=until)) > timedelta(days=1)


async def test_what_has_expired_is_neither_read_nor_rolled_back_to(memories, bank):
    soon = datetime.now(UTC) + timedelta(seconds=1)

    async def created_and_updated(later: datetime) -> MemoryRecord:
        made = await memories.create(
            bank, memory(expires_at=later), revision=RevisionOptions(expires_at=soon)
        )
        await memories.update(bank, made.memory_id, {"fact": "b", "expires_at": later})
        return made

    created, later = await expiring(created_and_updated)
    name, revision_id = created.memory_id, created.revision_id
    await until_passed(max(soon, later))

    with pytest.raises(MemoryNotFoundError):
        await memories.get(bank, name)
    assert (await memories.list(bank)) == ([], None)
    with pytest.raises(RevisionNotFoundError):
        await memories.revision(bank, name, revision_id)
    with pytest.raises(RevisionNotFoundError):
        await memories.rollback(bank, name, revision_id)
    with pytest.raises(MemoryNotFoundError):
        await memories.update(bank, name, {"fact": "c"})
    assert (await memories.create(bank, memory("anew"), memory_id=name)).memory.fact == "anew"


async def test_a_banks_time_to_live_is_that_of_its_memories(memories, bank):
    await memories.update_bank(bank, {"memory_ttl_seconds": 3600, "create_ttl_seconds": 7200})

    made = await memories.create(bank, memory())

    assert made.memory.expires_at == made.created_at + timedelta(hours=2)


async def test_lists_go_by_scope_time_and_page(memories, bank):
    for name in "abc":
        await memories.create(bank, memory(), memory_id=name)
    await memories.create(bank, memory(scope={**SCOPE, "app": "x"}), memory_id="other")
    await memories.update(bank, "a", {"fact": "later"})
    listed = partial(names_of, memories, bank)

    assert await listed() == await listed(limit=1) == ["other", "c", "b", "a"]
    assert await listed(scope=SCOPE, ascending=True, limit=2) == ["a", "b", "c"]
    assert await listed(order="updated_at", limit=3) == ["a", "other", "c", "b"]


@pytest.mark.parametrize("memories", LOCAL, indirect=True)
async def test_lists_can_be_filtered_by_a_function(memories, bank):
    for name in "abcd":
        await memories.create(bank, memory(), memory_id=name)

    found = await names_of(memories, bank, matches=lambda one: one.memory_id > "b", limit=1)

    assert found == ["d", "c"]


async def test_purging_deletes_what_is_wanted_and_counts_without_force(memories, bank):
    for name in "abc":
        await memories.create(bank, memory(), memory_id=name)
    await memories.create(bank, memory(scope={"user": "ben"}), memory_id="bens")

    assert await memories.purge(bank, MemorySelection(scope=SCOPE), force=False) == 3
    assert await memories.purge(bank, MemorySelection(scope=SCOPE)) == 3

    assert [one.memory_id for one in (await memories.list(bank))[0]] == ["bens"]
    assert await history(memories, bank, "a") == [("deleted", ""), ("created", "likes tea")]


async def test_banks_are_created_once_changed_and_deleted_with_what_is_in_them(memories):
    bank = await memories.create_bank(f"b-{uuid4()}", BankConfig(display_name="one", labels={"a": "b"}))
    with pytest.raises(BankConflictError):
        await memories.create_bank(bank.bank_id)
    changed = await memories.update_bank(bank.bank_id, {"display_name": "two"})
    assert (changed.config.display_name, changed.config.labels) == ("two", {"a": "b"})
    await memories.create(bank.bank_id, memory())

    with pytest.raises(BankNotEmptyError):
        await memories.delete_bank(bank.bank_id)
    await memories.delete_bank(bank.bank_id, force=True)

    for verb in (memories.bank, memories.list, memories.purge):
        with pytest.raises(BankNotFoundError):
            await verb(bank.bank_id)
    assert bank.bank_id not in {one.bank_id for one in (await memories.banks(limit=1000))[0]}


async def test_changes_published_on_a_run_are_changes_of_the_memory(memories, bank, worker):
    async with worker.runfold.run(agent_id="a") as run:
        made = MemoryCreated(bank_id=bank, memory_id="m", memory=memory())
        await run.publish(made)
        await run.publish(PlannerNote(note="something else"))
        await run.publish(MemoryUpdated(bank_id=bank, memory_id="m", memory=memory("likes coffee")))

    assert (await memories.get(bank, "m")).memory.fact == "likes coffee"
    found, _ = await memories.revisions(bank, "m")
    assert {one.run_id for one in found} == {run.run_id}


async def test_what_a_raw_producer_publishes_on_a_run_is_forwarded_once(memories, bank, worker):
    """And what a generation answers is its changes, all under its id."""
    run = await worker.runfold.open_run(agent_id="a")
    quiet = worker.runfold.connection.appender_of(run.life)
    generated = MemoriesGenerated(
        bank_id=bank,
        created=(MemoryCreated(bank_id=bank, memory_id="new", memory=memory()),),
        deleted=(MemoryDeleted(bank_id=bank, memory_id="never"),),
    )
    said = quiet.event(generated)
    await quiet.append(said)
    await quiet.append(said)  # a redelivery

    async def new() -> tuple[Sequence[MemoryRecord], str | None] | None:
        found = await memories.list(bank)
        return found if found[0] else await asyncio.sleep(0.02)

    async with asyncio.timeout(DEADLINE_SECONDS):
        while (found := await new()) is None:
            pass
    assert [one.revision_id for one in found[0]] == [said.event_id]
    assert await history(memories, bank, "new") == [("created", "likes tea")]


async def test_a_late_copy_of_a_change_changes_nothing(memories, bank, worker, settings):
    """Also one with another content: an id counts once under its key."""
    event_id = new_event_id()

    async def publish(data) -> None:
        said = new_event(data, event_id=event_id, run_id="-", timestamp=datetime.now(UTC))
        forward = Forward(memory_key(bank, "m"), said)
        await worker.runfold.connection.publisher.wait(
            await send_shared(
                worker.runfold.connection.publisher, worker.runfold.connection.settings, forward
            )
        )

    await publish(MemoryCreated(bank_id=bank, memory_id="m", memory=memory()))
    await publish(MemoryDeleted(bank_id=bank, memory_id="m"))

    assert (await memories.get(bank, "m")).memory.fact == "likes tea"


@pytest.mark.parametrize("way", ["stored", "http"])
async def test_what_is_near_in_meaning_comes_first(settings, worker, way):
    async with memories_by(way, settings) as memories:
        bank = (await memories.create_bank()).bank_id
        for fact in ("prefers window seats", "has a dog", "is allergic to nuts"):
            await memories.create(bank, memory(fact))
        await memories.create(bank, memory("prefers aisle seats", scope={"user": "ben"}))

        found = await memories.nearest(bank, SCOPE, "where does she sit in a plane?", limit=2)

        assert found[0].record.memory.fact == "prefers window seats"
        assert len(found) == 2
        assert found[0].distance < found[1].distance
        await memories.purge(bank, everything=True)
        assert await memories.nearest(bank, SCOPE, "plane") == []


async def test_what_is_near_can_be_filtered_by_a_function_and_is_not_asked_of_the_log(settings, worker):
    async with opened_memories(settings) as memories:
        bank = (await memories.create_bank()).bank_id
        for fact in ("prefers window seats", "has a dog"):
            await memories.create(bank, memory(fact))

        dogs = await memories.nearest(bank, SCOPE, "plane", matches=lambda one: "dog" in one.memory.fact)

        assert [one.record.memory.fact for one in dogs] == ["has a dog"]
        with pytest.raises(ConfigurationError):
            await worker.runfold.memories.nearest(bank, SCOPE, "plane")


async def test_a_change_that_cannot_be_read_in_time_is_durable_and_says_so(settings):
    name = f"m{uuid4().hex[:8]}"
    own = settings.model_copy(update={"prefix": name, "database": name})
    async with projected(own), opened_memories(own) as memories:
        await memories.create_bank("b")

    hasty = own.model_copy(update={"wait_timeout_seconds": 1})
    async with opened_memories(hasty) as memories:
        with pytest.raises(UndecidedError, match="do not repeat"):
            await memories.create("b", memory(), memory_id="m")

    async with projected(own), opened_memories(own) as memories:
        assert (await patiently(lambda: memories.get("b", "m"))).memory == memory()


async def test_mongodb_is_what_the_log_says(settings, worker):
    async def found() -> tuple[int, list[SharedDifference]]:
        return await verify_memories(settings.log(), worker.stores, wait_seconds=DEADLINE_SECONDS)

    count, differences = await patiently(found)

    assert count > 0
    assert differences == []


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings, worker):
    await check_memories_rebuild(settings)


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_nothing_is_refused(memories, bank, limit):
    created = await memories.create(bank, memory())
    for page in (
        lambda: memories.banks(limit=limit),
        lambda: memories.list(bank, limit=limit),
        lambda: memories.revisions(bank, created.memory_id, limit=limit),
    ):
        with pytest.raises(InvalidEventError) as refused:
            await page()
        assert refused.value.field == "limit"
