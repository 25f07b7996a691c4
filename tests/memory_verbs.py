"""Memories for tests: all that can be read of them, and that a rebuild reads the same."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from tests.processes import DEADLINE_SECONDS
from tests.querying import projected, ready_api
from tests.session_verbs import patiently, settled

from runfold import Memory, Runfold
from runfold.client.memories import Memories
from runfold.client.memory import MemorySelection, MemoryVerbs
from runfold.client.memory_log import fold_memories
from runfold.log.partition_counts import counted
from runfold.log.shared import partitions_of
from runfold.query.reading import Reading
from runfold.remote.memories import HttpMemories
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.verify.memories import verify_memories
from runfold.verify.shared import SharedDifference
from runfold_projections.memory import BankRecord, Head, Revision
from runfold_schemas.errors import InvalidEventError, MemoryNotFoundError

T = TypeVar("T")

ORDERS = [(order, ascending) for order in ("created_at", "updated_at") for ascending in (False, True)]

LASTING = timedelta(minutes=2)
"""What expires sooner may be gone when it is read again, so it is not compared."""


async def check_memories_rebuild(settings: Settings) -> None:
    """Drops all that is in MongoDB, lets a projector begin again from the logs, and compares all
    that can be read. If there is no bank, the caller runs alone, and one is made.
    """
    lasting_until = datetime.now(UTC) + LASTING
    async with (
        opened_memories(settings) as memories,
        connect(settings.mongo, settings.database) as database,
    ):
        banks, _ = await patiently(lambda: memories.banks(limit=1))
        if not banks:
            bank = await memories.create_bank()
            await memories.create(bank.bank_id, Memory(scope={"user": "ann"}, fact="likes tea"))
        editions = Editions(database)
        assert await differences(settings, Edition.of(database, await editions.current_or_first())) == []
        before = await everything_remembered(settings, memories, lasting_until)
        assert before["banks"]
        await editions.drop_all()
        async with projected(settings) as stored:
            assert await differences(settings, stored.stores) == []
            after = await settled(lambda: everything_remembered(settings, memories, lasting_until), before)
        differing = {
            name: (before.get(name), after.get(name))
            for name in before | after
            if before.get(name) != after.get(name)
        }
        assert differing == {}, f"{differing}"


async def differences(settings: Settings, stores: Edition) -> list[SharedDifference]:
    """Between MongoDB and the log. If there are none, all of the log is folded."""
    return (await verify_memories(settings.log(), stores, wait_seconds=DEADLINE_SECONDS))[1]


@asynccontextmanager
async def opened_memories(settings: Settings) -> AsyncIterator[Memories]:
    """Memories with connections of their own, as another process has them."""
    async with Runfold.of(settings.log()) as runfold, Reading(settings) as reading:
        yield Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity)


@asynccontextmanager
async def memories_by(way: str, settings: Settings) -> AsyncIterator[MemoryVerbs]:
    """Memories in one of their ways, with connections of their own."""
    match way:
        case "log":
            async with Runfold.of(settings.log()) as runfold:
                yield runfold.memories
        case "stored":
            async with opened_memories(settings) as stored:
                yield stored
        case _:
            async with (
                ready_api(settings) as client,
                HttpMemories(str(client.base_url), timeout_seconds=DEADLINE_SECONDS) as memories,
            ):
                yield memories


async def everything_remembered(
    settings: Settings, memories: Memories, lasting_until: datetime
) -> dict[str, Any]:
    """All banks, their memories in every order, what decides about each that ever was, and all
    revisions.
    """
    banks = await _all_pages(memories.banks)
    made = {bank.bank_id: bank.created_at for bank in banks}
    found: dict[str, Any] = {"banks": banks}

    async def read_bank(bank: BankRecord) -> None:
        for order, ascending in ORDERS:
            wanted = MemorySelection(
                matches=lambda record: _lasts(record.memory.expires_at, lasting_until),
                order=order,
                ascending=ascending,
            )
            found[f"{bank.bank_id} by {order} {ascending}"] = await _all_pages(
                memories.list, bank.bank_id, wanted
            )

    async def read_memory(reading: Reading, key: str, head: Head) -> None:
        of_memory = (head.bank_id, head.memory_id)
        found[f"head of {key}"] = await reading.stored_memories.head(*of_memory)
        is_of_bank = head.bank_id in made and (head.deleted_at or lasting_until) >= made[head.bank_id]
        if is_of_bank and head.can_be_rolled_back(lasting_until):
            found[f"revisions of {key}"] = await _revisions(memories, *of_memory, lasting_until)

    await asyncio.gather(*map(read_bank, banks))
    async with Reading(settings) as reading:
        heads = await _heads(settings)
        await asyncio.gather(*(read_memory(reading, key, head) for key, head in heads.items()))
    return found


async def _heads(settings: Settings) -> dict[str, Head]:
    """By the key of every memory that ever was: what the log says, since no verb lists those that
    are gone.
    """
    log = await counted(settings.log())
    partitions = partitions_of(log.topics, log.topics.memories)
    return dict((await fold_memories(log, partitions, lambda _: ())).heads)


async def _revisions(
    memories: Memories, bank_id: str, memory_id: str, lasting_until: datetime
) -> list[Revision]:
    listed = [
        one
        for one in await _all_pages(memories.revisions, bank_id, memory_id)
        if _lasts(one.expires_at, lasting_until)
    ]
    for one in listed:
        assert await memories.revision(bank_id, memory_id, one.revision_id) == one
    return listed


def _lasts(expires_at: datetime | None, until: datetime) -> bool:
    return expires_at is None or expires_at > until


async def _all_pages(read: Any, *arguments: Any) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while True:
        page, cursor = await read(*arguments, limit=20, cursor=cursor)
        found += page
        if cursor is None:
            return found


async def expiring(change: Callable[[datetime], Awaitable[T]]) -> tuple[T, datetime]:
    """The result of a change with an expiry soon, and the expiry. On a busy machine, the change may
    come after it, or the memory may have expired before the change is read.
    """
    for seconds in (5, 50):
        soon = datetime.now(UTC) + timedelta(seconds=seconds)
        with suppress(InvalidEventError, MemoryNotFoundError):
            return await change(soon), soon
    raise AssertionError("each change came after its expiry")


async def until_passed(moment: datetime) -> None:
    while datetime.now(UTC) <= moment:
        await asyncio.sleep(0.05)
