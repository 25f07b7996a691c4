"""The folds of `{prefix}.memories` and `{prefix}.banks` in a worker.

changes --> revisions and their expiry, refusals, memories
"""

import asyncio
from collections.abc import Mapping, Sequence

from runfold.log.shared import Keyed
from runfold.store.edition import Edition
from runfold_projections.memory import BankRecord, HeadAt, MemoryFold, apply_to_bank, bank_of


class MemoriesTopic:
    """The `TopicFold` of memories. Heads are saved last, with the position. After a crash before
    that, the next worker finds the old heads and decides the same again.
    """

    def __init__(self, stores: Edition) -> None:
        self._positions = stores.shared_positions
        self._memories = stores.memories
        self._revisions = stores.revisions

    async def load(self, events: Sequence[Keyed]) -> Mapping[str, HeadAt]:
        return await self._positions.heads({event.key for event in events})

    async def take(self, events: Sequence[Keyed], stored: Mapping[str, HeadAt]) -> Mapping[str, HeadAt]:
        fold = MemoryFold(stored)
        for each in events:
            fold.take(each.key, each.event, each.offset)
        records = {key: (record, fold.heads[key].offset) for key, record in fold.records().items()}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._save_revisions(fold))
            tasks.create_task(self._positions.refuse(fold.refused))
            tasks.create_task(self._memories.save(records))
        return fold.heads

    async def _save_revisions(self, fold: MemoryFold) -> None:
        await self._revisions.save(fold.revisions)
        await self._revisions.end(fold.endings)


class BanksTopic:
    """The `TopicFold` of banks."""

    def __init__(self, stores: Edition) -> None:
        self._banks = stores.banks

    async def load(self, events: Sequence[Keyed]) -> Mapping[str, BankRecord]:
        return await self._banks.get([bank_of(each.event) for each in events])

    async def take(self, events: Sequence[Keyed], stored: Mapping[str, BankRecord]) -> Mapping[str, HeadAt]:
        banks: dict[str, BankRecord | None] = {**stored}
        offsets: dict[str, int] = {}
        for each in events:
            bank_id = bank_of(each.event)
            banks[bank_id] = apply_to_bank(banks.get(bank_id), each.event)
            offsets[bank_id] = each.offset
        await self._banks.save({bank_id: (banks[bank_id], offset) for bank_id, offset in offsets.items()})
        return {}
