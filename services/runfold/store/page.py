"""A page: a range of a log with the exact bytes of its records, and its document in MongoDB.

A document has two checksums: of its body, and of all its other fields, the seal. So a reader that
needs no body can trust the rest. Documents of earlier versions have no seal.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, starmap
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgpack
import zstandard

from runfold.store.damage import damaged
from runfold_projections.admission import Admitted, Outcome
from runfold_projections.tally import Tally, tally_of
from runfold_schemas.codec import Record, Row

EVENTS_MAX = 500
BYTES_MAX = 512 * 1024
"""The limit of a page's records before compression. A single record may be larger."""

_SEALED: Final = (
    "log_id",
    "first_offset",
    "next_offset",
    "count",
    "first_time",
    "max_time",
    "counts",
    "turns",
    "ids",
    "exceptions",
    "checksum",
    "size",
)

_FIELDS: Final = len(Record._fields)

_of_thread = threading.local()
"""The compressor of each thread. Two threads must not share one."""

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
        return _is_small(self.count, self.size)

    def event_ids(self) -> list[str]:
        """The ids of the events that count."""
        hexadecimal = self.ids.hex()
        return [
            f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
            for digits in (hexadecimal[start : start + 32] for start in range(0, len(hexadecimal), 32))
        ]

    def records(self) -> list[Record]:
        """The records, unpacked from the body. Raises `DamagedError` if the body is not the records
        of this page.
        """
        return list(starmap(Record, self.rows()))

    def rows(self) -> Sequence[Row]:
        """The fields of each record, for readers that make other records of them. Raises
        `DamagedError`.
        """
        try:
            fault = None if zstandard.frame_content_size(self.body) == self.size else "its size is wrong"
            rows = () if fault else _unpack_rows(self.body)
            fault = fault or self._fault(rows)
        except Exception as error:  # noqa: BLE001  # bytes that were changed can break in any way
            fault = f"it cannot be read: {type(error).__name__}: {error}"
        if fault:
            raise damaged("pages", page_id(self.log_id, self.first_offset), f"its body: {fault}")
        return rows

    def _fault(self, rows: Sequence[Row]) -> str | None:
        if len(rows) != self.count:
            return f"it has {len(rows)} records, the page counts {self.count}"
        if any(length != _FIELDS for length in set(map(len, rows))):
            return "its records have too many fields, or too few"
        if rows and not self.first_offset <= rows[0][0] <= rows[-1][0] < self.next_offset:
            return "its records lie beyond the page"
        return None


@dataclass(frozen=True, slots=True)
class Draft:
    """A page whose body is not compressed yet. Compressing takes as long as folding, and can be
    done in another thread.
    """

    log_id: str
    first_offset: int
    next_offset: int
    portion: "Framed"
    tally: Tally

    @property
    def count(self) -> int:
        return len(self.portion.records)

    @property
    def size(self) -> int:
        return len(self.portion.frames)

    @property
    def is_small(self) -> bool:
        """As `Page.is_small`."""
        return _is_small(self.count, self.size)

    def records(self) -> Sequence[Record]:
        return self.portion.records

    def page(self) -> Page:
        tally, times = self.tally, [record.log_time for record in self.portion.records]
        body = _compress(self.portion.frames)
        return Page(
            log_id=self.log_id,
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            count=len(times),
            first_time=times[0] if times else 0,
            max_time=max(times, default=0),
            counts=tally.counts,
            turns=[*tally.turns],
            ids=bytes.fromhex("".join(tally.event_ids).replace("-", "")),
            exceptions=tally.exceptions,
            body=body,
            checksum=crc32(body),
            size=self.size,
        )


def pages_of(log_id: str, admitted: Sequence[Admitted], *, first_offset: int, next_offset: int) -> list[Page]:
    """Pages without gaps for `admitted`, the records of `[first_offset, next_offset)`."""
    portions = [*cut([each.record for each in admitted])]
    starts = [first_offset, *(portion.records[0].offset for portion in portions[1:]), next_offset]
    rest = iter(admitted)
    chunks = [[*islice(rest, len(portion.records))] for portion in portions]
    return [
        Draft(log_id, start, end, portion, tally_of(chunk)).page()
        for portion, chunk, (start, end) in zip(portions, chunks, pairwise(starts), strict=True)
    ]


class Framed(NamedTuple):
    """Consecutive records that fit into one page, and the body of that page before compression."""

    records: Sequence[Record]
    frames: bytes
    packed: Sequence[bytes] = ()
    """The bytes of each record in `frames`."""


def cut(records: Sequence[Record]) -> Iterator[Framed]:
    """The records in portions that fit into pages. One empty portion if there are no records."""
    for begin in range(0, len(records) or 1, EVENTS_MAX):
        some = records[begin : begin + EVENTS_MAX]
        framed = _framed(some)
        if len(framed.frames) <= BYTES_MAX:
            # Frames are longer than the records in them, so one page is enough and no record has to
            # be measured.
            yield framed
        else:
            for start, end in pairwise([0, *_cuts(some), len(some)]):
                yield _framed(some[start:end])


def unpack(body: bytes) -> list[Record]:
    """The records in a page's body."""
    return list(starmap(Record, _unpack_rows(body)))


def _unpack_rows(body: bytes) -> Sequence[Row]:
    rows: Sequence[Row] = msgpack.unpackb(_decompress(body), use_list=False, raw=False)
    return rows


def pack(records: Sequence[Record]) -> bytes:
    """The body of a page with these records."""
    return _compress(_framed(records).frames)


def packed_records(records: Iterable[Record]) -> list[bytes]:
    """The bytes of each record, as the body of a page has them."""
    pack_record = msgpack.Packer().pack
    return [pack_record(record) for record in records]


def _compress(frames: bytes) -> bytes:
    compressor: zstandard.ZstdCompressor | None = getattr(_of_thread, "compressor", None)
    if compressor is None:
        compressor = _of_thread.compressor = zstandard.ZstdCompressor(level=1)
    return compressor.compress(frames)


def _is_small(count: int, size: int) -> bool:
    return count < EVENTS_MAX // 2 and size < BYTES_MAX // 2


def _framed(records: Sequence[Record]) -> Framed:
    packed = packed_records(records)
    head: bytes = msgpack.Packer().pack_array_header(len(records))
    return Framed(records, b"".join([head, *packed]), packed)


def page_id(log_id: str, offset: int) -> str:
    """The `_id` of the page that begins at `offset`."""
    # As wide as the largest offset, so that ids sort in the order of offsets.
    return f"{log_id}:{offset:019d}"


def fits(group: Sequence[Page], page: Page) -> bool:
    """Whether one page can hold these pages together."""
    # The size before compression counts, because readers hold a whole page in memory.
    pages = (*group, page)
    return sum(each.count for each in pages) <= EVENTS_MAX and sum(each.size for each in pages) <= BYTES_MAX


def merged(group: Sequence[Page]) -> Page:
    """One page with the records of consecutive pages. Raises `DamagedError`."""
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


def document_of(page: Page) -> dict[str, Any]:
    """The document of a page."""
    document = {
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
    return document | {"seal": _seal(document)}


def page_of(document: Mapping[str, Any], *, has_body: bool = True) -> Page:
    """The page of a document, which was read with its body or without. Raises `DamagedError`."""
    if (fault := fault_of(document, has_body=has_body)) is not None:
        raise damaged("pages", document.get("_id"), fault)
    return read_document(document)


def fault_of(document: Mapping[str, Any], *, has_body: bool = True) -> str | None:
    """The damage that the checksums and the form of a document show."""
    missing = [name for name in (*_SEALED, *(["body"] if has_body else [])) if name not in document]
    if missing:
        return f"its field {missing[0]} is missing"
    if "seal" in document and _seal_or_none(document) != document["seal"]:
        return "its fields do not match their checksum"
    try:
        page = read_document(document)
        if document["_id"] != page_id(page.log_id, page.first_offset):
            return "its _id is of another page"
        if not 0 <= page.first_offset < page.next_offset:
            return "it covers no offset"
        page.ids.hex()
        if has_body and crc32(page.body) != page.checksum:
            return "its body does not match its checksum"
    except (TypeError, ValueError, AttributeError) as error:
        return f"its fields have another form: {error}"
    return None


def extent_of(document: Mapping[str, Any]) -> range | None:
    """The offsets that a stored document covers, if its id and its offsets agree."""
    first, end = document.get("first_offset"), document.get("next_offset")
    if not isinstance(first, int) or not isinstance(end, int) or not 0 <= first < end:
        return None
    return range(first, end) if document["_id"] == page_id(str(document.get("log_id")), first) else None


def read_document(document: Mapping[str, Any]) -> Page:
    """The page of a document whose checksums are not looked at. A document of another form raises
    any error.
    """
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


def _seal_or_none(document: Mapping[str, Any]) -> int | None:
    try:
        return _seal(document)
    except (TypeError, ValueError, OverflowError):
        return None


def _seal(document: Mapping[str, Any]) -> int:
    packed: bytes = msgpack.packb([document[name] for name in _SEALED])
    return crc32(packed)


def _cuts(records: Sequence[Record]) -> Iterable[int]:
    begin = size = 0
    for index, record in enumerate(records):
        length = _length(record)
        if index > begin and size + length > BYTES_MAX:
            yield index
            begin, size = index, 0
        size += length


def _length(record: Record) -> int:
    length = len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        length += len(name) + len(value or b"")
    return length
