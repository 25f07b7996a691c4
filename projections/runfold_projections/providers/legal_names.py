"""Ids of calls and names of tools that a provider accepts: with the characters that it allows, not
too long, and each once.
"""

import hashlib
import re
from collections.abc import Callable


def legal(name: str, illegal: re.Pattern[str] | None, length_max: int) -> str:
    """The name with `_` for each character that is not allowed, and not too long."""
    return (illegal.sub("_", name) if illegal else name)[:length_max]


def is_exact(name: str, length: int) -> bool:
    """Whether the name has exactly so many letters and digits."""
    return len(name) == length and name.isascii() and name.isalnum()


def numbered(name: str, number: int, length_max: int) -> str:
    """The name with a number as suffix."""
    suffix = f"-{number}"
    return name[: length_max - len(suffix)] + suffix


def exact_id(name: str, number: int, length: int) -> str:
    """Letters and digits that stand for the name and the number."""
    return hashlib.sha256(f"{number} {name}".encode()).hexdigest()[:length]


class UniqueNames:
    """Names that must be unique. A name that is used already is replaced by a variant of it with a
    number.

    The last number of each name is kept, so that a conversation with equal ids is numbered in
    linear time.
    """

    def __init__(self, length_max: int, variant: Callable[[str, int, int], str] = numbered) -> None:
        self._length_max = length_max
        self._variant = variant
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}

    def claim(self, name: str) -> str:
        """`name`, or a variant of it that is not used yet. The result counts as used."""
        variant = name
        while variant in self._used:
            number = self._numbers[name] = self._numbers.get(name, 1) + 1
            variant = self._variant(name, number, self._length_max)
        self._used.add(variant)
        return variant
