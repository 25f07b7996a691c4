"""Change streams, with both drivers: positions that moved, by their partitions."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tests.conformance.test_store_shared_positions import head
from tests.processes import DEADLINE_SECONDS

from runfold.store.progress import ProgressStore, position_key
from runfold.store.shared_positions import SharedPositionStore
from runfold_projections.memory import HeadAt
from runfold_schemas.topics import Partition

AT, BESIDE = Partition("p.memories", 3), Partition("p.sessions", 3)


async def next_key(changes: AsyncGenerator[str | None, None]) -> str:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (key := await anext(changes)) is None:
            pass
    return key


async def test_positions_are_told_and_heads_are_not(store, edition):
    positions = SharedPositionStore(store, edition)
    async with aclosing(ProgressStore(store, edition).positions()) as changes:
        assert await anext(changes) is None
        await positions.save_position(AT, 1)
        inserted = await next_key(changes)
        await positions.save_heads({"memory:a": HeadAt(head("e"), 1)})
        await positions.save_position(AT, 1)
        await positions.save_position(BESIDE, 2)
        beside = await next_key(changes)
        await positions.save_position(AT, 5, {"memory:a": HeadAt(head("f"), 4)})
        further = await next_key(changes)

    assert (inserted, beside, further) == (position_key(AT), position_key(BESIDE), position_key(AT))


async def test_the_stream_ends_when_its_edition_is_dropped(store, edition):
    await SharedPositionStore(store, edition).save_position(AT, 1)
    async with aclosing(ProgressStore(store, edition).positions()) as changes:
        assert await anext(changes) is None
        await store.drop_collection(f"decided.{edition}")
        async with asyncio.timeout(DEADLINE_SECONDS):
            keys = [key async for key in changes if key is not None]

    assert position_key(AT) not in keys
