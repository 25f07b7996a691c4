"""The pages of runs in MongoDB.

The bytes are those of the log, so any page that covers an offset is right. A writer inserts a page
at the end of the stored pages; a duplicate key means that another writer was first. Merging
replaces a small page by a large page that reaches further, and then deletes the pages inside it. So
every offset is covered at every moment. A writer that was overtaken may insert a page inside a
merged page or across its end. Readers use any page that covers an offset, and the next merge
removes the pages inside.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import BulkWriteError

from runfold.store.database import Database
from runfold.store.page import (
    BYTES_MAX,
    EVENTS_MAX,
    Draft,
    Page,
    document_of,
    fault_of,
    fits,
    merged,
    pack,
    page_id,
    page_of,
    pages_of,
    read_document,
    unpack,
)
from runfold.store.unavailable import duplicates_of, mongo_errors
from runfold_schemas.errors import DamagedError
from runfold_schemas.topics import OFFSET_MAX

__all__ = ["BYTES_MAX", "EVENTS_MAX", "MERGE_AT", "Page", "PageStore", "pack", "pages_of", "unpack"]

MERGE_AT = 64
"""The number of small pages of a run after which its owner merges them."""

_LARGE_BYTES = 64 * 1024

_BY_END = IndexModel([("log_id", ASCENDING), ("next_offset", ASCENDING)])
_NO_BODY = {"body": 0}
_HEAD = {"_id": 0, "first_offset": 1, "next_offset": 1, "counts": 1}
_HEADS = 16


class PageStore:
    """The pages of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._pages = database[f"pages.{edition}"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._pages.create_indexes([_BY_END])

    async def insert(self, pages: Iterable[Page | Draft]) -> set[str]:
        """Inserts at most one page for each log. Returns the logs whose page existed already."""
        pages = list(pages)
        if not pages:
            return set()
        # Compressing lets other threads run, and the way to another thread takes as long as
        # compressing a few records.
        is_large = sum(page.size for page in pages if isinstance(page, Draft)) > _LARGE_BYTES
        documents = await asyncio.to_thread(_documents, pages) if is_large else _documents(pages)
        try:
            with mongo_errors():
                await self._pages.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            return {documents[index]["_id"].partition(":")[0] for index in duplicates_of(error)}
        return set()

    async def read(
        self, log_id: str, *, first_offset: int = 0, bodies: bool = True
    ) -> AsyncGenerator[Page, None]:
        """The pages that cover the log from `first_offset` on, in order, up to the first offset
        that no page covers.

        Pages may overlap while they are merged: a page can begin before the end of the page before
        it. Raises `DamagedError` at an offset that only a damaged page covers.
        """
        offset, has_moved = first_offset, True
        while has_moved:
            has_moved = False
            async with aclosing(self._ending_after(log_id, offset, bodies=bodies)) as documents:
                async for document in documents:
                    if _covers(document, offset):
                        page = await self._sound(document, offset, bodies=bodies)
                        yield page
                        offset, has_moved = page.next_offset, True

    async def end(self, log_id: str, *, first_offset: int = 0) -> int:
        """The first offset that no page covers, at or after `first_offset`. Raises
        `DamagedError`.
        """
        end = first_offset
        async for page in self.read(log_id, first_offset=first_offset, bodies=False):
            end = page.next_offset
        return end

    async def begin_of_last(
        self, log_id: str, *, end: int, newest: int, counts: Callable[[Mapping[str, int]], int]
    ) -> int:
        """The offset at which to begin reading the last `newest` events before `end`. `counts`
        gives the number of relevant events of a page, from its counts by type. Reads only the heads
        of the last pages. If one of them is damaged, the offset may be too high or too low.
        """
        begin, total = end, 0
        query = {"log_id": log_id, "first_offset": {"$lt": end}}
        cursor = self._pages.find(query, _HEAD).sort("next_offset", DESCENDING).batch_size(_HEADS)
        try:
            with mongo_errors():
                async for page in cursor:
                    # A page that overlaps counted pages, or reaches beyond the end, would count too
                    # many events.
                    if page["first_offset"] < begin:
                        total += counts(page["counts"]) if page["next_offset"] <= begin else 0
                        begin = page["first_offset"]
                    if total >= newest:
                        return begin
        except (KeyError, TypeError, AttributeError):
            return 0  # a damaged head, which the reader of the pages meets too
        finally:
            await cursor.close()
        return 0

    async def first_times(self, log_ids: Iterable[str]) -> dict[str, int]:
        """The append time of the first record of each log, in milliseconds since 1970. Logs without
        pages are left out.
        """
        firsts = [page_id(log_id, 0) for log_id in log_ids]
        with mongo_errors():
            cursor = self._pages.find({"_id": {"$in": firsts}}, {"first_time": 1})
            return {
                document["_id"].partition(":")[0]: document["first_time"]
                async for document in cursor
                if isinstance(document.get("first_time"), int)
            }

    async def merge(self, log_id: str, *, first_offset: int) -> int:
        """Merges small pages from `first_offset` on. Returns the first offset of the last page,
        where the next merge begins.
        """
        last = first_offset
        group: list[Page] = []
        async with aclosing(self.read(log_id, first_offset=first_offset)) as pages:
            async for page in pages:
                while group and group[-1].first_offset >= page.first_offset:
                    group.pop()  # is inside this page, which another worker has merged
                if group and (page.first_offset != group[-1].next_offset or not fits(group, page)):
                    await self._replace(group)
                    group = []
                group.append(page)
                last = group[0].first_offset
        await self._replace(group)
        return last

    async def with_pages(self, log_ids: Sequence[str]) -> set[str]:
        """Those of these logs that have pages."""
        with mongo_errors():
            return set(await self._pages.distinct("log_id", {"log_id": {"$in": list(log_ids)}}))

    async def delete_logs(self, log_ids: Sequence[str]) -> None:
        with mongo_errors():
            await self._pages.delete_many({"log_id": {"$in": list(log_ids)}})

    async def all(self, log_id: str) -> list[Page]:
        """Every stored page of a log, also pages that overlap. Raises `DamagedError`."""
        return [page_of(document) async for document in self.documents(log_id)]

    async def documents(self, log_id: str, *, bodies: bool = True) -> AsyncGenerator[dict[str, Any], None]:
        """Every stored document of a log as it is, also if it is damaged, in the order of ids."""
        # A damaged document may have lost the name of its log, but not its id.
        query = {"_id": {"$gte": page_id(log_id, 0), "$lte": page_id(log_id, OFFSET_MAX)}}
        cursor = self._pages.find(query, None if bodies else _NO_BODY).sort("_id", ASCENDING)
        try:
            with mongo_errors():
                async for document in cursor:
                    yield document
        finally:
            await cursor.close()

    async def document(self, id_: str) -> dict[str, Any] | None:
        """The stored document with this id as it is."""
        with mongo_errors():
            document: dict[str, Any] | None = await self._pages.find_one({"_id": id_})
        return document

    async def put(self, page: Page, *, stored: Mapping[str, Any] | None) -> bool:
        """Stores a page in the place of the document `stored`, or where there is none. Returns
        False if another writer was first.
        """
        if stored is None:
            return not await self.insert([page])
        reached = stored.get("next_offset", {"$exists": False})
        with mongo_errors():
            answer = await self._pages.replace_one(
                {"_id": stored["_id"], "next_offset": reached}, document_of(page)
            )
        return bool(answer.matched_count)

    async def copy(self, documents: AsyncIterable[Mapping[str, Any]]) -> None:
        """Stores documents of another edition, where there are none."""
        async for document in documents:
            with mongo_errors():
                await self._pages.update_one(
                    {"_id": document["_id"]}, {"$setOnInsert": document}, upsert=True
                )

    async def delete(self, ids: Iterable[str]) -> None:
        with mongo_errors():
            await self._pages.delete_many({"_id": {"$in": list(ids)}})

    async def _sound(self, document: dict[str, Any], offset: int, *, bodies: bool) -> Page:
        """The page of a document that covers the offset; if it is damaged, of another document."""
        try:
            return page_of(document, has_body=bodies)
        except DamagedError:
            query = {
                "log_id": document.get("log_id"),
                "first_offset": {"$lte": offset},
                "next_offset": {"$gt": offset},
            }
            with mongo_errors():
                async for other in self._pages.find(query, None if bodies else _NO_BODY):
                    if fault_of(other, has_body=bodies) is None:
                        return read_document(other)
            raise

    async def _ending_after(
        self, log_id: str, offset: int, *, bodies: bool
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The documents of pages that end after `offset`, in the order of their ends.

        In that order MongoDB finds a page that covers an offset wherever the page begins: a writer
        that was overtaken may have inserted a small page inside a merged page. At the end of a log,
        where most reads end, the query returns nothing at once.
        """
        # The driver fetches batches of 101 pages and 16 MB at the most, so memory stays bounded.
        query = {"log_id": log_id, "next_offset": {"$gt": offset}}
        cursor = self._pages.find(query, None if bodies else _NO_BODY).sort("next_offset", ASCENDING)
        try:
            with mongo_errors():
                async for document in cursor:
                    yield document
        finally:
            await cursor.close()

    async def _replace(self, group: list[Page]) -> None:
        """Replaces the pages of the group by one page. Then deletes the pages inside it, also those
        that an earlier merge left.
        """
        if not group:
            return
        whole = merged(group) if len(group) > 1 else group[0]
        if len(group) > 1 and not await self._put(whole):
            return
        inside = {
            "_id": {
                "$gt": page_id(whole.log_id, whole.first_offset),
                "$lt": page_id(whole.log_id, whole.next_offset),
            },
            "next_offset": {"$lte": whole.next_offset},
        }
        with mongo_errors():
            await self._pages.delete_many(inside)

    async def _put(self, whole: Page) -> bool:
        """Replaces the small page with the same first offset. Returns False if the stored page
        already reaches as far.
        """
        with mongo_errors():
            answer = await self._pages.replace_one(
                {
                    "_id": page_id(whole.log_id, whole.first_offset),
                    "next_offset": {"$lt": whole.next_offset},
                },
                document_of(whole),
            )
        return bool(answer.modified_count)


def _documents(pages: Iterable[Page | Draft]) -> list[dict[str, Any]]:
    return [document_of(page.page() if isinstance(page, Draft) else page) for page in pages]


def _covers(document: Mapping[str, Any], offset: int) -> bool:
    """Whether the page covers the offset, or is too damaged to tell."""
    first, end = document.get("first_offset"), document.get("next_offset")
    if isinstance(first, int) and isinstance(end, int):
        return first <= offset < end
    return True
