"""A publish ends when its run is deleted, and a cancellation by the caller stays one."""

import asyncio

import pytest

from runfold import RunNotFoundError
from runfold.client import deletion


@pytest.fixture(autouse=True)
def _looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "_DOUBT_SECONDS", 0.01)


async def test_a_deletion_ends_the_publish():
    async def fault() -> RunNotFoundError:
        return RunNotFoundError("r")

    with pytest.raises(RunNotFoundError):
        async with deletion.noticing_deletion(fault):
            await asyncio.Event().wait()


async def test_a_cancellation_at_the_moment_of_the_discovery_is_not_swallowed():
    async def publish() -> None:
        async def fault() -> RunNotFoundError:
            publishing.cancel()
            return RunNotFoundError("r")

        async with deletion.noticing_deletion(fault):
            await asyncio.Event().wait()

    publishing = asyncio.create_task(publish())
    await asyncio.wait([publishing])

    assert publishing.cancelled()
