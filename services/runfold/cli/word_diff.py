"""What changed between two texts, word by word: what is kept, what was removed, and what was
added.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final, Literal, NamedTuple

Kind = Literal["kept", "removed", "added"]


class Span(NamedTuple):
    """A piece of a difference."""

    kind: Kind
    text: str


def word_diff(old: str, new: str) -> list[Span]:
    """The difference in the order of reading; where words were replaced, the removed ones come
    first. What is kept and removed is the old text, what is kept and added the new one, to the last
    space.
    """
    before, after = _pieces(old), _pieces(new)
    matcher = SequenceMatcher(None, [one.word for one in before], [one.word for one in after])
    return list(_spans(matcher, before, after))


def words(text: str) -> list[str]:
    """The text in pieces: words, spaces and each mark of punctuation by itself. What stands within
    a word, as in `don't`, `07:04` and `window-seat`, is a part of it; a script without spaces has a
    character for a word.
    """
    kinds = "".join(map(_kind, text))
    return [text[match.start() : match.end()] for match in _WORD.finditer(kinds)]


def marked(spans: Sequence[Span]) -> str:
    """The difference where there is no color to show it: `[-removed-]{+added+}`."""
    return "".join(_MARKS[span.kind].format(span.text) for span in spans)


def alike(one: str, other: str) -> int:
    """How many characters both texts begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


_MARKS: Final[dict[Kind, str]] = {"kept": "{}", "removed": "[-{}-]", "added": "{{+{}+}}"}

_WORD: Final = re.compile("[wd][wdm]*(?:(?:j|(?<=d)n(?=d))[wd][wdm]*)*|s+|.m*")
"""A word in the letters that `_kind` gives: of word characters and digits, joined by what may stand
between them.
"""

_IDEOGRAPHS: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def _kind(char: str) -> str:
    """A letter for what the character is in a word: a part of it, `d`igit, `m`ark on what is
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
    """A word with the spaces after it. Texts are not alike for the spaces that they have in common,
    so words are compared.
    """

    word: str
    spaces: str


def _pieces(text: str) -> list[_Piece]:
    """The text's words; what it begins with, if these are spaces, follows an empty one."""
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
            yield from _told(texts)
        texts[kind] += text
    yield from _told(texts)


def _told(texts: dict[Kind, str]) -> Iterator[Span]:
    """What has come together since something else was told."""
    for kind, text in texts.items():
        if text:
            yield Span(kind, text)
            texts[kind] = ""


def _steps(
    matcher: SequenceMatcher[str], before: Sequence[_Piece], after: Sequence[_Piece]
) -> Iterator[tuple[Kind, str]]:
    """The difference piece by piece. A word that is kept need not keep its spaces."""
    for kind, begin, end, new_begin, new_end in matcher.get_opcodes():
        old, new = before[begin:end], after[new_begin:new_end]
        if kind == "equal":
            for was, now in zip(old, new, strict=True):
                yield "kept", now.word
                yield from _replaced(was.spaces, now.spaces)
        else:
            yield from _replaced("".join(map("".join, old)), "".join(map("".join, new)))


def _replaced(old: str, new: str) -> Iterator[tuple[Kind, str]]:
    """One text for another. The spaces that both end with are kept: what changed are the words
    before.
    """
    spaces = alike(old[len(old.rstrip()) :][::-1], new[len(new.rstrip()) :][::-1])
    yield "removed", old[: len(old) - spaces]
    yield "added", new[: len(new) - spaces]
    yield "kept", old[len(old) - spaces :]
