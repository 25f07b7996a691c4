"""Reads the records of one batch as it lies in a topic, for batches that aiokafka's parser refuses
or would read without a limit.

aiokafka's parser is written in C and faster, but it unpacks without a limit, and it fails for a
header name that is not UTF-8.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from runfold.log.compression import UnpackError, unpack
from runfold_schemas.codec import Headers, Record

_MAGIC_AT, _MAGIC = 16, 2
"""Where the version of the format stands, and the version since Kafka 0.11."""

CODEC_MASK: Final = 0x07

_OFFSET: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")

_LOG_APPEND_TIME: Final = 0x08

_RECORDS_MAX: Final = 100_000
"""The limit of records of a batch that is read here. Kafka's own producers have at most 10,000."""

_HEADERS_MAX: Final = 1_000_000
"""The limit of all headers of a batch that is read here, about 100 MB."""

_RECORD_HEADERS_MAX: Final = 10_000
"""The limit of headers of one record that is read here."""

LARGE_BYTES: Final = 256 * 1024
"""The size of a record that is read here, because aiokafka's parser has no limit of headers. A
smaller record has 130,000 headers at the most, which take 10 MB and less than 100 ms.
"""

_VARINT_BYTES_MAX: Final = 10


class RawBatch:
    """One whole batch in format 2, unpacked. Iterate over it once, for its records. Both raise
    `UnpackError` where the batch cannot be read on.

    A header name that is not UTF-8 is decoded with escapes, such as `\\xff`, so that every reader
    gets the same text.
    """

    def __init__(self, batch: bytes) -> None:
        if batch[_MAGIC_AT] != _MAGIC or len(batch) < _HEADER.size:
            raise UnpackError("its format is older than Kafka 0.11")
        fields = _HEADER.unpack_from(batch)
        self._base_offset, _, _, _, _, attributes, last, self._first_time, self._max_time, *_, count = fields
        if not 0 <= count <= _RECORDS_MAX:
            raise UnpackError(f"it has {count:,} records")
        payload = memoryview(batch)[_HEADER.size :]
        self._data = unpack(codec, payload) if (codec := attributes & CODEC_MASK) else bytes(payload)
        self._is_log_time = bool(attributes & _LOG_APPEND_TIME)
        self._count = count
        self._last_delta = last

    @property
    def unpacked_bytes(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Record]:
        reader = _Reader(self._data)
        for _ in range(self._count):
            time_delta, offset_delta, key, value, headers = reader.read_record()
            if not 0 <= offset_delta <= self._last_delta:
                raise UnpackError("a record is outside the offsets of its batch")
            time = self._max_time if self._is_log_time else self._first_time + time_delta
            yield Record(self._base_offset + offset_delta, time, key, headers, value)
        if not reader.at_end:
            raise UnpackError("there are bytes after its last record")


def moved(data: bytes, base: int) -> bytes:
    """These batches with `base` added to their offsets, which no checksum covers."""
    moving, at = bytearray(data), 0
    while at + _OFFSET.size + _LENGTH.size <= len(moving):
        (offset,), (length,) = _OFFSET.unpack_from(moving, at), _LENGTH.unpack_from(moving, at + _OFFSET.size)
        _OFFSET.pack_into(moving, at, (offset + base) & 2**63 - 1)
        if length <= 0:
            break  # a damaged batch, behind which nothing can be read
        at += _OFFSET.size + _LENGTH.size + length
    return bytes(moving)


def has_large_record(batch: bytes) -> bool:
    """Whether a record of an uncompressed batch in format 2 is large. If the batch is not well
    formed, the result may be either.
    """
    position, end = _HEADER.size, len(batch)
    while position + LARGE_BYTES < end:
        length = shift = 0
        for byte in batch[position : position + _VARINT_BYTES_MAX]:
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        length >>= 1  # of a length below zero, which has no record behind it, this is at least 0
        if length > LARGE_BYTES:
            return True
        position += length
    return False


class _Reader:
    """Reads records from unpacked bytes. Raises `UnpackError` if they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._headers_left = _HEADERS_MAX

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def read_record(self) -> tuple[int, int, bytes | None, bytes | None, Headers]:
        length = self._varint()
        end = self._position + length
        self._position += 1  # attributes, which have no meaning yet
        time_delta, offset_delta = self._varint(), self._varint()
        key, value = self._bytes(), self._bytes()
        count = self._varint()
        self._headers_left -= count
        if not 0 <= count <= _RECORD_HEADERS_MAX or self._headers_left < 0:
            raise UnpackError(f"a record has {count:,} headers")
        # A header's value may be missing too.
        headers: Any = tuple((self._text(), self._bytes()) for _ in range(count))
        if self._position != end:
            raise UnpackError("a record is not as long as it says")
        return time_delta, offset_delta, key, value, headers

    def _varint(self) -> int:
        """Kafka's encoding of an integer: seven bits a byte, the lowest first, signs alternate."""
        data, position = self._data, self._position
        bits = 0
        for index, byte in enumerate(data[position : position + _VARINT_BYTES_MAX]):
            bits |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                self._position = position + index + 1
                return (bits >> 1) ^ -(bits & 1)
        raise UnpackError("its records are cut off")

    def _bytes(self) -> bytes | None:
        length = self._varint()
        if length < 0:
            return None
        begin, self._position = self._position, self._position + length
        if self._position > len(self._data):
            raise UnpackError("its records are cut off")
        return self._data[begin : self._position]

    def _text(self) -> str:
        name = self._bytes()
        if name is None:
            raise UnpackError("a header has no name")
        return name.decode(errors="backslashreplace")
