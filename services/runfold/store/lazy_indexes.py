"""The indexes of a collection that many tenants never use. They are created with its first
document, because MongoDB takes 15 ms for each file of an empty collection, one after the other.
"""

from collections.abc import Container, Sequence
from typing import Any

from pymongo import IndexModel

from runfold.store.unavailable import mongo_errors


class LazyIndexes:
    """Every method may raise `UnavailableError`."""

    def __init__(self, collection: Any, indexes: Sequence[IndexModel]) -> None:
        self._collection = collection
        self._indexes = indexes
        self._exist = False

    async def before_insert(self) -> None:
        """Creates the indexes before the first document of this process."""
        if not self._exist:
            await self.create()

    async def create(self) -> None:
        with mongo_errors():
            await self._collection.create_indexes(self._indexes)
        self._exist = True

    async def create_in(self, collections: Container[str]) -> None:
        """Creates the indexes if the collection is one of these, which exist. A new version may
        have other indexes.
        """
        if self._collection.name in collections:
            await self.create()
