"""Pages: ranges of a log in MongoDB, with the exact bytes of the records.

The bytes are those of the log, so any page that covers an offset is right. A writer inserts a page
at the end of the stored pages; a duplicate key means that another writer was first. Merging
replaces a small page by a large page that reaches further, and then deletes the pages inside it. So
every offset is covered at every moment. A writer that was overtaken may insert a page inside a
merged page or across its end. Readers use any page that covers an offset, and the next merge
removes the pages inside.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any
from zlib import crc32

import msgpack
import zstandard
from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import BulkWriteError

from runfold.store.database import Database
from runfold.store.unavailable import duplicates_of, mongo_errors
from runfold_projections.admission import COUNTING, Admitted, Outcome
from runfold_schemas.codec import Record

EVENTS_MAX = 500
BYTES_MAX = 512 * 1024
"""The limit of a page's records before compression. A single record may be larger."""

MERGE_AT = 64
"""The number of small pages of a run after which its owner merges them."""

_BY_END = IndexModel([("log_id", ASCENDING), ("next_offset", ASCENDING)])
_NO_BODY = {"body": 0}
_HEAD = {"_id": 0, "first_offset": 1, "next_offset": 1, "counts": 1}
_HEADS = 16

_compress = zstandard.ZstdCompressor(level=1).compress
_decompress = zstandard.ZstdDecompressor().decompress


@dataclass(frozen=True, slots=True)
class Page:
    """The range `[first_offset, next_offset)` of one log. Times are the broker's append times in
    milliseconds since 1970.
    """

    log_id: str
    first_offset: int
    next_offset: int
    count: int
    first_time: int
    max_time: int
    counts: dict[str, int]
    """The number of events that count, by type."""
    turns: list[str]
    ids: bytes
    """The ids of the events that count, 16 bytes each."""
    exceptions: list[tuple[int, Outcome, str]]
    """The offset, the outcome and the reason of every record that was not accepted."""
    body: bytes
    checksum: int
    """The CRC-32 of the stored body."""
    size: int
    """The size of the body before compression, in bytes."""

    @property
    def is_small(self) -> bool:
        """Whether merging the page with its neighbours is worth the work."""
        return self.count < EVENTS_MAX // 2 and self.size < BYTES_MAX // 2

    def event_ids(self) -> list[str]:
        """The ids of the events that count."""
        hexadecimal = self.ids.hex()
        return [
            f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
            for digits in (hexadecimal[start : start + 32] for start in range(0, len(hexadecimal), 32))
        ]

    def records(self) -> list[Record]:
        """The records, unpacked from the body."""
        return unpack(self.body)


def pages_of(log_id: str, admitted: Sequence[Admitted], *, first_offset: int, next_offset: int) -> list[Page]:
    """Pages without gaps for `admitted`, the records of `[first_offset, next_offset)`."""
    frames = _frames([each.record for each in admitted])
    if len(admitted) <= EVENTS_MAX and len(frames) <= BYTES_MAX:
        # Frames are longer than the records in them, so one page is enough and no record has to be
        # measured.
        return [_page(log_id, admitted, frames, first_offset=first_offset, next_offset=next_offset)]
    cuts = [0, *_cuts(admitted), len(admitted)]
    starts = [first_offset, *(admitted[cut].record.offset for cut in cuts[1:-1]), next_offset]
    chunks = [admitted[begin:end] for begin, end in pairwise(cuts)]
    return [
        _page(log_id, chunk, _frames([each.record for each in chunk]), first_offset=start, next_offset=end)
        for chunk, (start, end) in zip(chunks, pairwise(starts), strict=True)
    ]


def unpack(body: bytes) -> list[Record]:
    """The records in a page's body."""
    return list(starmap(Record, msgpack.unpackb(_decompress(body), use_list=False, raw=False)))


def pack(records: Sequence[Record]) -> bytes:
    """The body of a page with these records."""
    return _compress(_frames(records))


def _frames(records: Sequence[Record]) -> bytes:
    packed: bytes = msgpack.packb(records)
    return packed


class PageStore:
    """The pages of one edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._pages = database[f"pages.{edition}"]

    async def create_indexes(self) -> None:
        with mongo_errors():
            await self._pages.create_indexes([_BY_END])

    async def insert(self, pages: Iterable[Page]) -> set[str]:
        """Inserts at most one page for each log. Returns the logs whose page existed already."""
        documents = [_document(page) for page in pages]
        if not documents:
            return set()
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
        it.
        """
        offset, has_moved = first_offset, True
        while has_moved:
            has_moved = False
            async with aclosing(self._ending_after(log_id, offset, bodies=bodies)) as pages:
                async for page in pages:
                    if page.first_offset <= offset < page.next_offset:
                        yield page
                        offset, has_moved = page.next_offset, True

    async def end(self, log_id: str, *, first_offset: int = 0) -> int:
        """The first offset that no page covers, at or after `first_offset`."""
        end = first_offset
        async for page in self.read(log_id, first_offset=first_offset, bodies=False):
            end = page.next_offset
        return end

    async def begin_of_last(
        self, log_id: str, *, end: int, newest: int, counts: Callable[[Mapping[str, int]], int]
    ) -> int:
        """The offset at which to begin reading the last `newest` events before `end`. `counts`
        gives the number of relevant events of a page, from its counts by type. Reads only the heads
        of the last pages.
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
            return {document["_id"].partition(":")[0]: document["first_time"] async for document in cursor}

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
                if group and (page.first_offset != group[-1].next_offset or not _fits(group, page)):
                    await self._replace(group)
                    group = []
                group.append(page)
                last = group[0].first_offset
        await self._replace(group)
        return last

    async def delete_logs(self, log_ids: Sequence[str]) -> None:
        with mongo_errors():
            await self._pages.delete_many({"log_id": {"$in": list(log_ids)}})

    async def all(self, log_id: str) -> list[Page]:
        """Every stored page of a log, also pages that overlap, for `verify`."""
        with mongo_errors():
            return [
                _from_document(document)
                async for document in self._pages.find({"log_id": log_id}).sort("_id", ASCENDING)
            ]

    async def _ending_after(self, log_id: str, offset: int, *, bodies: bool) -> AsyncGenerator[Page, None]:
        """The pages that end after `offset`, in the order of their ends.

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
                    yield _from_document(document)
        finally:
            await cursor.close()

    async def _replace(self, group: list[Page]) -> None:
        """Replaces the pages of the group by one page. Then deletes the pages inside it, also those
        that an earlier merge left.
        """
        if not group:
            return
        merged = _merged(group) if len(group) > 1 else group[0]
        if len(group) > 1 and not await self._put(merged):
            return
        inside = {
            "_id": {
                "$gt": page_id(merged.log_id, merged.first_offset),
                "$lt": page_id(merged.log_id, merged.next_offset),
            },
            "next_offset": {"$lte": merged.next_offset},
        }
        with mongo_errors():
            await self._pages.delete_many(inside)

    async def _put(self, merged: Page) -> bool:
        """Replaces the small page with the same first offset. Returns False if the stored page
        already reaches as far.
        """
        with mongo_errors():
            answer = await self._pages.replace_one(
                {
                    "_id": page_id(merged.log_id, merged.first_offset),
                    "next_offset": {"$lt": merged.next_offset},
                },
                _document(merged),
            )
        return bool(answer.modified_count)


def page_id(log_id: str, offset: int) -> str:
    """The `_id` of the page that begins at `offset`."""
    # As wide as the largest offset, so that ids sort in the order of offsets.
    return f"{log_id}:{offset:019d}"


def _cuts(admitted: Sequence[Admitted]) -> Iterable[int]:
    count = size = 0
    for index, each in enumerate(admitted):
        length = _length(each.record)
        if count and (count == EVENTS_MAX or size + length > BYTES_MAX):
            yield index
            count = size = 0
        count += 1
        size += length


def _length(record: Record) -> int:
    length = len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        length += len(name) + len(value or b"")
    return length


def _page(
    log_id: str, admitted: Sequence[Admitted], frames: bytes, *, first_offset: int, next_offset: int
) -> Page:
    counting = [each.event for each in admitted if each.event is not None and each.outcome in COUNTING]
    times = [each.record.log_time for each in admitted]
    body = _compress(frames)
    return Page(
        log_id=log_id,
        first_offset=first_offset,
        next_offset=next_offset,
        count=len(admitted),
        first_time=times[0] if times else 0,
        max_time=max(times, default=0),
        counts=dict(Counter([event.type for event in counting])),
        turns=[turn for turn in dict.fromkeys([event.turn_id for event in counting]) if turn is not None],
        ids=bytes.fromhex("".join([event.event_id for event in counting]).replace("-", "")),
        exceptions=[
            (each.record.offset, each.outcome, each.reason) for each in admitted if each.outcome != "accepted"
        ],
        body=body,
        checksum=crc32(body),
        size=zstandard.frame_content_size(body),
    )


def _fits(group: list[Page], page: Page) -> bool:
    # The size before compression counts, because readers hold a whole page in memory.
    pages = (*group, page)
    return sum(each.count for each in pages) <= EVENTS_MAX and sum(each.size for each in pages) <= BYTES_MAX


def _merged(group: list[Page]) -> Page:
    body = pack([record for page in group for record in page.records()])
    counts: dict[str, int] = {}
    for page in group:
        for kind, count in page.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    return Page(
        log_id=group[0].log_id,
        first_offset=group[0].first_offset,
        next_offset=group[-1].next_offset,
        count=sum(page.count for page in group),
        first_time=next((page.first_time for page in group if page.count), 0),
        max_time=max(page.max_time for page in group),
        counts=counts,
        turns=list(dict.fromkeys(turn for page in group for turn in page.turns)),
        ids=b"".join(page.ids for page in group),
        exceptions=[exception for page in group for exception in page.exceptions],
        body=body,
        checksum=crc32(body),
        size=zstandard.frame_content_size(body),
    )


def _document(page: Page) -> dict[str, Any]:
    return {
        "_id": page_id(page.log_id, page.first_offset),
        "log_id": page.log_id,
        "first_offset": page.first_offset,
        "next_offset": page.next_offset,
        "count": page.count,
        "first_time": page.first_time,
        "max_time": page.max_time,
        "counts": page.counts,
        "turns": page.turns,
        "ids": page.ids,
        "exceptions": page.exceptions,
        "body": page.body,
        "checksum": page.checksum,
        "size": page.size,
    }


def _from_document(document: dict[str, Any]) -> Page:
    return Page(
        log_id=document["log_id"],
        first_offset=document["first_offset"],
        next_offset=document["next_offset"],
        count=document["count"],
        first_time=document["first_time"],
        max_time=document["max_time"],
        counts=document["counts"],
        turns=document["turns"],
        ids=document["ids"],
        exceptions=[(offset, outcome, reason) for offset, outcome, reason in document["exceptions"]],
        body=document.get("body", b""),
        checksum=document["checksum"],
        size=document["size"],
    )
