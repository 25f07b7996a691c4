"""The media type that the first bytes of a medium show. A provider looks at the bytes, and refuses
a request in which they are something else than their media type says:

- "The image was specified using the image/jpeg media type, but the image appears to be a image/png
  image" (Anthropic; anthropics/claude-code issues 12009 and 53228),
- "You uploaded an unsupported image" (OpenAI), "Could not process image" (Anthropic, Bedrock).

Nothing is decoded beyond some bytes at the beginning and at the end.
"""

import base64
import binascii
from typing import Final

_IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The images that all providers read."""

_HEAD_CHARACTERS: Final = 64
_PDF_CHARACTERS: Final = 1_368
"""A PDF may begin anywhere in its first 1,024 bytes."""

_PNG_END: Final = b"IEND\xaeB`\x82"


def true_type(media_type: str, data: str) -> str | None:
    """The media type of the bytes, which may be another one than `media_type`. None if a provider
    cannot read them. Types that are not looked at are returned as they are. `data` is base64.
    """
    if media_type in _IMAGES:
        found = _image_type(_decoded(data[:_HEAD_CHARACTERS]))
        is_cut = found == "image/png" and _PNG_END not in _decoded(data[-_HEAD_CHARACTERS:])
        return None if is_cut else found
    if media_type == "application/pdf":
        return media_type if b"%PDF-" in _decoded(data[:_PDF_CHARACTERS]) else None
    return media_type


def _image_type(head: bytes) -> str | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def _decoded(piece: str) -> bytes:
    """The bytes of a piece of base64, whose length is a multiple of 4."""
    try:
        return base64.b64decode(piece)
    except binascii.Error:
        return b""
