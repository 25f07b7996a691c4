"""Media types: one spelling of each, and which of them are text."""

from typing import Final, TypeVar

from runfold_schemas.messages import MediaPart, Part, ToolResultPart

MediaPartT = TypeVar("MediaPartT", bound=MediaPart)

_SPELLINGS: Final = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "application/x-pdf": "application/pdf",
    "text/x-markdown": "text/markdown",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "audio/x-pn-wav": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/mpeg3": "audio/mpeg",
    "audio/x-mp3": "audio/mpeg",
    "audio/x-mpeg": "audio/mpeg",
    "audio/x-m4a": "audio/mp4",
    "audio/x-flac": "audio/flac",
}
"""The spellings that programs use, and the registered ones, which alone every provider accepts."""

_RAW_SOUNDS: Final = frozenset({"audio/l16", "audio/pcm"})
"""Sounds whose rate only a parameter says."""

_TEXTS: Final = frozenset(
    f"application/{name}"
    for name in (
        *("javascript", "json", "json5", "ld+json", "sql", "toml", "typescript", "x-httpd-php", "x-ndjson"),
        *("x-python", "x-sh", "x-tex", "x-yaml", "xhtml+xml", "xml", "yaml"),
    )
)


def respelled(part: Part) -> Part:
    """The part with the registered spelling of its media types. Parameters stay on texts and on raw
    sounds, because providers refuse them elsewhere.
    """
    if isinstance(part, MediaPart):
        return _respelled(part)
    if isinstance(part, ToolResultPart) and part.attachments:
        return part.model_copy(update={"attachments": tuple(map(_respelled, part.attachments))})
    return part


def base_type(media_type: str) -> str:
    """The media type without parameters such as the charset."""
    return media_type.partition(";")[0].strip().lower()


def is_text(media_type: str) -> bool:
    """Whether bytes of this type are text that a model can read."""
    base = base_type(media_type)
    return base.startswith("text/") or base in _TEXTS or base.endswith(("+json", "+xml", "+yaml"))


def _respelled(part: MediaPartT) -> MediaPartT:
    _, separator, parameters = part.media_type.lower().partition(";")
    base = base_type(part.media_type)
    spelling = _SPELLINGS.get(base, base)
    if base.startswith("text/") or base in _RAW_SOUNDS:
        spelling += separator + parameters
    return part if spelling == part.media_type else part.model_copy(update={"media_type": spelling})
