"""The stores of one edition."""

from typing import NamedTuple, Self

from runfold.store.banks import BankStore
from runfold.store.database import Database
from runfold.store.holdings import HoldingStore
from runfold.store.memories import MemoryStore
from runfold.store.pages import PageStore
from runfold.store.progress import ProgressStore
from runfold.store.quarantine import QuarantineStore
from runfold.store.revisions import RevisionStore
from runfold.store.runs import RunStore
from runfold.store.segments import SegmentStore
from runfold.store.sessions import SessionStore
from runfold.store.shared_positions import SharedPositionStore
from runfold.store.skips import SkipStore
from runfold.store.state import StateStore
from runfold.store.unavailable import mongo_errors
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
    quarantine: QuarantineStore
    skips: SkipStore
    segments: SegmentStore
    holdings: HoldingStore
    progress: ProgressStore
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
            QuarantineStore(database, name),
            SkipStore(database, name),
            SegmentStore(database, name),
            HoldingStore(database, name),
            ProgressStore(database, name),
            VectorStore(database),
        )

    async def create_indexes(self, database: Database) -> None:
        """Creates the indexes of what every tenant has, and of the other collections of `database`
        that exist. The rest are created with their first document.
        """
        for store in (self.runs, self.pages, self.shared_positions):
            await store.create_indexes()
        with mongo_errors():
            existing = set(await database.list_collection_names())
        for indexes in (
            self.values.indexes,
            self.sessions.indexes,
            self.memories.indexes,
            self.revisions.indexes,
            self.banks.indexes,
            self.quarantine.indexes,
            self.quarantine.request_indexes,
            self.vectors.indexes,
        ):
            await indexes.create_in(existing)
