"""Unpacks compressed batches within a limit, because 600 KB may hold 600 MB.

Runfold writes no compressed batches, and its topics refuse them. Older topics and other producers'
batches are read here. gzip is always readable; the other codecs need `cramjam`, which the extra
`server` installs.
"""

import mmap
import zlib
from collections.abc import Callable
from typing import Any, Final

try:
    import cramjam
except ImportError:
    cramjam = None  # type: ignore[assignment]  # agents that import the client do not have it

UNPACKED_BYTES_MAX: Final = 32 * 1024 * 1024
"""The limit of an unpacked batch: four times the largest batch that Runfold writes. Kafka's own
producers send at most 1 MB a batch, unless they are configured otherwise.
"""

_GZIP_WBITS: Final = 31

_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_BLOCKS_MAX: Final = 64 * 1024


class UnpackError(Exception):
    """A batch cannot be unpacked. `str` of it is the reason."""


def unpack(codec: int, data: memoryview) -> bytes:
    """`data`, unpacked by the codec with this number in Kafka's protocol. Raises `UnpackError`,
    also for more than `UNPACKED_BYTES_MAX`.
    """
    if codec not in _CODECS:
        raise UnpackError(f"there is no codec {codec}")
    name, unpack_with = _CODECS[codec]
    if codec != _GZIP and cramjam is None:
        raise UnpackError(f"it is compressed with {name}: `pip install runfold[server]` to read it")
    try:
        return unpack_with(data)
    except (zlib.error, ValueError, OverflowError) as error:
        raise UnpackError(f"its {name} is corrupt: {error}") from error
    except Exception as error:  # only known when `cramjam` is installed
        if cramjam is None or not isinstance(error, cramjam.DecompressionError):
            raise
        if "failed to write whole buffer" in str(error):
            raise _too_large() from error
        raise UnpackError(f"its {name} is corrupt: {error}") from error


def _unpack_gzip(data: memoryview) -> bytes:
    stream = zlib.decompressobj(wbits=_GZIP_WBITS)
    unpacked = stream.decompress(data, UNPACKED_BYTES_MAX)
    if not stream.eof:
        if len(unpacked) < UNPACKED_BYTES_MAX:
            raise UnpackError("its gzip ends too early")
        raise _too_large()
    if stream.unused_data:
        raise UnpackError("there are bytes after the end of its gzip")
    return unpacked


def _unpack_lz4(data: memoryview) -> bytes:
    return _unpack_into(cramjam.lz4.decompress_into, data)


def _unpack_zstd(data: memoryview) -> bytes:
    return _unpack_into(cramjam.zstd.decompress_into, data)


def _unpack_into(decompress_into: Callable[[Any, Any], int], data: memoryview) -> bytes:
    # The system provides only the pages that are written to, so a small batch costs 30 us.
    with mmap.mmap(-1, UNPACKED_BYTES_MAX) as room:
        return room[: decompress_into(data, room)]


def _unpack_snappy(data: memoryview) -> bytes:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _unpack_block(data, room=UNPACKED_BYTES_MAX)
    blocks: list[bytes] = []
    position, room = _XERIAL_HEADER_BYTES, UNPACKED_BYTES_MAX
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], signed=True)
        block = data[position + 4 : position + 4 + length]
        if length <= 0 or len(block) < length or len(blocks) == _XERIAL_BLOCKS_MAX:
            raise ValueError("wrong length of a block")
        blocks.append(_unpack_block(block, room=room))
        room -= len(blocks[-1])
        position += 4 + length
    return b"".join(blocks)


def _unpack_block(data: memoryview, *, room: int) -> bytes:
    # The block begins with its length.
    if cramjam.snappy.decompress_raw_len(data) > room:
        raise _too_large()
    return bytes(cramjam.snappy.decompress_raw(data))


def _too_large() -> UnpackError:
    return UnpackError(f"it holds more than {UNPACKED_BYTES_MAX:,} bytes")


_GZIP: Final = 1

_CODECS: Final[dict[int, tuple[str, Callable[[memoryview], bytes]]]] = {
    _GZIP: ("gzip", _unpack_gzip),
    2: ("snappy", _unpack_snappy),
    3: ("lz4", _unpack_lz4),
    4: ("zstd", _unpack_zstd),
}
