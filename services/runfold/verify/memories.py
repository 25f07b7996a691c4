"""Compares memories, their revisions and banks in MongoDB with the log and reports every
difference.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from runfold.client.memory_log import LoggedMemories, fold_banks, fold_memories
from runfold.log.partition_counts import counted
from runfold.log.settings import LogSettings
from runfold.log.shared import partitions_of
from runfold.store.edition import Edition
from runfold.verify.patience import LOOK_SECONDS, WAIT_SECONDS
from runfold.verify.shared import SharedDifference, differences, lag, left_out
from runfold_projections.memory import MemoryRecord, Revision


async def verify_memories(
    log: LogSettings, stores: Edition, *, wait_seconds: float = WAIT_SECONDS
) -> tuple[int, list[SharedDifference]]:
    """The number of memories, and the differences of memories, revisions and banks. Expired
    memories and revisions count as absent on both sides.

    Projectors may work meanwhile, so differences are checked again, for `wait_seconds` at most.
    """
    log = await counted(log)
    topics = log.topics
    deadline = asyncio.get_running_loop().time() + wait_seconds
    while True:
        skipped = await left_out(log, stores, {topics.memories, topics.banks})
        memories = await fold_memories(log, partitions_of(topics, topics.memories), skipped)
        banks = await fold_banks(log, partitions_of(topics, topics.banks), skipped)
        # Both sides use the same time, so that a memory that expires meanwhile is no difference.
        now = datetime.now(UTC)
        stored = await stores.memories.all(now=now)
        result = [
            *differences("memory", _unexpired(memories, now), stored),
            *differences("head", memories.heads, await stores.shared_positions.all_heads()),
            *differences(
                "revision",
                _by_name(memories.revisions, now),
                _by_name(await stores.revisions.all(now=now), now),
            ),
            *differences("bank", banks, await stores.banks.all()),
            *[late async for late in lag(log, stores, topics.memories)],
            *[late async for late in lag(log, stores, topics.banks)],
        ]
        if not result or asyncio.get_running_loop().time() > deadline:
            return len(stored), result
        await asyncio.sleep(LOOK_SECONDS)


def _unexpired(memories: LoggedMemories, now: datetime) -> dict[str, MemoryRecord]:
    return {
        key: record
        for key, record in memories.records.items()
        if record.memory.expires_at is None or record.memory.expires_at > now
    }


def _by_name(revisions: Mapping[tuple[str, str], Revision], now: datetime) -> dict[str, Revision]:
    return {" ".join(name): revision for name, revision in revisions.items() if revision.expires_at > now}
