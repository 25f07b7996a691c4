"""What is decided: positions that never go back, first copies, and refusals."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from runfold.store.shared_positions import SeenEvent, SharedPositionStore
from runfold_projections.memory import Head, HeadAt, Refused
from runfold_schemas.topics import Partition

SESSIONS = Partition("t.sessions", 3)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
MEMORIES = Partition("t.memories", 3)


@pytest.fixture
def decided(store, edition) -> SharedPositionStore:
    return SharedPositionStore(store, edition)


async def test_nothing_is_known_of_nothing(decided):
    await decided.note({})
    assert await decided.firsts([]) == await decided.first_offsets([]) == await decided.positions() == {}
    await decided.refuse([])
    assert await decided.refusals([("k", "e")]) == {}


async def test_a_position_never_goes_back_and_is_its_partitions_own(decided):
    await asyncio.gather(*(decided.save_position(SESSIONS, offset) for offset in (5, 9, 2)))
    await decided.save_position(MEMORIES, 2**62)
    await decided.save_position(SESSIONS, 1)

    assert await decided.positions() == {SESSIONS: 9, MEMORIES: 2**62}
    assert await decided.positions([SESSIONS, Partition("t.sessions", 4)]) == {SESSIONS: 9}


async def test_heads_are_saved_over_older_ones_only_and_the_position_after_them(decided):
    for offset, changed_by in ((3, "c"), (7, "g"), (5, "e")):
        heads = {f"memory:{name}": HeadAt(head(changed_by), offset) for name in "mn"}
        await decided.save_position(MEMORIES, offset + 1, heads)

    assert await decided.heads(["memory:m", "memory:o"]) == {"memory:m": HeadAt(head("g"), 7)}
    assert await decided.all_heads() == dict.fromkeys(["memory:m", "memory:n"], head("g"))
    assert await decided.positions() == {MEMORIES: 8}


async def test_concurrent_heads_end_with_the_latest(decided):
    def saved(offset: int) -> Coroutine[Any, Any, None]:
        heads = {f"memory:{number}": HeadAt(head(str(offset)), offset) for number in range(10)}
        return decided.save_position(MEMORIES, offset + 1, heads)

    await asyncio.gather(*(saved(offset) for offset in range(20, -1, -1)))

    assert list((await decided.all_heads()).values()) == [head("20")] * 10
    assert await decided.positions() == {MEMORIES: 21}


def head(changed_by: str) -> Head:
    return Head(
        bank_id="b",
        memory_id="m",
        scope={"user": "ann"},
        changed_by=changed_by,
        began=0,
        created_at=EPOCH,
        changed_at=EPOCH,
    )


async def test_the_first_offset_of_an_event_stands_for_each_key(decided):
    async def come(*events: SeenEvent) -> dict:
        firsts = await decided.firsts(events)
        await decided.note(firsts)
        return firsts

    first = await come(
        SeenEvent("k", "e", 5), SeenEvent("k", "e", 7), SeenEvent("k", "f", 6), SeenEvent("other", "e", 8)
    )
    second = await come(SeenEvent("k", "e", 9), SeenEvent("k", "f", 2))

    assert first == {("k", "e"): 5, ("k", "f"): 6, ("other", "e"): 8}
    assert second == {("k", "e"): 5, ("k", "f"): 2}
    asked = [("k", "e"), ("k", "f"), ("other", "e"), ("other", "f")]
    assert await decided.first_offsets(asked) == {("k", "e"): 5, ("k", "f"): 2, ("other", "e"): 8}


async def test_of_many_that_note_an_event_at_once_the_first_stands(decided):
    await asyncio.gather(*(decided.note({("k", "e"): offset}) for offset in range(20, -1, -1)))

    assert await decided.first_offsets([("k", "e")]) == {("k", "e"): 0}


async def test_a_refusal_is_told_of_its_event_under_its_key(decided):
    await decided.refuse([("k", "e", Refused("gone", "it is not there"))])
    await decided.note({("k", "e"): 1, ("other", "e"): 2})

    asked = [("k", "e"), ("other", "e")]
    assert await decided.refusals(asked) == {("k", "e"): Refused("gone", "it is not there")}
    assert (await decided.first_offsets([("k", "e")])) == {("k", "e"): 1}
