"""Facts before they are memories, and when two of them say the same."""

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
    no not never none nobody nothing nor neither without cannot cant couldnt wont wouldnt shouldnt dont doesnt didnt isnt
    arent wasnt werent hasnt havent hadnt stopped longer former formerly anymore
    nicht kein keine keinen nie niemals ohne ne pas jamais sans nunca nada sin non mai senza não sem
"""
_NEGATIONS: Final = frozenset(_NEGATING.split())
"""Words that turn a fact into another one, in the languages whose facts we have seen so far."""

_LIGHT: Final = frozenset({"a", "an", "the", "this", "user", "also", "please", "really", "very"})

_SAME_WORDS_DISTANCE: Final = 0.3
"""Where only an article or a plural differs the local model sees up to 0.25; another order of the
words may be another fact.
"""


class Learned(NamedTuple):
    """One thing that was learned, however often it was said."""

    text: str
    sources: tuple[NewFact, ...]


def distinct(facts: Iterable[NewFact]) -> list[Learned]:
    """The facts without those that repeat another one letter by letter, in their order."""
    by_text: dict[str, list[NewFact]] = {}
    for fact in facts:
        by_text.setdefault(normalised(fact.text), []).append(fact)
    return [Learned(same[0].text, tuple(same)) for same in by_text.values()]


def topics_of(facts: Sequence[NewFact], *, known: Sequence[MemoryTopic] = ()) -> tuple[MemoryTopic, ...]:
    """All their topics behind the `known` ones, each once."""
    topics = [*known]
    for topic in (topic for fact in facts for topic in fact.topics):
        if topic not in topics:
            topics.append(topic)
    return tuple(topics)


def normalised(text: str) -> str:
    """The same for texts that differ in their case, their spaces and the full stop at their end."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".! ")


def are_same_fact(one: str, other: str, *, distance: float) -> bool:
    """Whether two texts at this distance are one fact in other words. A missed duplicate is only a
    repetition, a false one loses a fact: so both are near to each other, and those words are the
    same that vectors tell little of; and if they are not very near, then all words are that carry
    something.
    """
    if not _may_be_one(one, other):
        return False
    return distance <= DUPLICATE_DISTANCE or (
        distance <= _SAME_WORDS_DISTANCE and _carrying(one) == _carrying(other)
    )


def _may_be_one(one: str, other: str) -> bool:
    """Vectors tell little of numbers, of names and of negations, and nothing of what is not in
    their vocabulary.
    """
    return (
        Counter(_NUMBER.findall(one)) == Counter(_NUMBER.findall(other))
        and _negations(one) == _negations(other)
        and _foreign(one) == _foreign(other)
        and _names(one) <= _words(other)
        and _names(other) <= _words(one)
    )


def _carrying(text: str) -> Counter[str]:
    """The words without those that carry little, in the singular."""
    return Counter(word.removesuffix("s") for word in _all_words(text) if word not in _LIGHT)


def _all_words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _words(text: str) -> set[str]:
    return set(_all_words(text))


def _negations(text: str) -> Counter[str]:
    words = (re.sub(_APOSTROPHE, "", word).casefold() for word in _WORD.findall(text))
    return Counter(word for word in words if word in _NEGATIONS)


def _foreign(text: str) -> Counter[str]:
    """Words and signs that are not plain letters."""
    return Counter(word.casefold() for word in text.split() if not word.isascii())


def _names(text: str) -> set[str]:
    """Words with a capital letter that none has from the beginning of a sentence."""
    words = re.findall(r"(?<![.!?])\s+(\w+)", " " + text)
    return {word.casefold() for word in words[1:] if word[:1].isupper()}
