"""Where the lives of runs lie in a partition of the catalog, in about four bytes for each record.

So a second run of the partition is looked up by reading a few records, and a pass over all runs
knows which record of a run is the last one.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

_STRETCH: Final = 64
"""The number of records between two offsets that are kept. All of them are read for one run."""

_HASH_MASK: Final = 0xFFFFFFFF


class LifePlaces:
    """The hashes of the keys of lives, in the order of the partition, and the offset of each 64th.

    Two keys may have one hash, so what lies at a place has to be looked at.
    """

    def __init__(self) -> None:
        self._hashes = array("I")
        self._offsets = array("q")

    def __len__(self) -> int:
        """The number of lives that were added."""
        return len(self._hashes)

    def add(self, key: bytes, offset: int) -> None:
        if len(self._hashes) % _STRETCH == 0:
            self._offsets.append(offset)
        self._hashes.append(hash_of(key))

    def find(self, key: bytes, *, first: int = 0, end: int | None = None) -> list[tuple[int, int | None]]:
        """The offsets between which lives of this key may lie, with the end excluded: None is the
        end of the partition. `first` and `end` limit the lives, by their number.
        """
        found: list[tuple[int, int | None]] = []
        reached = -1
        for number in self._numbers(hash_of(key), first, len(self) if end is None else end):
            stretch = number // _STRETCH
            if stretch > reached:
                reached = stretch
                is_last = stretch + 1 == len(self._offsets)
                found.append((self._offsets[stretch], None if is_last else self._offsets[stretch + 1]))
        return found

    def _numbers(self, hashed: int, first: int, end: int) -> Iterator[int]:
        number = first - 1
        while True:
            try:
                number = self._hashes.index(hashed, number + 1, end)
            except ValueError:
                return
            yield number

    def remaining(self) -> "RemainingLives":
        """How many lives of each key there are, for a pass over them."""
        return RemainingLives(self._hashes)


class RemainingLives:
    """Counts the lives that a pass over a partition has not reached yet, by the hashes of keys."""

    def __init__(self, hashes: Iterable[int]) -> None:
        self._counts = Counter(hashes)

    def take(self, key: bytes) -> bool:
        """Counts one life as reached. Returns whether lives of the same hash follow."""
        hashed = hash_of(key)
        count = self._counts.pop(hashed, 0)
        if count > 1:
            self._counts[hashed] = count - 1
        return count > 1

    def has(self, key: bytes) -> bool:
        """Whether lives of the key's hash were not reached."""
        return hash_of(key) in self._counts

    def __bool__(self) -> bool:
        """Whether any life was not reached."""
        return bool(self._counts)


def hash_of(key: bytes) -> int:
    """The hash of a key in this process."""
    return hash(key) & _HASH_MASK
