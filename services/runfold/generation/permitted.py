"""The verbs of generation for the principal of a request."""

from collections.abc import Mapping, Sequence
from typing import Final

from runfold.client.appender import Position
from runfold.client.memories import Memories
from runfold.generation.options import (
    ChangedMemory,
    GenerationOptions,
    SessionSource,
    Source,
    StreamContent,
)
from runfold.generation.service import Generation
from runfold.generation.triggers import TriggerRule
from runfold.permissions.permissions import Permissions
from runfold_projections.effects import ChangesMemory, ReadsSession
from runfold_projections.memory import BankRecord

_GENERATION: Final = "a generation of memories"


class PermittedGeneration:
    """`GenerationVerbs` that check the permissions of a principal."""

    def __init__(self, generation: Generation, permissions: Permissions) -> None:
        self._generation = generation
        self._permissions = permissions

    @property
    def memories(self) -> Memories:
        """The verbs of memories, which check nothing."""
        return self._generation.generator().memories

    async def bank(self, bank_id: str, scope: Mapping[str, str]) -> BankRecord:
        """A bank into whose streams contents of this scope may go."""
        await self._check_stream(bank_id, scope)
        return await self.memories.bank(bank_id)

    async def generate(
        self,
        bank_id: str,
        scope: Mapping[str, str] | None,
        source: Source,
        options: GenerationOptions | None = None,
    ) -> Sequence[ChangedMemory]:
        generator = self._generation.generator()
        if not self._permissions.is_complete:
            await self._check(bank_id, scope, source)
        return await generator.generate(bank_id, scope, source, options)

    async def ingest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        stream_id: str,
        contents: Sequence[StreamContent],
        *,
        rule: TriggerRule | None = None,
        default_rule: TriggerRule | None = None,
        options: GenerationOptions | None = None,
        force_flush: bool = False,
    ) -> Position | None:
        await self._check_stream(bank_id, scope)
        return await self._generation.streams.ingest(
            bank_id,
            scope,
            stream_id,
            contents,
            rule=rule,
            default_rule=default_rule,
            options=options,
            force_flush=force_flush,
        )

    async def _check_stream(self, bank_id: str, scope: Mapping[str, str]) -> None:
        changes = ChangesMemory(bank_id, scope=scope)
        await self._permissions.check_effects([changes], action="a stream of contents")

    async def _check(self, bank_id: str, scope: Mapping[str, str] | None, source: Source) -> None:
        if isinstance(source, SessionSource):
            await self._permissions.check_effects([ReadsSession(source.session_id)], action=_GENERATION)
        scope = await self._generation.generator().scope_of(scope, source)
        await self._permissions.check_effects([ChangesMemory(bank_id, scope=scope)], action=_GENERATION)
