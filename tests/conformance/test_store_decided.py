"""What is decided: positions that never go back, first copies, and refusals."""

import asyncio

import pytest
from aiokafka import TopicPartition

from runfold.store.decided import Come, DecidedStore
from runfold_projections.memory import Refused

SESSIONS = TopicPartition("t.sessions", 3)
MEMORIES = TopicPartition("t.memories", 3)


@pytest.fixture
def decided(store, generation) -> DecidedStore:
    return DecidedStore(store, generation)


async def test_nothing_is_known_of_nothing(decided):
    await decided.note({})
    assert await decided.firsts([]) == await decided.first_offsets([]) == await decided.positions() == {}
    await decided.refuse([])
    assert await decided.refusal("k", "e") is None


async def test_a_position_never_goes_back_and_is_its_partitions_own(decided):
    await asyncio.gather(*(decided.save_position(SESSIONS, offset) for offset in (5, 9, 2)))
    await decided.save_position(MEMORIES, 2**62)
    await decided.save_position(SESSIONS, 1)

    assert await decided.positions() == {SESSIONS: 9, MEMORIES: 2**62}
    assert await decided.positions([SESSIONS, TopicPartition("t.sessions", 4)]) == {SESSIONS: 9}


async def test_the_first_offset_of_an_event_stands_for_each_key(decided):
    async def come(*events: Come) -> dict:
        firsts = await decided.firsts(events)
        await decided.note(firsts)
        return firsts

    first = await come(Come("k", "e", 5), Come("k", "e", 7), Come("k", "f", 6), Come("other", "e", 8))
    second = await come(Come("k", "e", 9), Come("k", "f", 2))

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

    assert await decided.refusal("k", "e") == Refused("gone", "it is not there")
    assert await decided.refusal("other", "e") is None
    assert (await decided.first_offsets([("k", "e")])) == {("k", "e"): 1}
