"""The folds of `{prefix}.memories` and `{prefix}.banks` in a worker.

changes --> revisions and their expiry, refusals, memories
"""

import asyncio
from collections.abc import Mapping, Sequence

from runfold.log.shared import Keyed
from runfold.store.edition import Edition
from runfold.store.memories import vector_name
from runfold_projections.memory import BankRecord, HeadAt, MemoryFold, apply_to_bank, bank_of
from runfold_schemas.memories import bank_key


class MemoriesTopic:
    """The `TopicFold` of memories. Heads are saved last, with the position. After a crash before
    that, the next worker finds the old heads and decides the same again.
    """

    def __init__(self, stores: Edition) -> None:
        self._positions = stores.shared_positions
        self._memories = stores.memories
        self._revisions = stores.revisions
        self._vectors = stores.vectors

    async def load(self, events: Sequence[Keyed]) -> Mapping[str, HeadAt]:
        return await self._positions.heads({event.key for event in events})

    async def take(self, events: Sequence[Keyed], stored: Mapping[str, HeadAt]) -> Mapping[str, HeadAt]:
        fold = MemoryFold(stored)
        for each in events:
            fold.take(each.key, each.event, each.offset)
        names = await self._vectors_of_erased(fold.erased)
        records = {key: (record, fold.heads[key].offset) for key, record in fold.records().items()}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._save_revisions(fold))
            tasks.create_task(self._positions.refuse(fold.refused))
            tasks.create_task(self._memories.save(records))
        await self._vectors.delete(names)
        return fold.heads

    async def reset(self, key: str) -> None:
        await self._revisions.delete(key)
        await self._memories.delete(key)
        await self._positions.delete_head(key)

    async def _vectors_of_erased(self, erased: Mapping[str, int]) -> set[str]:
        """Erases the revisions of erased memories. Returns the names of the vectors of their facts,
        which are deleted here, and by the caller again: until the memories are gone, a search may
        make the vectors anew.
        """
        names = await self._memories.vectors_of(erased) if erased else set()
        for key, offset in erased.items():
            names |= set(map(vector_name, await self._revisions.erase(key, offset)))
        await self._vectors.delete(names)
        return names

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

    async def reset(self, key: str) -> None:
        await self._banks.delete(key.removeprefix(bank_key("")))
