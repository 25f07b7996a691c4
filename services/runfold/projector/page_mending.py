"""Mends the stored pages of one log while the log is read.

A page that keeps its place is compared with the log's records of the same offsets, and replaced if
it differs. Offsets that no page covers get new pages. Documents that are no pages of the log are
deleted last. So every offset that was covered stays covered.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from runfold.store.page import BYTES_MAX, EVENTS_MAX, Page, extent_of, fault_of, page_id, page_of, pages_of
from runfold.store.pages import PageStore
from runfold_projections.admission import Admitted
from runfold_schemas.errors import DamagedError


class StoredPages(NamedTuple):
    """The stored pages of a log up to the offset `end` of the log, without their bodies."""

    log_id: str
    slots: list[range]
    """The offsets of the pages that keep their places, in the order of their beginnings."""
    others: dict[str, Mapping[str, Any]]
    """Documents that are no pages of the log, by id."""
    reached: int
    """The end of the pages whose fields are right. It may lie beyond the end of the log."""

    @classmethod
    async def find(cls, pages: PageStore, log_id: str, *, end: int) -> "StoredPages":
        slots, others, reached = [], dict[str, Mapping[str, Any]](), 0
        async for document in pages.documents(log_id, bodies=False):
            extent = extent_of(document)
            if extent is not None and fault_of(document, has_body=False) is None:
                reached = max(reached, extent.stop)
            if extent is not None and extent.stop <= end:
                slots.append(extent)
            else:
                others[document["_id"]] = document
        return cls(log_id, slots, others, reached)


@dataclass(slots=True)
class _Slot:
    """The records of a stored page, or of a gap between pages if `is_gap`."""

    first_offset: int
    stop: int
    is_gap: bool
    admitted: list[Admitted] = field(default_factory=list)
    size: int = 0

    def take(self, each: Admitted) -> None:
        self.admitted.append(each)
        self.size += len(each.record.value or b"") + len(each.record.key or b"")

    @property
    def is_full(self) -> bool:
        return len(self.admitted) >= EVENTS_MAX or self.size >= BYTES_MAX


class PageMending:
    """Takes the records of the log in their order."""

    def __init__(self, pages: PageStore, stored: StoredPages, *, end: int) -> None:
        self.written = 0
        """The number of documents that were written or deleted."""
        self.is_overtaken = False
        """Whether another writer was first somewhere, so that another look is needed."""
        self._pages = pages
        self._log_id = stored.log_id
        self._others = dict(stored.others)
        self._waiting = deque(_with_gaps(stored.slots, end))
        self._open: list[_Slot] = []
        self._last: list[Page] = []

    async def take(self, admitted: Sequence[Admitted]) -> None:
        for each in admitted:
            offset = each.record.offset
            await self._move_to(offset)
            for slot in self._open:
                if slot.is_full:
                    await self._split(slot, offset)
                slot.take(each)

    async def finish(self, end: int) -> None:
        await self._move_to(end)
        for page in reversed(self._last):
            await self._put(page, stored=await self._pages.document(page_id(self._log_id, page.first_offset)))
        self.written += len(self._others)
        await self._pages.delete(self._others)

    async def _move_to(self, offset: int) -> None:
        """Closes the slots that end at `offset` or before, and opens those that begin."""
        while self._waiting and self._waiting[0].first_offset <= offset:
            self._open.append(self._waiting.popleft())
        closed = [slot for slot in self._open if slot.stop <= offset]
        if closed:
            self._open = [slot for slot in self._open if slot.stop > offset]
            for slot in closed:
                await self._close(slot)

    async def _split(self, slot: _Slot, offset: int) -> None:
        """Makes pages of what a slot holds. No page of ours holds more, so a stored page with such
        an extent is wrong: the page that takes its place reaches less far, and is stored last.
        """
        pages = self._pages_of(slot, stop=offset)
        if not slot.is_gap:
            self._last.append(pages[0])
            pages, slot.is_gap = pages[1:], True
        for page in pages:
            await self._fill(page)
        slot.first_offset, slot.admitted, slot.size = offset, [], 0

    async def _close(self, slot: _Slot) -> None:
        pages = self._pages_of(slot, stop=slot.stop)
        if slot.is_gap:
            for page in pages:
                await self._fill(page)
            return
        stored = await self._pages.document(page_id(self._log_id, slot.first_offset))
        if len(pages) == 1 and stored is not None and _is_equal(stored, pages[0]):
            return
        for page in pages[1:]:
            await self._fill(page)
        await self._put(pages[0], stored=stored)

    def _pages_of(self, slot: _Slot, *, stop: int) -> list[Page]:
        return pages_of(self._log_id, slot.admitted, first_offset=slot.first_offset, next_offset=stop)

    async def _fill(self, page: Page) -> None:
        """Stores a page where there is none, or only a document that is no page."""
        await self._put(page, stored=self._others.pop(page_id(self._log_id, page.first_offset), None))

    async def _put(self, page: Page, *, stored: Mapping[str, Any] | None) -> None:
        if await self._pages.put(page, stored=stored):
            self.written += 1
        else:
            self.is_overtaken = True


def _with_gaps(slots: Sequence[range], end: int) -> list[_Slot]:
    """The slots with the gaps between them, in the order of their beginnings."""
    result, covered = [], 0
    for extent in slots:
        if extent.start > covered:
            result.append(_Slot(covered, extent.start, is_gap=True))
        result.append(_Slot(extent.start, extent.stop, is_gap=False))
        covered = max(covered, extent.stop)
    if covered < end:
        result.append(_Slot(covered, end, is_gap=True))
    return result


def _is_equal(document: Mapping[str, Any], expected: Page) -> bool:
    """Whether a document is the page, however its body is compressed."""
    if fault_of(document) is not None:
        return False
    try:
        stored = page_of(document)
        records = stored.records()
    except DamagedError:
        return False
    compressed = replace(stored, body=expected.body, checksum=expected.checksum)
    return records == expected.records() and compressed == expected
