"""Compares facts: which are equal, and which say the same in other words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from runfold.embeddings.nearest import DUPLICATE_DISTANCE
from runfold.generation.options import NewFact
from runfold_schemas.memories import MemoryTopic

_NUMBER: Final = re.compile(r"\d+(?:[.,:/-]\d+)*")
_APOSTROPHE: Final = "['\u2019]"
_WORD: Final = re.compile(rf"\w+(?:{_APOSTROPHE}\w+)?")

_NEGATING: Final = """
    no not never none nobody nothing nor neither without cannot cant couldnt wont wouldnt shouldnt dont doesnt
    didnt isnt arent wasnt werent hasnt havent hadnt stopped longer former formerly anymore
    nicht kein keine keinen nie niemals ohne ne pas jamais sans nunca nada sin non mai senza não sem
"""
_NEGATIONS: Final = frozenset(_NEGATING.split())
"""Words that negate a fact, in the languages of the facts that we have seen so far."""

_LIGHT: Final = frozenset({"a", "an", "the", "this", "user", "also", "please", "really", "very"})

_SAME_WORDS_DISTANCE: Final = 0.3
"""The largest distance of facts with the same words. With the local model, facts that differ only
in an article or a plural have a distance of up to 0.25; with another order of words, the fact may
be another one.
"""


class DistinctFact(NamedTuple):
    """A text, and all facts that have it."""

    text: str
    sources: tuple[NewFact, ...]


def distinct(facts: Iterable[NewFact]) -> list[DistinctFact]:
    """The facts in their order, equal ones as one."""
    by_text: dict[str, list[NewFact]] = {}
    for fact in facts:
        by_text.setdefault(normalised(fact.text), []).append(fact)
    return [DistinctFact(equal[0].text, tuple(equal)) for equal in by_text.values()]


def topics_of(facts: Sequence[NewFact], *, before: Sequence[MemoryTopic] = ()) -> tuple[MemoryTopic, ...]:
    """The topics of a memory that follows from the facts: those that it had before, and theirs."""
    topics = [*before]
    for topic in (topic for fact in facts for topic in fact.topics):
        if topic not in topics:
            topics.append(topic)
    return tuple(topics)


def normalised(text: str) -> str:
    """A text without differences of case, of spaces, and of the full stop at its end."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".! ")


def are_same_fact(first: str, second: str, *, distance: float) -> bool:
    """Whether two texts at this distance are the same fact in other words.

    The test is strict, because a missed duplicate is only a repetition, but a false one loses a
    fact. Numbers, names and negations have to be the same, since vectors hardly differ by them. If
    the texts are not very near, all words with a meaning have to be the same too.
    """
    if not _differ_only_in_wording(first, second):
        return False
    return distance <= DUPLICATE_DISTANCE or (
        distance <= _SAME_WORDS_DISTANCE and _meaningful_words(first) == _meaningful_words(second)
    )


def _differ_only_in_wording(first: str, second: str) -> bool:
    """Whether the texts have the same numbers, negations and names, and the same words that are not
    in the model's vocabulary.
    """
    return (
        Counter(_NUMBER.findall(first)) == Counter(_NUMBER.findall(second))
        and _negations(first) == _negations(second)
        and _foreign_words(first) == _foreign_words(second)
        and _names(first) <= _words(second)
        and _names(second) <= _words(first)
    )


def _meaningful_words(text: str) -> Counter[str]:
    """The words in the singular, without articles and the like."""
    return Counter(word.removesuffix("s") for word in _all_words(text) if word not in _LIGHT)


def _all_words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _words(text: str) -> set[str]:
    return set(_all_words(text))


def _negations(text: str) -> Counter[str]:
    words = (re.sub(_APOSTROPHE, "", word).casefold() for word in _WORD.findall(text))
    return Counter(word for word in words if word in _NEGATIONS)


def _foreign_words(text: str) -> Counter[str]:
    """Words with characters other than ASCII."""
    return Counter(word.casefold() for word in text.split() if not word.isascii())


def _names(text: str) -> set[str]:
    """Words with a capital letter that are not at the beginning of a sentence."""
    words = re.findall(r"(?<![.!?])\s+(\w+)", " " + text)
    return {word.casefold() for word in words[1:] if word[:1].isupper()}
