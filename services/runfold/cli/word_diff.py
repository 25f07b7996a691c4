"""The difference between two texts, word by word: words that are kept, removed and added."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final, Literal, NamedTuple

Kind = Literal["kept", "removed", "added"]


class Span(NamedTuple):
    """A piece of the difference."""

    kind: Kind
    text: str


def word_diff(old: str, new: str) -> list[Span]:
    """The difference in reading order; if words were replaced, the removed words come first. The
    kept and removed spans make the old text, and the kept and added spans the new one, exactly.
    """
    before, after = _pieces(old), _pieces(new)
    matcher = SequenceMatcher(None, [piece.word for piece in before], [piece.word for piece in after])
    return list(_spans(matcher, before, after))


def words(text: str) -> list[str]:
    """Splits a text into words, spaces and single punctuation marks. A sign within a word belongs
    to it, as in `don't`, `07:04` and `window-seat`. In a script without spaces each character is a
    word.
    """
    kinds = "".join(map(_kind, text))
    return [text[match.start() : match.end()] for match in _WORD.finditer(kinds)]


def marked(spans: Sequence[Span]) -> str:
    """The difference as a text without color: `[-removed-]{+added+}`."""
    return "".join(_MARKS[span.kind].format(span.text) for span in spans)


def shared_length(first: str, second: str) -> int:
    """The number of characters that both texts begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


_MARKS: Final[dict[Kind, str]] = {"kept": "{}", "removed": "[-{}-]", "added": "{{+{}+}}"}

_WORD: Final = re.compile("[wd][wdm]*(?:(?:j|(?<=d)n(?=d))[wd][wdm]*)*|s+|.m*")
"""A word, written in the letters that `_kind` returns: word characters and digits, and joints
between them.
"""

_IDEOGRAPHS: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def _kind(char: str) -> str:
    """A letter for the role of the character: `w`ord character, `d`igit, `m`ark on the character
    before, `j`oint, joint of `n`umbers, `s`pace or `p`unctuation.
    """
    if char.isspace():
        return "s"
    if char in "'\u2019-_":
        return "j"
    if char in ".,:":
        return "n"
    if _IDEOGRAPHS.match(char):
        return "p"
    match unicodedata.category(char)[0]:
        case "M":
            return "m"
        case "N":
            return "d"
        case "L":
            return "w"
        case _:
            return "p"


class _Piece(NamedTuple):
    """A word with the spaces after it. Only words are compared: all texts share spaces."""

    word: str
    spaces: str


def _pieces(text: str) -> list[_Piece]:
    """The text's words. Spaces at the beginning of the text follow an empty word."""
    pieces: list[_Piece] = []
    for part in words(text):
        if not part.isspace():
            pieces.append(_Piece(part, ""))
        elif pieces:
            pieces[-1] = pieces[-1]._replace(spaces=part)
        else:
            pieces.append(_Piece("", part))
    return pieces


def _spans(
    matcher: SequenceMatcher[str], before: Sequence[_Piece], after: Sequence[_Piece]
) -> Iterator[Span]:
    texts: dict[Kind, str] = {"kept": "", "removed": "", "added": ""}
    for kind, text in _steps(matcher, before, after):
        if not text:
            continue
        if (kind == "kept") != bool(texts["kept"]):
            yield from _take_spans(texts)
        texts[kind] += text
    yield from _take_spans(texts)


def _take_spans(texts: dict[Kind, str]) -> Iterator[Span]:
    """The collected texts as spans; removes them from `texts`."""
    for kind, text in texts.items():
        if text:
            yield Span(kind, text)
            texts[kind] = ""


def _steps(
    matcher: SequenceMatcher[str], before: Sequence[_Piece], after: Sequence[_Piece]
) -> Iterator[tuple[Kind, str]]:
    """The difference piece by piece. The spaces after a kept word may change."""
    for kind, begin, end, new_begin, new_end in matcher.get_opcodes():
        old, new = before[begin:end], after[new_begin:new_end]
        if kind == "equal":
            for was, now in zip(old, new, strict=True):
                yield "kept", now.word
                yield from _replaced(was.spaces, now.spaces)
        else:
            yield from _replaced("".join(map("".join, old)), "".join(map("".join, new)))


def _replaced(old: str, new: str) -> Iterator[tuple[Kind, str]]:
    """Replaces a text by another one. The spaces that both end with are kept: only the words before
    them changed.
    """
    spaces = shared_length(old[len(old.rstrip()) :][::-1], new[len(new.rstrip()) :][::-1])
    yield "removed", old[: len(old) - spaces]
    yield "added", new[: len(new) - spaces]
    yield "kept", old[len(old) - spaces :]
