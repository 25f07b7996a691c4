"""Memories as they are read, what reads them, and what can be said of a change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from runfold_projections.memory import BankRecord, Head, MemoryRecord, Refused, Revision
from runfold_schemas.memories import BankConfig, ExtractedMemory, Memory, memory_key


@dataclass(frozen=True, slots=True)
class RevisionOptions:
    """What is said of the revision that a change leaves. Without `expires_at` the bank decides, or
    it is kept for 365 days.
    """

    disabled: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    expires_at: datetime | None = None
    extracted: Sequence[ExtractedMemory] = ()


@dataclass(frozen=True, slots=True)
class MemoriesWanted:
    """Which memories of a bank, and in which order. What is None does not restrict."""

    scope: Mapping[str, str] | None = None
    """Exactly this scope: all its pairs, and no others."""
    matches: Callable[[MemoryRecord], bool] | None = None
    order: Literal["created_at", "updated_at"] = "created_at"
    ascending: bool = False


class Near(NamedTuple):
    """A memory with its distance from what was asked for: 0 is the same, 2 the opposite."""

    record: MemoryRecord
    distance: float


class Published(NamedTuple):
    """A change in `{prefix}.memories`, by the memory, its event, and where it stands in the
    partition of its key.
    """

    bank_id: str
    memory_id: str
    event_id: str
    offset: int

    @property
    def key(self) -> str:
        return memory_key(self.bank_id, self.memory_id)


class MemoryReader(Protocol):
    """Where memories are read. Each answer has everything that was acknowledged before it was asked
    for, and nothing that has expired.
    """

    async def bank(self, bank_id: str) -> BankRecord | None: ...

    async def banks(self, *, limit: int, cursor: str | None) -> tuple[list[BankRecord], str | None]:
        """A page of banks, the newest first, and the cursor of the next page."""

    async def outcomes(self, published: Sequence[Published]) -> Sequence[Refused | MemoryRecord | None]:
        """Waits until these changes are decided. Of each why it was refused, or the memory, which
        may have been changed again since; None if it is gone.
        """

    async def head(self, bank_id: str, memory_id: str) -> Head | None:
        """What decides about the memory, also if it is gone."""

    async def find(self, bank_id: str, memory_id: str) -> MemoryRecord | None: ...

    async def revisions(
        self,
        bank_id: str,
        memory_id: str,
        *,
        since: int,
        labels: Mapping[str, str],
        limit: int,
        cursor: str | None,
    ) -> tuple[list[Revision], str | None]:
        """A page of a memory's revisions from this offset on, the newest first, and the cursor of
        the next page if there is one.
        """

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision | None: ...

    async def list(
        self, bank_id: str, wanted: MemoriesWanted, *, limit: int, cursor: str | None
    ) -> tuple[list[MemoryRecord], str | None]:
        """A page of memories, and the cursor of the next page if there is one."""


class Similarity(Protocol):
    """What knows which memories are near in meaning, as fresh as a `MemoryReader`."""

    async def nearest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        query: str,
        *,
        limit: int,
        matches: Callable[[MemoryRecord], bool] | None,
    ) -> list[Near]:
        """The memories of exactly this scope that are nearest in meaning, the nearest first."""


class MemoryVerbs(Protocol):
    """What can be done with memories, over whichever way they are reached. `Memories` says what
    each verb means.
    """

    async def create_bank(
        self, bank_id: str | None = None, config: BankConfig | None = None
    ) -> BankRecord: ...

    async def bank(self, bank_id: str) -> BankRecord: ...

    async def banks(
        self, *, limit: int = 50, cursor: str | None = None
    ) -> tuple[Sequence[BankRecord], str | None]: ...

    async def update_bank(self, bank_id: str, changes: Mapping[str, Any]) -> BankRecord: ...

    async def delete_bank(self, bank_id: str, *, force: bool = False) -> None: ...

    async def create(
        self,
        bank_id: str,
        memory: Memory,
        *,
        memory_id: str | None = None,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord: ...

    async def get(self, bank_id: str, memory_id: str) -> MemoryRecord: ...

    async def list(
        self,
        bank_id: str,
        wanted: MemoriesWanted | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[MemoryRecord], str | None]: ...

    async def update(
        self,
        bank_id: str,
        memory_id: str,
        changes: Mapping[str, Any],
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord: ...

    async def delete(
        self, bank_id: str, memory_id: str, *, revision: RevisionOptions | None = None
    ) -> None: ...

    async def rollback(
        self,
        bank_id: str,
        memory_id: str,
        revision_id: str,
        *,
        revision: RevisionOptions | None = None,
    ) -> MemoryRecord: ...

    async def purge(
        self, bank_id: str, wanted: MemoriesWanted | None = None, *, force: bool = True
    ) -> int: ...

    async def nearest(
        self, bank_id: str, scope: Mapping[str, str], query: str, *, limit: int = 3
    ) -> Sequence[Near]:
        """Without a filter in Python, which only some ways can be given."""

    async def revisions(
        self,
        bank_id: str,
        memory_id: str,
        *,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[Sequence[Revision], str | None]: ...

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision: ...
