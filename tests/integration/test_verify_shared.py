"""`verify` of sessions and memories that are changed meanwhile."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from tests.processes import DEADLINE_SECONDS, Projections, projections, working
from tests.servers import OwnSettings

from runfold import Memory, Runfold
from runfold.settings import Settings
from runfold.verify.memories import verify_memories
from runfold.verify.sessions import verify_sessions
from runfold.verify.shared import SharedDifference
from runfold_schemas.memories import memory_key


class Folded(NamedTuple):
    settings: Settings
    runfold: Runfold
    stored: Projections

    async def change(self) -> None:
        """Changes what `folded` made, so that its partitions are folded behind their ends."""
        await self.runfold.sessions.update("changed", display_name="new")
        await self.runfold.sessions.delete_app_state("app")
        await self.runfold.memories.update_bank("changed", {"display_name": "new"})
        await self.runfold.memories.update("bank", "changed", {"fact": "new"})

    async def differences(self, *, wait_seconds: float = 0.5) -> list[SharedDifference]:
        log, stores = self.settings.log(), self.stored.stores
        _, sessions = await verify_sessions(log, stores, wait_seconds=wait_seconds)
        _, memories = await verify_memories(log, stores, wait_seconds=wait_seconds)
        return sessions + memories


@pytest.fixture
async def folded(own_settings: OwnSettings) -> AsyncIterator[Folded]:
    """Sessions and memories, folded to the end of the log, and no projector any more."""
    settings = own_settings()
    async with projections(settings) as stored, Runfold.of(settings.log()) as runfold:
        folded = Folded(settings, runfold, stored)
        async with working(settings, stored.edition):
            for name in ("changed", "wrong"):
                await runfold.sessions.create(app="app", session_id=name, state={"app:k": name})
                await runfold.memories.create_bank(name)
            await runfold.memories.create_bank("bank")
            for name in ("changed", "wrong"):
                await runfold.memories.create("bank", Memory(fact="f", scope={"k": "v"}), memory_id=name)
            assert await folded.differences(wait_seconds=DEADLINE_SECONDS) == []
        yield folded


async def test_what_is_not_folded_yet_is_no_difference(folded: Folded):
    await folded.change()

    assert {each.kind for each in await folded.differences()} == {"stale position"}


async def test_what_differs_is_found_although_others_change(folded: Folded):
    memory = memory_key("bank", "wrong")
    for collection, key in (("sessions", "wrong"), ("banks", "wrong"), ("memories", memory)):
        removed = await folded.stored.database[f"{collection}.{folded.stored.edition}"].delete_one(
            {"_id": key}
        )
        assert removed.deleted_count == 1
    await folded.change()

    found = [each for each in await folded.differences() if each.kind != "stale position"]

    assert [(each.kind, each.place) for each in found] == [
        ("missing session", "session wrong"),
        ("missing memory", f"memory {memory}"),
        ("missing bank", "bank wrong"),
    ]
