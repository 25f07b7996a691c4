"""The stores of one edition."""

from typing import NamedTuple, Self

from runfold.store.banks import BankStore
from runfold.store.database import Database
from runfold.store.memories import MemoryStore
from runfold.store.pages import PageStore
from runfold.store.revisions import RevisionStore
from runfold.store.runs import RunStore
from runfold.store.sessions import SessionStore
from runfold.store.shared_positions import SharedPositionStore
from runfold.store.state import StateStore
from runfold.store.vectors import VectorStore


class Edition(NamedTuple):
    name: str
    runs: RunStore
    pages: PageStore
    values: StateStore
    shared_positions: SharedPositionStore
    sessions: SessionStore
    memories: MemoryStore
    revisions: RevisionStore
    banks: BankStore
    vectors: VectorStore
    """The vectors, which all editions share."""

    @classmethod
    def of(cls, database: Database, name: str) -> Self:
        return cls(
            name,
            RunStore(database, name),
            PageStore(database, name),
            StateStore(database, name),
            SharedPositionStore(database, name),
            SessionStore(database, name),
            MemoryStore(database, name),
            RevisionStore(database, name),
            BankStore(database, name),
            VectorStore(database),
        )

    async def create_indexes(self) -> None:
        for store in (
            self.runs,
            self.pages,
            self.values,
            self.shared_positions,
            self.sessions,
            self.memories,
            self.revisions,
            self.banks,
            self.vectors,
        ):
            await store.create_indexes()
