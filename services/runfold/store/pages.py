"""Pages: slices of a log in MongoDB, with the records' exact bytes.

The bytes are the log's, so any page that covers an offset is right. A writer inserts at the end of
what is stored; a duplicate key says that somebody else was there first. Merging replaces many small
pages by a large one, only where that reaches further, and then deletes those inside it: at no
moment is an offset uncovered. A writer that was overtaken may put a page inside a merged one or
across its end; readers go by what covers an offset, and the next merge removes what is inside.
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
"""Of a page's records before compression; one record alone may be larger."""

MERGE_AT = 64
"""Small pages of a run before its owner merges them."""

_BY_END = IndexModel([("log_id", ASCENDING), ("next_offset", ASCENDING)])
_NO_BODY = {"body": 0}
_HEAD = {"_id": 0, "first_offset": 1, "next_offset": 1, "counts": 1}
_HEADS = 16

_compress = zstandard.ZstdCompressor(level=1).compress
_decompress = zstandard.ZstdDecompressor().decompress


@dataclass(frozen=True, slots=True)
class Page:
    """A slice `[first_offset, next_offset)` of one log. Times are the broker's append times in
    milliseconds.
    """

    log_id: str
    first_offset: int
    next_offset: int
    count: int
    first_time: int
    max_time: int
    counts: dict[str, int]
    """Events that count, by type."""
    turns: list[str]
    ids: bytes
    """The ids of the events that count, 16 bytes each."""
    exceptions: list[tuple[int, Outcome, str]]
    """Offset, outcome and reason of every record that was not simply accepted."""
    body: bytes
    checksum: int
    """CRC-32 of the body as it is stored."""
    size: int
    """Of the body before compression, in bytes."""

    @property
    def is_small(self) -> bool:
        """Whether it is worth to be merged with its neighbours."""
        return self.count < EVENTS_MAX // 2 and self.size < BYTES_MAX // 2

    def event_ids(self) -> list[str]:
        hexadecimal = self.ids.hex()
        return [
            f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}"
            for one in (hexadecimal[start : start + 32] for start in range(0, len(hexadecimal), 32))
        ]

    def records(self) -> list[Record]:
        return unpack(self.body)


def pages_of(log_id: str, admitted: Sequence[Admitted], *, first_offset: int, next_offset: int) -> list[Page]:
    """`admitted`, the records of `[first_offset, next_offset)`, cut into pages without a gap
    between them.
    """
    frames = _frames([one.record for one in admitted])
    if len(admitted) <= EVENTS_MAX and len(frames) <= BYTES_MAX:
        # Frames are longer than what they hold: there is nothing to cut, and no need to measure
        # each record.
        return [_page(log_id, admitted, frames, first_offset=first_offset, next_offset=next_offset)]
    cuts = [0, *_cuts(admitted), len(admitted)]
    starts = [first_offset, *(admitted[cut].record.offset for cut in cuts[1:-1]), next_offset]
    parts = [admitted[begin:end] for begin, end in pairwise(cuts)]
    return [
        _page(log_id, part, _frames([one.record for one in part]), first_offset=start, next_offset=following)
        for part, (start, following) in zip(parts, pairwise(starts), strict=True)
    ]


def unpack(body: bytes) -> list[Record]:
    return list(starmap(Record, msgpack.unpackb(_decompress(body), use_list=False, raw=False)))


def pack(records: Sequence[Record]) -> bytes:
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
        """Inserts at most one page a log; gives the logs whose page was there already."""
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
        that none covers.

        Pages may overlap while they are merged: a page can begin before the end of the one before
        it.
        """
        cursor, going_on = first_offset, True
        while going_on:
            going_on = False
            async with aclosing(self._beyond(log_id, cursor, bodies=bodies)) as pages:
                async for page in pages:
                    if page.first_offset <= cursor < page.next_offset:
                        yield page
                        cursor, going_on = page.next_offset, True

    async def end(self, log_id: str, *, first_offset: int = 0) -> int:
        """The first offset that no page covers, at or after `first_offset`."""
        end = first_offset
        async for page in self.read(log_id, first_offset=first_offset, bodies=False):
            end = page.next_offset
        return end

    async def begin_of_last(
        self, log_id: str, *, end: int, newest: int, counts: Callable[[Mapping[str, int]], int]
    ) -> int:
        """Where to begin to read for the last `newest` events before `end`; `counts` says how many
        of a page's events are meant, given its counts by type. Looks at the last pages only, and
        not into them.
        """
        begin, total = end, 0
        query = {"log_id": log_id, "first_offset": {"$lt": end}}
        cursor = self._pages.find(query, _HEAD).sort("next_offset", DESCENDING).batch_size(_HEADS)
        try:
            with mongo_errors():
                async for page in cursor:
                    # One that overlaps what was counted already, or reaches beyond the end, would
                    # count too many.
                    if page["first_offset"] < begin:
                        total += counts(page["counts"]) if page["next_offset"] <= begin else 0
                        begin = page["first_offset"]
                    if total >= newest:
                        return begin
        finally:
            await cursor.close()
        return 0

    async def first_times(self, log_ids: Iterable[str]) -> dict[str, int]:
        """When the first record of each log was appended, in milliseconds; nothing of a log without
        pages.
        """
        firsts = [page_id(log_id, 0) for log_id in log_ids]
        with mongo_errors():
            cursor = self._pages.find({"_id": {"$in": firsts}}, {"first_time": 1})
            return {found["_id"].partition(":")[0]: found["first_time"] async for found in cursor}

    async def merge(self, log_id: str, *, first_offset: int) -> int:
        """Merges what is small from `first_offset` on. Gives the first offset of the last page,
        where to go on next time.
        """
        last = first_offset
        group: list[Page] = []
        async with aclosing(self.read(log_id, first_offset=first_offset)) as pages:
            async for page in pages:
                while group and group[-1].first_offset >= page.first_offset:
                    group.pop()  # lies inside this page, which another worker has merged
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
        """Every page of a log as it is stored, also those that overlap: for `verify`."""
        with mongo_errors():
            return [
                _from_document(found)
                async for found in self._pages.find({"log_id": log_id}).sort("_id", ASCENDING)
            ]

    async def _beyond(self, log_id: str, offset: int, *, bodies: bool) -> AsyncGenerator[Page, None]:
        """The pages that reach beyond `offset`, in the order of their ends.

        That order finds a page that covers an offset wherever it begins: a writer that was
        overtaken may have put a small page inside a merged one. And at the end of a log, where most
        reads end, it finds nothing at once.
        """
        # The driver fetches batches of 101 pages and 16 MB at the most, so memory stays bounded.
        query = {"log_id": log_id, "next_offset": {"$gt": offset}}
        cursor = self._pages.find(query, None if bodies else _NO_BODY).sort("next_offset", ASCENDING)
        try:
            with mongo_errors():
                async for found in cursor:
                    yield _from_document(found)
        finally:
            await cursor.close()

    async def _replace(self, group: list[Page]) -> None:
        """One page for all of them. Where there is only one already, what an earlier merge left
        inside it goes.
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
        """Whether the page is there now: not if another one that reaches as far is."""
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
    # As wide as the largest offset, so that ids sort as offsets do.
    return f"{log_id}:{offset:019d}"


def _cuts(admitted: Sequence[Admitted]) -> Iterable[int]:
    count = size = 0
    for index, one in enumerate(admitted):
        length = _length(one.record)
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
    counting = [one.event for one in admitted if one.event is not None and one.outcome in COUNTING]
    times = [one.record.log_time for one in admitted]
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
            (one.record.offset, one.outcome, one.reason) for one in admitted if one.outcome != "accepted"
        ],
        body=body,
        checksum=crc32(body),
        size=zstandard.frame_content_size(body),
    )


def _fits(group: list[Page], page: Page) -> bool:
    # Not the compressed size: a page must fit into the memory of whoever reads it.
    pages = (*group, page)
    return sum(one.count for one in pages) <= EVENTS_MAX and sum(one.size for one in pages) <= BYTES_MAX


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


def _from_document(found: dict[str, Any]) -> Page:
    return Page(
        log_id=found["log_id"],
        first_offset=found["first_offset"],
        next_offset=found["next_offset"],
        count=found["count"],
        first_time=found["first_time"],
        max_time=found["max_time"],
        counts=found["counts"],
        turns=found["turns"],
        ids=found["ids"],
        exceptions=[(offset, outcome, reason) for offset, outcome, reason in found["exceptions"]],
        body=found.get("body", b""),
        checksum=found["checksum"],
        size=found["size"],
    )
