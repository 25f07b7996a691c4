"""Compares facts, of which a text is all that is known.

A missed duplicate is only a repetition, and a false one loses a fact. Neither the words of two
facts nor the distance of their vectors tell who lent money to whom, -5 from 5, or C from C++. So
facts are the same only if their texts are equal.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from runfold.generation.options import NewFact
from runfold_schemas.memories import MemoryTopic

_CLOSING: Final = (".", "!", "。")


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
    """A text without differences of case, of spaces, of Unicode's forms, and of one mark that
    closes a sentence.
    """
    words = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return words[:-1].rstrip() if words.endswith(_CLOSING) else words
