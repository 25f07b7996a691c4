"""The outline of JSON text: how many values it has, and how deep they are nested.

The outline is read from the bytes without decoding them, 1 ms for 1 MiB. So a text whose decoded
form would take too much memory or time is refused before it is decoded.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

DEPTH_MAX: Final = 160
"""How deep the arrays and objects of an event may be nested, with the event itself as the first.
pydantic reads 200 levels, and readers put an event into lists and documents of their own.
"""

VALUES_MAX: Final = 200_000
"""How many values a JSON text may have that is decoded in one step, as every event is, counted as
`Outline.values` does: 40 MB and 60 ms at the worst.
"""

_VALUES_PER_BYTE_MAX: Final = 2 / 3
"""No JSON has more: a list of empty lists, with a comma behind each."""

CHUNK_BYTES: Final = 256 * 1024

_MARKS: Final = b'",:[]{}'
_NO_MARKS: Final = bytes(set(range(256)) - set(_MARKS))
_STEPS: Final = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]


class Outline:
    """The outline of a text that comes in chunks. Of broken JSON, the numbers mean nothing."""

    def __init__(self) -> None:
        self.values = 0
        """The number of values and keys, where arrays and objects count twice, or one less."""
        self.depth_max = 0
        """The deepest nesting. It may be too large as long as it is not above `DEPTH_MAX`."""
        self._depth = 0
        self._in_string = 0
        self._escape = b""

    def feed(self, chunk: bytes) -> None:
        outside = self._outside_of_strings(chunk)
        opened = outside.count(b"[") + outside.count(b"{")
        self.values += opened + outside.count(b",") + outside.count(b":")
        highest = self._depth + opened
        if highest > DEPTH_MAX:
            steps = map(_STEPS.__getitem__, outside.translate(None, b",:"))
            highest = max(accumulate(steps, initial=self._depth))
        self.depth_max = max(self.depth_max, highest)
        self._depth += opened - outside.count(b"]") - outside.count(b"}")

    def _outside_of_strings(self, chunk: bytes) -> bytes:
        """The marks of the chunk that are not in strings."""
        chunk = self._escape + chunk
        ends_in_escape = (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 == 1
        chunk, self._escape = (chunk[:-1], b"\\") if ends_in_escape else (chunk, b"")
        # Two quotes with nothing of interest between them change nothing for all that follows.
        marks = without_escapes(chunk).translate(None, _NO_MARKS).replace(b'""', b"")
        parts = marks.split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string = (self._in_string + len(parts) - 1) % 2
        return outside


def without_escapes(text: bytes, *, by: bytes = b"") -> bytes:
    r"""The text with `by` in the place of `\\` and `\"`, so that every quote that is left begins or
    ends a string.
    """
    return text.replace(b"\\\\", by).replace(b'\\"', by) if b"\\" in text else text


def chunks_of(text: bytes) -> Iterator[bytes]:
    """The text in chunks of a size that does not hold up an event loop."""
    if len(text) <= CHUNK_BYTES:
        yield text
        return
    for begin in range(0, len(text), CHUNK_BYTES):
        yield text[begin : begin + CHUNK_BYTES]


def is_too_deep(text: bytes) -> bool:
    """Whether the JSON text is nested deeper than `DEPTH_MAX`."""
    # Nearly every event has fewer brackets than that, and counting them takes a microsecond.
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return False
    return any(outline.depth_max > DEPTH_MAX for outline in _growing_outline(text))


def has_too_many_values(text: bytes) -> bool:
    """Whether the JSON text has more than `VALUES_MAX` values."""
    if len(text) * _VALUES_PER_BYTE_MAX <= VALUES_MAX:
        return False
    return any(outline.values > VALUES_MAX for outline in _growing_outline(text))


def _growing_outline(text: bytes) -> Iterator[Outline]:
    """The outline of more and more of the text. Its numbers only grow."""
    outline = Outline()
    for chunk in chunks_of(text):
        outline.feed(chunk)
        yield outline
