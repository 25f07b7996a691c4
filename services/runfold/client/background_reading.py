"""Asynchronous iterators that the background loop reads for a thread."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import Final, Generic, TypeVar

from runfold.client.background import BackgroundLoop

ItemT = TypeVar("ItemT")

_BATCH: Final = 256
"""How many items the background loop reads before it hands them over."""


class BackgroundReading(Generic[ItemT]):
    """Reads an asynchronous iterator in the background loop. Every method blocks its thread."""

    def __init__(self, items: AsyncIterator[ItemT], loop: BackgroundLoop) -> None:
        self._items = items
        self._loop = loop
        # An interrupted thread closes the iterator while the loop may still be reading it.
        self._using = asyncio.Lock()

    def all(self) -> Generator[ItemT, None, None]:
        """All items, in batches. Closes the iterator at the end."""
        try:
            while True:
                items, error = self._loop.call(self._take(_BATCH))
                yield from items
                if error is not None:
                    raise error
                if len(items) < _BATCH:
                    return
        finally:
            self.close()

    def next(self) -> list[ItemT]:
        """The next item alone, or nothing at the end."""
        items, error = self._loop.call(self._take(1))
        if error is not None:
            raise error
        return items

    def close(self) -> None:
        """Closes the iterator. The garbage collector may be the caller."""
        self._loop.finish(self._close())

    async def _take(self, count: int) -> tuple[list[ItemT], BaseException | None]:
        """The next items, at most `count`, and the error that came after them."""
        items: list[ItemT] = []
        async with self._using:
            try:
                async for item in self._items:
                    items.append(item)
                    if len(items) == count:
                        break
            except BaseException as error:  # noqa: BLE001  # the caller raises it
                return items, error
        return items, None

    async def _close(self) -> None:
        async with self._using:
            if isinstance(self._items, AsyncGenerator):
                await self._items.aclose()
