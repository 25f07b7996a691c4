"""Memories and banks: written over what is older only, listed by either time, and gone when they
expire.
"""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from tests.builders import EPOCH

from runfold.store.banks import BankStore
from runfold.store.memories import MemoryStore, vector_name
from runfold_projections.memory import BankRecord, MemoryRecord
from runfold_schemas.memories import BankConfig, Memory, memory_key

NOW = EPOCH + timedelta(days=36_500)
"""Far ahead, so that MongoDB itself removes nothing while it is looked at."""
SCOPE = {"user": "ann", "app": "shop"}


@pytest.fixture
async def memories(store, edition) -> MemoryStore:
    opened = MemoryStore(store, edition)
    await opened.create_indexes()
    return opened


@pytest.fixture
async def banks(store, edition) -> BankStore:
    opened = BankStore(store, edition)
    await opened.create_indexes()
    return opened


def key(memory_id: str) -> str:
    return memory_key("b", memory_id)


def memory(memory_id: str = "m", *, after: float = 0, updated: float = 0, **fields: Any) -> MemoryRecord:
    """A memory that was created so many seconds after the epoch."""
    created_at = EPOCH + timedelta(seconds=after)
    return MemoryRecord(
        bank_id="b",
        memory_id=memory_id,
        memory=Memory(**{"fact": f"fact of {memory_id}", "scope": SCOPE, **fields}),
        revision_id="r",
        created_at=created_at,
        updated_at=created_at + timedelta(seconds=updated),
    )


async def save(memories: MemoryStore, *records: MemoryRecord, offset: int = 0) -> None:
    await memories.save({key(one.memory_id): (one, offset) for one in records})


async def listed(memories: MemoryStore, **options: Any) -> list[str]:
    defaults: dict[str, Any] = {
        "scope": None,
        "order": "created_at",
        "ascending": False,
        "now": NOW,
        "cursor": None,
    }
    async with aclosing(memories.list("b", **(defaults | options))) as found:
        return [record.memory_id async for record in found]


async def test_a_memory_is_read_as_it_was_saved_to_the_microsecond(memories):
    whole = memory(
        after=0.123456,
        metadata={"a": True, "b": 0.1, "c": "x"},
        expires_at=NOW + timedelta(microseconds=1),
        display_name="\u0001 \U0001f600",
    )

    await save(memories, whole)

    assert await memories.get([key("m"), key("other")], now=NOW) == {key("m"): whole}


async def test_only_a_later_change_is_saved_over_a_memory(memories):
    for offset, fact in ((3, "third"), (5, "fifth"), (4, "fourth"), (5, "again")):
        await save(memories, memory(fact=fact), offset=offset)

    assert (await memories.get([key("m")], now=NOW))[key("m")].memory.fact == "fifth"


async def test_a_deleted_memory_does_not_come_back_by_an_older_change(memories):
    await save(memories, memory(), offset=1)
    await memories.save({key("m"): (None, 4)})
    await save(memories, memory(fact="late"), offset=3)

    assert await memories.get([key("m")], now=NOW) == {}
    assert await listed(memories) == []
    await save(memories, memory(fact="revived"), offset=5)
    assert await listed(memories) == ["m"]


async def test_concurrent_saves_end_with_the_latest(memories):
    await asyncio.gather(*(save(memories, memory(fact=f"{n}"), offset=n) for n in range(20, -1, -1)))

    assert (await memories.get([key("m")], now=NOW))[key("m")].memory.fact == "20"


async def test_what_has_expired_is_in_no_read(memories):
    await save(
        memories, memory("gone", expires_at=NOW), memory("kept", expires_at=NOW + timedelta(seconds=1))
    )

    assert await listed(memories) == ["kept"]
    assert await memories.get([key("gone")], now=NOW) == {}
    assert [one.key for one in await memories.vector_names("b", SCOPE, now=NOW)] == [key("kept")]
    assert await memories.all(now=NOW) == await memories.get([key("kept")], now=NOW)


async def test_mongodb_removes_memories_only_after_their_expiry(memories, store, edition):
    expires_at = NOW + timedelta(microseconds=999)
    await save(memories, memory(expires_at=expires_at), memory("kept"))

    stored = {one["_id"]: one async for one in store[f"memories.{edition}"].find({})}

    assert expires_at <= stored[key("m")]["expires"] <= expires_at + timedelta(milliseconds=2)
    assert "expires" not in stored[key("kept")]
    indexes = await store[f"memories.{edition}"].index_information()
    assert [one["key"] for one in indexes.values() if one.get("expireAfterSeconds") == 0] == [
        [("expires", 1)]
    ]


async def test_an_expiry_that_is_taken_away_is_taken_away(memories, store, edition):
    await save(memories, memory(expires_at=NOW), offset=1)
    await save(memories, memory(), offset=2)

    assert await listed(memories) == ["m"]
    assert "expires" not in await store[f"memories.{edition}"].find_one({})


async def test_lists_go_by_either_time_in_either_direction(memories):
    await save(memories, memory("a", after=1, updated=9), memory("b", after=2), memory("c", after=3))

    assert await listed(memories) == ["c", "b", "a"]
    assert await listed(memories, ascending=True) == ["a", "b", "c"]
    assert await listed(memories, order="updated_at") == ["a", "c", "b"]
    assert await listed(memories, order="updated_at", ascending=True) == ["b", "c", "a"]


async def test_a_scope_is_all_of_its_pairs_in_any_order(memories):
    await save(
        memories,
        memory("same", scope={"app": "shop", "user": "ann"}),
        memory("less", scope={"user": "ann"}),
        memory("more", scope={**SCOPE, "x": "y"}),
        memory("case", scope={"user": "Ann", "app": "shop"}),
    )

    assert await listed(memories, scope=SCOPE) == ["same"]
    assert await memories.vector_names("b", SCOPE, now=NOW) == [(key("same"), vector_name("fact of same"))]
    assert await memories.vector_names("other", SCOPE, now=NOW) == []


async def test_banks_are_saved_over_older_ones_only_and_listed_newest_first(banks):
    def bank(bank_id: str, after: int) -> BankRecord:
        at = EPOCH + timedelta(seconds=after)
        return BankRecord(
            bank_id=bank_id, config=BankConfig(), created_by="e", changed_by="e", created_at=at, updated_at=at
        )

    await banks.save({"a": (bank("a", 1), 1), "b": (bank("b", 2), 2), "c": (bank("c", 3), 3)})
    await banks.save({"b": (None, 5)})
    await banks.save({"b": (bank("b", 9), 4), "a": (bank("a", 4), 0)})

    assert await banks.get(["a", "b", "x"]) == {"a": bank("a", 1)}
    assert await banks.list(limit=9) == ([bank("c", 3), bank("a", 1)], None)
    [first], following = await banks.list(limit=1)
    assert (first, await banks.list(limit=1, cursor=following)) == (bank("c", 3), ([bank("a", 1)], None))
    assert sorted(await banks.all()) == ["a", "c"]
