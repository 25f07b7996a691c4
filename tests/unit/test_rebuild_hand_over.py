"""When a rebuild sees that a projector has taken over."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from runfold.projector import rebuild
from runfold_schemas.topics import PARTITIONS_DEFAULT

ALL = set(range(PARTITIONS_DEFAULT))


async def has_heirs(monkeypatch: pytest.MonkeyPatch, *partitions: set[int], seconds: float = 20) -> bool:
    """What a rebuild finds whose worker has these partitions, one set after the other."""
    monkeypatch.setattr(rebuild, "_LOOK_SECONDS", 0.04)
    worker: Any = SimpleNamespace(partitions=partitions[0])

    async def own() -> None:
        for owned in partitions[1:]:
            await asyncio.sleep(0.05)
            worker.partitions = owned

    owning = asyncio.create_task(own())
    found = await rebuild._hand_over(worker, PARTITIONS_DEFAULT, seconds=seconds)
    await owning
    return found


async def test_a_worker_that_is_alone_has_no_heirs(monkeypatch: pytest.MonkeyPatch):
    assert not await has_heirs(monkeypatch, ALL, seconds=0.5)


async def test_a_worker_that_joins_the_group_late_has_no_heirs(monkeypatch: pytest.MonkeyPatch):
    assert not await has_heirs(monkeypatch, set(), ALL, seconds=0.5)


async def test_whoever_has_other_partitions_is_an_heir(monkeypatch: pytest.MonkeyPatch):
    assert await has_heirs(monkeypatch, ALL, {0, 1, 2})
    assert await has_heirs(monkeypatch, ALL, set())
    assert await has_heirs(monkeypatch, {0, 1, 2})
