"""The verbs of memories and banks for the principal of a request."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from runfold.client.memories import Memories
from runfold.client.memory import MemorySelection, MemoryVerbs, NearestMemory, RevisionOptions
from runfold.client.pages import ListPlace, check_limit, page_of
from runfold.permissions.permissions import Permissions, PermissionsOfRequest
from runfold_projections.effects import ChangesBank, ChangesMemory, effects_of_config
from runfold_projections.memory import BankRecord, MemoryRecord, Revision
from runfold_schemas.errors import BankNotFoundError, InvalidIdError, MemoryConflictError
from runfold_schemas.memories import BankConfig, Memory


class PermittedMemories:
    """`MemoryVerbs` that check the limits of a principal."""

    def __init__(self, verbs: Memories, permissions: Permissions) -> None:
        self._verbs = verbs
        self._permissions = permissions

    # Banks.

    async def create_bank(
        self,
        bank_id: str | None = None,
        config: BankConfig | None = None,
        *,
        event_id: str | None = None,
    ) -> BankRecord:
        effects = effects_of_config(bank_id or event_id or "", config)
        await self._permissions.check_effects(effects, action="a new bank")
        return await self._verbs.create_bank(bank_id, config, event_id=event_id)

    async def bank(self, bank_id: str) -> BankRecord:
        self._permissions.check_bank(bank_id, action="reading a bank")
        return await self._verbs.bank(bank_id)

    async def banks(
        self, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[Sequence[BankRecord], str | None]:
        agents = self._permissions.principal.agents
        if agents is None:
            return await self._verbs.banks(limit=limit, cursor=cursor)
        # Read one by one, because the cursor of a page of all banks names a bank.
        own = []
        for bank_id in dict.fromkeys(agents):
            with suppress(BankNotFoundError, InvalidIdError):
                bank = await self._verbs.bank(bank_id)
                own.append((ListPlace(bank.created_at, bank_id), bank))
        return page_of(own, limit=check_limit(limit), cursor=cursor)

    async def update_bank(self, bank_id: str, changes: Mapping[str, Any]) -> BankRecord:
        effects = effects_of_config(bank_id, BankConfig.model_construct(agents=changes.get("agents") or ()))
        await self._permissions.check_effects(effects, action="a change of a bank")
        return await self._verbs.update_bank(bank_id, changes)

    async def delete_bank(self, bank_id: str, *, force: bool = False) -> None:
        await self._permissions.check_effects([ChangesBank(bank_id)], action="the deletion of a bank")
        await self._verbs.delete_bank(bank_id, force=force)

    # Memories.

    async def create(
        self,
        bank_id: str,
        memory: Memory,
        *,
        memory_id: str | None = None,
        revision: RevisionOptions | None = None,
        event_id: str | None = None,
    ) -> MemoryRecord:
        effect = ChangesMemory(bank_id, memory_id, memory.scope)
        await self._permissions.check_effects([effect], action="a new memory")
        record = await self._verbs.create(
            bank_id, memory, memory_id=memory_id, revision=revision, event_id=event_id
        )
        if record.memory.scope != memory.scope:
            # The id and the event's id are those of a memory that exists.
            raise MemoryConflictError(bank_id, record.memory_id)
        return record

    async def get(self, bank_id: str, memory_id: str) -> MemoryRecord:
        await self._permissions.check_memory(bank_id, memory_id)
        return await self._verbs.get(bank_id, memory_id)

    async def list(
        self,
        bank_id: str,
        selection: MemorySelection | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[MemoryRecord], str | None]:
        self._check_selection(bank_id, selection, action="a list of memories")
        return await self._verbs.list(bank_id, selection, limit=limit, cursor=cursor)

    async def update(
        self,
        bank_id: str,
        memory_id: str,
        changes: Mapping[str, Any],
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord:
        await self._permissions.check_memory(bank_id, memory_id)
        return await self._verbs.update(bank_id, memory_id, changes, revision=revision)

    async def delete(self, bank_id: str, memory_id: str, *, revision: RevisionOptions | None = None) -> None:
        await self._permissions.check_memory(bank_id, memory_id)
        await self._verbs.delete(bank_id, memory_id, revision=revision)

    async def rollback(
        self,
        bank_id: str,
        memory_id: str,
        revision_id: str,
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord:
        await self._permissions.check_memory(bank_id, memory_id)
        return await self._verbs.rollback(bank_id, memory_id, revision_id, revision=revision)

    async def purge(
        self,
        bank_id: str,
        selection: MemorySelection | None = None,
        *,
        everything: bool = False,
        force: bool = True,
    ) -> int:
        self._check_selection(bank_id, selection, action="a purge of memories")
        return await self._verbs.purge(bank_id, selection, everything=everything, force=force)

    async def nearest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        query: str,
        *,
        limit: int = 3,
        matches: Callable[[MemoryRecord], bool] | None = None,
    ) -> Sequence[NearestMemory]:
        self._permissions.check_scope(bank_id, scope, action="a search of memories")
        return await self._verbs.nearest(bank_id, scope, query, limit=limit, matches=matches)

    # Revisions.

    async def revisions(
        self,
        bank_id: str,
        memory_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[Revision], str | None]:
        await self._permissions.check_memory(bank_id, memory_id)
        return await self._verbs.revisions(bank_id, memory_id, labels=labels, limit=limit, cursor=cursor)

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision:
        await self._permissions.check_memory(bank_id, memory_id)
        return await self._verbs.revision(bank_id, memory_id, revision_id)

    def _check_selection(self, bank_id: str, selection: MemorySelection | None, *, action: str) -> None:
        scope = selection.scope if selection is not None else None
        self._permissions.check_scope(bank_id, scope, action=action)


def permitted_memories(
    memories: Callable[[], Memories], permissions: PermissionsOfRequest
) -> Callable[[], MemoryVerbs]:
    """The verbs for the principal of the current request."""

    def served() -> MemoryVerbs:
        allowed = permissions()
        return memories() if allowed.is_complete else PermittedMemories(memories(), allowed)

    return served
