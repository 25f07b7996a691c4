"""Memories as they are read, their readers, the options of a change, and the verbs of memories."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from runfold_projections.memory import BankRecord, Head, MemoryRecord, Refused, Revision
from runfold_schemas.memories import BankConfig, ExtractedMemory, Memory, memory_key


@dataclass(frozen=True, slots=True)
class RevisionOptions:
    """Options of the revision that a change leaves.

    Without `expires_at` the revision is kept as long as its bank configures, by default 365 days.
    """

    disabled: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    expires_at: datetime | None = None
    extracted: Sequence[ExtractedMemory] = ()


@dataclass(frozen=True, slots=True)
class MemorySelection:
    """Selects memories of a bank, and their order. A field that is None does not restrict."""

    scope: Mapping[str, str] | None = None
    """Scopes match exactly: a memory with more or fewer pairs is not selected."""
    matches: Callable[[MemoryRecord], bool] | None = None
    order: Literal["created_at", "updated_at"] = "created_at"
    ascending: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it selects all memories of a bank."""
        return self.scope is None and self.matches is None


class NearestMemory(NamedTuple):
    """A memory with its distance from the query: 0 is the same meaning, 2 the opposite."""

    record: MemoryRecord
    distance: float


class Published(NamedTuple):
    """A change in `{prefix}.memories`: the memory, the id of the event, and its offset in the
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
    """Reads memories. Each answer includes everything that was acknowledged before the call, and
    nothing that has expired.
    """

    async def bank(self, bank_id: str) -> BankRecord | None: ...

    async def banks(self, *, limit: int, cursor: str | None) -> tuple[list[BankRecord], str | None]:
        """A page of banks, the newest first, and the cursor of the next page."""

    async def outcomes(self, published: Sequence[Published]) -> Sequence[Refused | MemoryRecord | None]:
        """Waits until these changes are decided. For each change the result is why it was refused,
        or the memory, which may have been changed again since. It is None if the memory is gone.
        """

    async def head(self, bank_id: str, memory_id: str) -> Head | None:
        """The head of the memory, by which changes of it are decided, also if it is gone."""

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
        """A page of a memory's revisions from the offset `since` on, the newest first, and the
        cursor of the next page if there is one.
        """

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision | None: ...

    async def list(
        self, bank_id: str, selection: MemorySelection, *, limit: int, cursor: str | None
    ) -> tuple[list[MemoryRecord], str | None]:
        """A page of memories, and the cursor of the next page if there is one."""


class Similarity(Protocol):
    """Finds memories that are near in meaning. It is as current as a `MemoryReader`."""

    async def nearest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        query: str,
        *,
        limit: int,
        matches: Callable[[MemoryRecord], bool] | None,
    ) -> list[NearestMemory]:
        """The memories of exactly this scope that are nearest in meaning, the nearest first."""


class MemoryVerbs(Protocol):
    """The verbs of memories and banks. `Memories` has them in this process and documents each;
    `HttpMemories` has them over HTTP.
    """

    async def create_bank(
        self,
        bank_id: str | None = None,
        config: BankConfig | None = None,
        *,
        event_id: str | None = None,
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
        event_id: str | None = None,
    ) -> MemoryRecord: ...

    async def get(self, bank_id: str, memory_id: str) -> MemoryRecord: ...

    async def list(
        self,
        bank_id: str,
        selection: MemorySelection | None = None,
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
        self,
        bank_id: str,
        selection: MemorySelection | None = None,
        *,
        everything: bool = False,
        force: bool = True,
    ) -> int: ...

    async def nearest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        query: str,
        *,
        limit: int = 3,
        matches: Callable[[MemoryRecord], bool] | None = None,
    ) -> Sequence[NearestMemory]: ...

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
