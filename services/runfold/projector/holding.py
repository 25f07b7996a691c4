"""What a worker has in hand, noted durably before it is decoded.

A process that is killed for its memory raises no error. The next process finds the note, and takes
each of the noted records alone and with a note of its own. Records that were in hand at two deaths
in a row, the second time alone, are set aside without being decoded.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from runfold.log.fetch_answer import FetchedRecords
from runfold.store.holdings import Held, HoldingStore
from runfold_schemas.codec import Record
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition

LARGE_BYTES = 256 * 1024
"""The size of a batch that is noted. The worst known records need 400 times their size when they
are decoded, so a smaller batch needs 100 MB at the most.
"""

ALONE_BYTES = 64 * 1024
"""The size of a record that is noted and folded alone if its batch is suspected."""

_HEADER_BYTES = 2
"""The bytes of an empty header in a log."""

_NOTED_MAX = 1_000
_TIDY_SECONDS = 1.0


@functools.cache
def _process_id() -> str:
    """The name of this process. It is made at its first use, because a process that is forked after
    the imports needs its own.
    """
    return uuid4().hex


class Holding:
    """The note of this process in one edition."""

    def __init__(
        self, store: HoldingStore, *, dead_seconds: float = 10.0, process: str | None = None
    ) -> None:
        """A process is dead if it has not changed its note for `dead_seconds`."""
        self._store = store
        self._dead_seconds = dead_seconds
        self._process = process or _process_id()
        self._in_hand: dict[object, Sequence[Held]] = {}
        self._writing = asyncio.Lock()
        self._changes = self._written = 0
        self._is_empty = False  # a worker before in this process may have left a note
        self._inherited: dict[Held, set[str]] = {}

    @asynccontextmanager
    async def noted(self, held: Sequence[Held]) -> AsyncIterator[None]:
        """Notes these records for the length of the block. Without records it does nothing."""
        if not held:
            yield
            return
        await self.take(held)
        try:
            yield
        finally:
            self.let_go(held)
        if any(each.deaths for each in held):
            # A kill after the block must not count as a second death.
            await self._write()

    async def take(self, held: Sequence[Held]) -> None:
        """Notes these records until `let_go`."""
        if held:
            self._in_hand[id(held)] = held
            await self._write()

    def let_go(self, held: Sequence[Held]) -> None:
        """The next note is without these records."""
        self._in_hand.pop(id(held), None)

    async def tidy(self) -> None:
        """Endless: clears a note that is out of date, in case no further note follows soon. Renews
        a note of suspected records, which says that this process lives.
        """
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            is_suspected = any(each.deaths for held in self._in_hand.values() for each in held)
            if is_suspected or not (self._in_hand or self._is_empty):
                await self._write()

    async def close(self) -> None:
        """Clears the note, because this process ends without harm."""
        self._in_hand.clear()
        with contextlib.suppress(UnavailableError):
            await self._store.clear(self._process)

    async def inherit(self, concerns: Callable[[Held], bool]) -> dict[Partition, list[Held]]:
        """What other processes had in hand, by partition, as far as it concerns this worker. If
        several of them noted the same records, the highest number of deaths counts.
        """
        inherited: dict[tuple[Partition, int], Held] = {}
        notes = await self._store.of_others(self._process)
        for process, held in notes:
            if concerns(held):
                self._inherited.setdefault(held, set()).add(process)
                other = inherited.get((held.at, held.offset))
                if other is None or other.deaths < held.deaths:
                    inherited[held.at, held.offset] = held
        suspects: dict[Partition, list[Held]] = {}
        for (at, _), held in sorted(inherited.items()):
            suspects.setdefault(at, []).append(held)
        return suspects

    async def is_condemned(self, at: Partition, portion: Sequence[Record], suspects: Iterable[Held]) -> bool:
        """Whether the portion begins with a record that was in hand at two deaths, the second time
        alone. A process that lost its partition may live and still have the record in hand, so this
        waits until the record is let go or the process is certainly dead.
        """
        offset = portion[0].offset
        if not any(held.deaths and held.offset == offset for held in suspects):
            return False
        for held in [held for held in self._inherited if held.at == at and held.offset == offset]:
            for process in sorted(self._inherited[held]) if held.deaths else ():
                if await self._is_dead(process, held):
                    return True
        return False

    async def _is_dead(self, process: str, held: Held) -> bool:
        seen, since = None, time.monotonic()
        while (change := await self._store.last_change(process, held)) is not None:
            if change != seen:
                seen, since = change, time.monotonic()
            if time.monotonic() - since >= self._dead_seconds:
                return True
            await asyncio.sleep(_TIDY_SECONDS)
        return False

    async def settle(self, at: Partition, *, below: int) -> None:
        """Forgets what other processes had in hand of a partition, up to an offset."""
        for held in [held for held in self._inherited if held.at == at and held.offset < below]:
            for process in self._inherited.pop(held):
                await self._store.settle(process, held)

    async def _write(self) -> None:
        self._changes += 1
        change = self._changes
        async with self._writing:
            if self._written >= change:
                return  # the write before included this change
            written = self._changes
            held = [each for held in self._in_hand.values() for each in held][:_NOTED_MAX]
            if held:
                await self._store.note(self._process, held, change=written)
            else:
                await self._store.clear(self._process)
            self._written, self._is_empty = written, not held


def size_of(records: Sequence[Record]) -> int:
    """The bytes of the records, with what each header takes in memory."""
    headers = [header for record in records for header in record.headers]
    return (
        sum([len(record.value or b"") + len(record.key or b"") for record in records])
        + sum([len(name) + len(value or b"") for name, value in headers])
        + _HEADER_BYTES * len(headers)
    )


def large(parts: Sequence[FetchedRecords]) -> list[Held]:
    """The parts of a fetch to be noted: none if the fetch is small, otherwise the largest ones,
    without which the fetch would be small.
    """
    sizes = [size_of(part.records) for part in parts]
    rest = sum(sizes)
    held: list[Held] = []
    if rest <= LARGE_BYTES:
        return held
    for size, part in sorted(zip(sizes, parts, strict=True), key=lambda pair: -pair[0]):
        if rest <= LARGE_BYTES or len(held) == _NOTED_MAX:
            break
        held.append(Held(*part.partition, part.records[0].offset, part.next_offset))
        rest -= size
    return held


def portions(records: Sequence[Record], *, count_max: int) -> list[list[Record]]:
    """The records in portions so small that they need no note, or of one record."""
    result: list[list[Record]] = []
    size = 0
    for record in records:
        length = size_of([record])
        if not result or size + length > ALONE_BYTES or len(result[-1]) >= count_max:
            result.append([])
            size = 0
        result[-1].append(record)
        size += length
    return result


def alone(at: Partition, portion: Sequence[Record], suspects: Iterable[Held]) -> list[Held]:
    """The note for a portion: of a large record with the deaths that it was in hand at."""
    if size_of(portion) < ALONE_BYTES:
        return []
    deaths = 1 if is_suspected(portion[0], suspects) else 0
    return [Held(*at, portion[0].offset, portion[-1].offset + 1, deaths)]


def is_suspected(record: Record, suspects: Iterable[Held]) -> bool:
    """Whether the record was in hand at a death."""
    return any(held.offset <= record.offset < held.next_offset for held in suspects)
