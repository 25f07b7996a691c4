"""The offsets that operators skipped, as a worker knows them."""

from collections.abc import Iterable

from runfold.store.skips import SkipStore
from runfold_projections.admission import is_skipped
from runfold_schemas.catalog import Skip
from runfold_schemas.topics import Partition


class Skips:
    """All skips of one edition. There are few."""

    def __init__(self, store: SkipStore) -> None:
        self._store = store
        self._offsets: dict[Partition, frozenset[range]] = {}

    async def load(self) -> None:
        self._offsets = await self._store.all()

    async def add(self, skips: Iterable[Skip]) -> None:
        """Adds skips, durably."""
        added = list(skips)
        await self._store.add(added)
        for skip in added:
            self._offsets[skip.at] = self.of(skip.at) | {skip.offsets}

    def of(self, at: Partition) -> frozenset[range]:
        """The skipped offsets of a partition."""
        return self._offsets.get(at, frozenset())

    def has(self, at: Partition, offset: int) -> bool:
        return is_skipped(offset, self.of(at))
