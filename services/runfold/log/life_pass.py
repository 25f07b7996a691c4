"""A pass over the lives of one partition of the catalog, which holds only those of which a further
record follows.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import NamedTuple

from runfold.log.catalog import is_life
from runfold.log.leaders import Leaders
from runfold.log.life_places import RemainingLives, hash_of
from runfold.log.settings import LogSettings
from runfold.log.verdicts import Verdicts, read_settled
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition


class RunLives(NamedTuple):
    """The records under the key of one run's life: their values, in order."""

    key: bytes
    values: list[bytes]


async def runs_of(
    settings: LogSettings,
    at: Partition,
    remaining: RemainingLives,
    *,
    end: int,
    verdicts: Verdicts,
    leaders: Leaders,
) -> AsyncGenerator[RunLives, None]:
    """The lives of each run before `end`, which are those of `remaining`, in the order of each
    run's last record. Raises `UnavailableError`.
    """
    held = HeldLives(remaining)
    async with aclosing(read_settled(settings, at, verdicts, end=end, leaders=leaders)) as batches:
        async for records in batches:
            for key, value in _lives(records):
                for run in held.take(key, value):
                    yield run
    if remaining:
        # Compaction has removed records since they were counted, because later ones came.
        later = read_settled(settings, at, verdicts, first_offset=end, leaders=leaders)
        async with aclosing(later) as batches:
            async for records in batches:
                for key, value in _lives(records):
                    held.take_later(key, value)
    for run in held.rest():
        yield run


def _lives(records: Iterable[Record]) -> Iterator[tuple[bytes, bytes]]:
    return (
        (record.key, record.value)
        for record in records
        if is_life(record) and record.key is not None and record.value is not None
    )


class HeldLives:
    """The records of runs of which further ones follow. They are held undecoded."""

    def __init__(self, remaining: RemainingLives) -> None:
        self._remaining = remaining
        self._runs: dict[int, list[RunLives]] = {}
        """By the hashes of keys. Two keys may have one hash."""

    def take(self, key: bytes, value: bytes) -> Iterable[RunLives]:
        """Takes a record. Returns the runs of which no further record follows."""
        if self._remaining.take(key):
            self._hold(key, value)
            return ()
        if hash_of(key) not in self._runs:
            return (RunLives(key, [value]),)
        self._hold(key, value)
        return self._runs.pop(hash_of(key))

    def take_later(self, key: bytes, value: bytes) -> None:
        """Takes a record behind the end, if the run was not complete there."""
        if self._remaining.has(key):
            self._hold(key, value)

    def rest(self) -> Iterator[RunLives]:
        """The runs that were not returned yet."""
        for runs in self._runs.values():
            yield from runs

    def _hold(self, key: bytes, value: bytes) -> None:
        runs = self._runs.setdefault(hash_of(key), [])
        run = next((run for run in runs if run.key == key), None)
        if run is None:
            runs.append(RunLives(key, [value]))
        else:
            run.values.append(value)
