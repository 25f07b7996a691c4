"""Compares memories, their revisions and banks in MongoDB with the log and reports every
difference.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from runfold.client.memory_log import LoggedMemories, fold_banks, fold_memories
from runfold.log.partition_counts import counted
from runfold.log.settings import LogSettings
from runfold.log.shared import partitions_of
from runfold.store.edition import Edition
from runfold.verify.patience import WAIT_SECONDS
from runfold.verify.shared import SharedDifference, differences, left_out, settled
from runfold_projections.memory import MemoryRecord, Revision
from runfold_schemas.memories import bank_key


async def verify_memories(
    log: LogSettings, stores: Edition, *, wait_seconds: float = WAIT_SECONDS
) -> tuple[int, list[SharedDifference]]:
    """The number of memories, and the differences of memories, revisions and banks (see `settled`).
    Expired memories and revisions count as absent on both sides.
    """
    log = await counted(log)
    topics = log.topics

    async def compare() -> tuple[int, list[SharedDifference]]:
        skipped = await left_out(log, stores, {topics.memories, topics.banks})
        # Both sides use the same time, so that a memory that expires meanwhile is no difference.
        now = datetime.now(UTC)
        stored = await stores.memories.all(now=now)
        heads = await stores.shared_positions.all_heads()
        revisions = await stores.revisions.all(now=now)
        stored_banks = await stores.banks.all()
        memories = await fold_memories(log, partitions_of(topics, topics.memories), skipped)
        banks = await fold_banks(log, partitions_of(topics, topics.banks), skipped)
        return len(stored), [
            *differences("memory", _unexpired(memories, now), stored, key_of=str),
            *differences("head", memories.heads, heads, key_of=str),
            *differences(
                "revision",
                _by_name(memories.revisions, now),
                _by_name(revisions, now),
                key_of=lambda name: name.rpartition(" ")[0],
            ),
            *differences("bank", banks, stored_banks, key_of=bank_key),
        ]

    return await settled(log, stores, {topics.memories, topics.banks}, compare, wait_seconds=wait_seconds)


def _unexpired(memories: LoggedMemories, now: datetime) -> dict[str, MemoryRecord]:
    return {
        key: record
        for key, record in memories.records.items()
        if record.memory.expires_at is None or record.memory.expires_at > now
    }


def _by_name(revisions: Mapping[tuple[str, str], Revision], now: datetime) -> dict[str, Revision]:
    return {" ".join(name): revision for name, revision in revisions.items() if revision.expires_at > now}
