"""What a worker folds of `{prefix}.memories` and of `{prefix}.banks`.

changes --> revisions --> when those of deleted memories end --> refusals --> memories --> heads
"""

from collections.abc import Sequence

from runfold.log.shared import Keyed
from runfold.store.generation import Generation
from runfold_projections.memory import BankRecord, MemoryFold, apply_to_bank, bank_of


class MemoriesTopic:
    """Heads are saved last: a crash before that finds them as they were, and decides the same again."""

    def __init__(self, stores: Generation) -> None:
        self._decided = stores.decided
        self._memories = stores.memories
        self._revisions = stores.revisions

    async def take(self, events: Sequence[Keyed]) -> None:
        fold = MemoryFold(await self._memories.heads(sorted({one.key for one in events})))
        for one in events:
            fold.take(one.key, one.event, one.offset)
        await self._revisions.save(fold.revisions)
        await self._revisions.end(fold.endings)
        await self._decided.refuse(fold.refused)
        await self._memories.save({key: (fold.records[key], one.offset) for key, one in fold.heads.items()})
        await self._memories.save_heads(fold.heads)


class BanksTopic:
    def __init__(self, stores: Generation) -> None:
        self._banks = stores.banks

    async def take(self, events: Sequence[Keyed]) -> None:
        banks: dict[str, BankRecord | None] = {
            **await self._banks.get([bank_of(one.event) for one in events])
        }
        offsets: dict[str, int] = {}
        for one in events:
            bank_id = bank_of(one.event)
            banks[bank_id] = apply_to_bank(banks.get(bank_id), one.event)
            offsets[bank_id] = one.offset
        await self._banks.save({bank_id: (banks[bank_id], offset) for bank_id, offset in offsets.items()})
