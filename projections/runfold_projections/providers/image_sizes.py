"""The width and the height that the header of an image says. Nothing is decoded beyond the header.

The formats: RFC 2083 (PNG), ITU-T T.81 (JPEG), the GIF89a specification, RFC 9649 (WebP).
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

_HEAD_BYTES: Final = 30
_SEGMENTS_MAX: Final = 256
"""A JPEG has its size behind segments with metadata, of at most 64 KiB each."""

# The markers of a frame: C0 to CF, without three that have other meanings.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class Size(NamedTuple):
    """In pixels."""

    width: int
    height: int


def image_size(media_type: str, data: str) -> Size | None:
    """The size of a PNG, JPEG, GIF or WebP, which `data` is as base64. None for anything else, and
    if the header does not say it.
    """
    reader = _READERS.get(media_type)
    return reader(data) if reader is not None else None


def _png(data: str) -> Size | None:
    head = _bytes(data, 0, 24)
    if head[12:16] != b"IHDR" or len(head) < 24:
        return None
    return Size(int.from_bytes(head[16:20]), int.from_bytes(head[20:24]))


def _gif(data: str) -> Size | None:
    head = _bytes(data, 0, 10)
    if len(head) < 10:
        return None
    return Size(int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little"))


def _webp(data: str) -> Size | None:
    head = _bytes(data, 0, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    match head[12:16]:
        case b"VP8X":
            width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L":
            bits = int.from_bytes(head[21:25], "little")
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = (int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (26, 28))
        case _:
            return None
    return Size(width, height)


def _jpeg(data: str) -> Size | None:
    position = 2
    for _ in range(_SEGMENTS_MAX):
        head = _bytes(data, position, 9)
        if len(head) < 9 or head[0] != 0xFF:
            return None
        if head[1] == 0xFF:  # segments may be padded
            position += 1
        elif head[1] in _FRAMES:
            return Size(int.from_bytes(head[7:9]), int.from_bytes(head[5:7]))
        else:
            position += 2 + int.from_bytes(head[2:4])
    return None


_READERS: Final[Mapping[str, Callable[[str], Size | None]]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
}


def _bytes(data: str, position: int, count: int) -> bytes:
    """Some bytes of what is `data` as base64, fewer at its end."""
    first, skipped = position // 3 * 4, position % 3
    last = first + (skipped + count + 2) // 3 * 4
    try:
        return base64.b64decode(data[first:last])[skipped : skipped + count]
    except binascii.Error:
        return b""
