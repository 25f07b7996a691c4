"""What a worker folds of `{prefix}.memories` and of `{prefix}.banks`.

changes --> revisions and when they end, refusals, memories
"""

import asyncio
from collections.abc import Mapping, Sequence

from runfold.log.shared import Keyed
from runfold.store.edition import Edition
from runfold_projections.memory import BankRecord, HeadAt, MemoryFold, apply_to_bank, bank_of


class MemoriesTopic:
    """Heads are saved after all else, with the position: a crash before that finds them as they
    were, and decides the same again.
    """

    def __init__(self, stores: Edition) -> None:
        self._decided = stores.shared_positions
        self._memories = stores.memories
        self._revisions = stores.revisions

    async def load(self, events: Sequence[Keyed]) -> Mapping[str, HeadAt]:
        return await self._decided.heads({one.key for one in events})

    async def take(self, events: Sequence[Keyed], stored: Mapping[str, HeadAt]) -> Mapping[str, HeadAt]:
        fold = MemoryFold(stored)
        for one in events:
            fold.take(one.key, one.event, one.offset)
        records = {key: (record, fold.heads[key].offset) for key, record in fold.records().items()}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._save_revisions(fold))
            tasks.create_task(self._decided.refuse(fold.refused))
            tasks.create_task(self._memories.save(records))
        return fold.heads

    async def _save_revisions(self, fold: MemoryFold) -> None:
        await self._revisions.save(fold.revisions)
        await self._revisions.end(fold.endings)


class BanksTopic:
    def __init__(self, stores: Edition) -> None:
        self._banks = stores.banks

    async def load(self, events: Sequence[Keyed]) -> Mapping[str, BankRecord]:
        return await self._banks.get([bank_of(one.event) for one in events])

    async def take(self, events: Sequence[Keyed], stored: Mapping[str, BankRecord]) -> Mapping[str, HeadAt]:
        banks: dict[str, BankRecord | None] = {**stored}
        offsets: dict[str, int] = {}
        for one in events:
            bank_id = bank_of(one.event)
            banks[bank_id] = apply_to_bank(banks.get(bank_id), one.event)
            offsets[bank_id] = one.offset
        await self._banks.save({bank_id: (banks[bank_id], offset) for bank_id, offset in offsets.items()})
        return {}
