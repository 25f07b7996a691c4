"""Texts from outside without characters that act on a terminal instead of being shown by it.

An agent's tool may return any text. Control characters can move the cursor, rewrite lines that were
printed before, change the window's title or the clipboard. Marks of writing direction can show a
text in another order than it has.
"""

import re
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators and marks of direction
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"  # annotations, surrogates, invisible tags
)
_BREAKS: Final = re.compile("[\t-\r\x85\u2028\u2029]")
_ENDS_OF_LINES: Final = re.compile(b"[\n\r]|\xc2\x85|\xe2\x80[\xa8\xa9]")

QUOTED_MAX: Final = 100
"""An error quotes about this many characters of an input."""

_LONG_WORD: Final = re.compile(rf"(\S{{{QUOTED_MAX}}})\S{{100,}}")


def printable(text: str) -> str:
    """The text with such characters written as `\\x1b` or `\\u202e`. Line feeds and tabs stay."""
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text)


def on_one_line(text: str) -> str:
    """The text as `printable` returns it, with spaces for line breaks and tabs, because it is one
    column of a line.
    """
    return printable(_BREAKS.sub(" ", text))


def shortened(text: str) -> str:
    """The text without most of the long words that it quotes from an input."""
    return _LONG_WORD.sub(r"\1…", text)


def printable_json(text: str) -> str:
    """JSON text with such characters as JSON's own escapes, so that its value stays the same.
    Carriage returns, which may stand between two tokens, become spaces.
    """
    return _UNSAFE.sub(lambda match: _json_escaped(match[0]), text.replace("\r", " "))


def json_line(document: bytes) -> bytes:
    """A JSON document as one line for every reader of lines: many take U+0085, U+2028 and U+2029
    for ends. The value stays the same: within strings they are escaped, and line breaks, which may
    stand between two tokens, become spaces.
    """
    if _ENDS_OF_LINES.search(document) is None:
        return document
    return _ENDS_OF_LINES.sub(_without_end, document)


def _without_end(match: re.Match[bytes]) -> bytes:
    return b" " if match[0] in b"\n\r" else _json_escaped(match[0].decode()).encode()


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _json_escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
