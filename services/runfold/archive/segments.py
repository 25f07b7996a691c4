"""Segments of logs: what is archived at once, and the digest that says whether it is unchanged."""

import hashlib
import struct
from collections.abc import Collection
from functools import lru_cache
from typing import Final, NamedTuple

from runfold_schemas.codec import Headers, Record

_NUMBERS: Final = struct.Struct(">qq")
_LENGTH: Final = struct.Struct(">q")
_ABSENT: Final = _LENGTH.pack(-1)


class Segment(NamedTuple):
    """Consecutive records of one log, to be archived. Their offsets are those of the run, and lie
    from `base` to `end` (exclusive). A log may have gaps.
    """

    run_id: str
    log_id: str
    base: int
    end: int
    records: list[Record]
    skipped: Collection[range] = ()
    """The offsets that an operator skipped."""


class ArchivedSegment(NamedTuple):
    """A segment that the table has, as it was when it was archived."""

    run_id: str
    log_id: str
    base: int
    end: int
    record_count: int
    record_bytes: int
    """The size of keys, headers and values."""
    sha256: str
    archived_at: int
    """Milliseconds since 1970."""

    @property
    def key(self) -> "SegmentKey":
        return SegmentKey(self.run_id, self.log_id, self.base)


class SegmentKey(NamedTuple):
    """A segment is archived once under this key."""

    run_id: str
    log_id: str
    base: int


class Digest:
    """The SHA-256 over offset, time, key, headers and value of the records that are added."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.count = 0

    def add(
        self, offset: int, log_time: int, key: bytes | None, headers: Headers, value: bytes | None
    ) -> None:
        parts = [_NUMBERS.pack(offset, log_time), _with_length(key), _LENGTH.pack(len(headers))]
        for name, content in headers:
            parts += (_encoded(name), _with_length(content))
        parts.append(_with_length(value))
        self._sha256.update(b"".join(parts))
        self.count += 1

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


def archived(segment: Segment, *, archived_at: int) -> ArchivedSegment:
    """What the table says of a segment."""
    digest = Digest()
    for record in segment.records:
        digest.add(*record)
    return ArchivedSegment(
        *(segment.run_id, segment.log_id, segment.base, segment.end),
        record_count=digest.count,
        record_bytes=sum(map(record_bytes, segment.records)),
        sha256=digest.hexdigest(),
        archived_at=archived_at,
    )


def record_bytes(record: Record) -> int:
    """The size of key, headers and value."""
    size = len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size += len(_encoded(name)) - _LENGTH.size + len(content or b"")
    return size


def _with_length(content: bytes | None) -> bytes:
    """The bytes behind their number, so that no two records have the same digest."""
    return _ABSENT if content is None else _LENGTH.pack(len(content)) + content


@lru_cache(maxsize=1000)
def _encoded(name: str) -> bytes:
    """The name of a header, of which there are few."""
    return _with_length(name.encode())
