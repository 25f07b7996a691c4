"""The folds of the shared topics in a worker. A worker folds the partitions with the same numbers
as its partitions of the catalog.

    fetched records --> dead letters --> the topic's fold, and seen events --> heads, position

A crash between two steps repeats work and loses nothing, and so does a second owner of the
partition, because each write replaces only older data. A position means: folded up to here, except
for the keys in quarantine.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from runfold.log.catalog import partition_of
from runfold.log.fetch_answer import FetchedRecords
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.log.shared import Keyed, decided_event, deciding, partitions_of
from runfold.log.tail import Tail
from runfold.projector.holding import alone, is_suspected, large, portions
from runfold.projector.key_folds import KeyFolds
from runfold.projector.quarantine import DIED, defect, reason_of
from runfold.projector.safeguards import Safeguards
from runfold.projector.stuck import Steps
from runfold.projector.writer import Writer
from runfold.store.holdings import Held
from runfold.store.quarantine import Quarantined, key_id_of
from runfold.store.shared_positions import SharedPositionStore
from runfold_projections.admission import Admitted
from runfold_schemas.codec import Record
from runfold_schemas.errors import UndecodableError
from runfold_schemas.topics import Partition, Topics

_PORTION_MAX = 500

_NEAR = 1_000
"""The number of records that a key may be behind its partition when the partition waits for it."""


REFOLDED: Final = "it is folded anew from its first event"
"""The reason of a key that is in quarantine only while it is folded anew."""


class SharedTopics:
    """Follows the shared topics. In a rebuild, `previous` is the store of the edition before this
    one. Its owners have already written dead letters for the records up to its positions.
    """

    def __init__(
        self,
        settings: LogSettings,
        tail: Tail,
        writer: Writer,
        positions: SharedPositionStore,
        folds: KeyFolds,
        *,
        safeguards: Safeguards,
        previous: SharedPositionStore | None = None,
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._tail = tail
        self._writer = writer
        self._positions = positions
        self._folds = folds
        self._quarantine = safeguards.quarantine
        self._skips = safeguards.skips
        self._holding = safeguards.holding
        self._previous = previous
        self._reached: dict[Partition, int] = {}
        self._stale: set[str] = set()
        """The keys in quarantine that are folded anew, and whose old documents are still stored."""
        self._suspects: Mapping[Partition, Sequence[Held]] = {}
        self._locks: defaultdict[Partition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.taking = Steps()

    @property
    def tail(self) -> Tail:
        return self._tail

    @property
    def reached(self) -> Mapping[Partition, int]:
        """The partitions that it follows, each with the offset up to which everything is stored."""
        return self._reached

    async def follow(self, partitions: Collection[int], suspects: Mapping[Partition, Sequence[Held]]) -> None:
        """Follows the partitions with these numbers, and no other. The records in `suspects` are
        taken alone.
        """
        self._suspects = suspects
        positions = await self._positions.positions()
        for topic in self._folds.topics:
            for at in partitions_of(self._topics, topic):
                if at.partition not in partitions:
                    self._tail.unfollow(at)
                    self._reached.pop(at, None)
                elif at not in self._tail:
                    self._reached[at] = positions.get(at, 0)
                    self._tail.follow(at, self._reached[at])
                    await self._holding.settle(at, below=self._reached[at])

    async def work(self) -> None:
        """Endless. While the records of one fetch are written, the next fetch is under way."""
        async with asyncio.TaskGroup() as tasks:
            taking: asyncio.Task[None] | None = None
            async for fetch in self._tail.fetches():
                if fetch:
                    if taking is not None:
                        await taking
                    taking = tasks.create_task(self._take_all(fetch))

    async def retry(self, entry: Quarantined) -> None:
        """Folds the events of a key in quarantine, from the first one on that was not folded. If
        that succeeds, the key is free again.
        """
        position, end = entry.offset, self._reached.get(entry.at)
        skipped = [offsets for offsets in self._skips.of(entry.at) if entry.offset in offsets]
        if skipped or entry.reason == REFOLDED:
            # A part of the skipped event may be stored.
            self._stale.add(entry.name)
            position = 0
        if skipped and entry.reason != DIED:  # a record that killed the projector is never decoded
            await self._forget_skipped(entry.name, entry.at, skipped)
        while end is not None and end - position > _NEAR:
            if not await self._fold_key(entry, position, end):
                return
            position, end = end, self._reached.get(entry.at)
        async with self._locks[entry.at]:  # no further event of the key is held back meanwhile
            end = self._reached.get(entry.at)
            if end is not None and await self._fold_key(entry, position, end):
                await self._remove_stale(entry)
                await self._quarantine.release([entry.id], "its events were folded")

    async def unfold_skipped(self, at: Partition, offset: int) -> None:
        """Folds the keys anew that have events at the skipped offsets, if these were folded."""
        for offsets in self._skips.of(at):
            async with self._locks[at]:
                is_folded = offset in offsets and self._reached.get(at, 0) > offset
            if is_folded:
                async for records in self._read(at, offsets.start, offsets.stop):
                    for key in {_key_text(self._topics, record, at) for record in records} - {None}:
                        if key is not None:
                            await self._refold(key, at, offset, "its record was skipped after it was folded")

    async def refold(self, key: str) -> None:
        """Folds a key anew from its first event, because what is stored under it is wrong. A key in
        quarantine is left alone.
        """
        await self._refold(key, deciding(self._topics, key), 0, REFOLDED)

    async def _refold(self, key: str, at: Partition, offset: int, reason: str) -> None:
        # A fetch under way has chosen its free keys, and would write onto what is folded anew.
        async with self._locks[at]:
            if (entry := self._quarantine.get(key_id_of(key))) is None:
                await self._quarantine.set_aside_key(key, at, offset, reason)
                entry = self._quarantine.get(key_id_of(key))
            elif entry.reason != REFOLDED:
                return
        assert entry is not None
        await self.retry(entry)

    async def _remove_stale(self, entry: Quarantined) -> None:
        """Removes what is stored under a key that is folded anew, directly before the first write.
        Reads of the key find nothing in between.
        """
        if entry.name in self._stale:
            await self._folds.reset(entry.at, entry.name)
            self._stale.discard(entry.name)

    async def _forget_skipped(self, key: str, at: Partition, skipped: Iterable[range]) -> None:
        """Forgets that the events of a key at these offsets were seen, because an operator skipped
        them.
        """
        for offsets in skipped:
            async with aclosing(self._read(at, offsets.start, offsets.stop)) as fetches:
                async for records in fetches:
                    for record in _with_key(records, key):
                        event_id = None
                        with contextlib.suppress(Exception):  # an event that cannot be decoded was not seen
                            event_id = decided_event(self._topics, record, at).event.event_id
                        if event_id is not None:
                            await self._positions.forget(key, event_id, offset=record.offset)

    async def _take_all(self, parts: Sequence[FetchedRecords]) -> None:
        """Folds and writes the records of a fetch. Partitions are independent of each other."""
        with self.taking.step():
            async with self._holding.noted(large(parts)), asyncio.TaskGroup() as tasks:
                for part in parts:
                    tasks.create_task(self._take(part))

    async def _take(self, part: FetchedRecords) -> None:
        at = part.partition
        suspects = self._suspects.get(at, ())
        if not any(is_suspected(record, suspects) for record in part.records):
            suspects = ()
        async with self._locks[at]:
            for batch in part.unreadable:
                if not self._skips.has(at, batch.offset):
                    offsets = range(batch.offset, batch.next_offset)
                    await self._quarantine.set_aside_record(at, offsets, batch.reason)
            for portion in portions(part.records, count_max=_PORTION_MAX) if suspects else ():
                if await self._holding.is_condemned(at, portion, suspects):
                    await self._set_aside(at, portion[0], DIED)
                    await self._save_position(at, portion[0].offset + 1, [])
                else:
                    async with self._holding.noted(alone(at, portion, suspects)):
                        await self._take_records(at, portion, portion[-1].offset + 1)
            await self._take_records(at, [] if suspects else part.records, part.next_offset)
        if suspects:
            await self._holding.settle(at, below=part.next_offset)

    async def _take_records(self, at: Partition, records: Sequence[Record], next_offset: int) -> None:
        keyed, undecodable = await self._decode(at, records)
        await self._bury(at, undecodable)
        await self._save_position(at, next_offset, keyed)

    async def _save_position(self, at: Partition, next_offset: int, keyed: Sequence[Keyed]) -> None:
        """Folds the events, and saves the position after them."""
        heads = await self._folds.fold(at, keyed) if keyed else None
        try:
            await self._positions.save_position(at, next_offset, heads)
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            defect(error)
            await self._folds.fold_by_key(at, keyed)
            await self._positions.save_position(at, next_offset)
        self._reached[at] = next_offset

    async def _decode(self, at: Partition, records: Sequence[Record]) -> tuple[list[Keyed], list[Admitted]]:
        keyed: list[Keyed] = []
        undecodable: list[Admitted] = []
        for record in records:
            if self._quarantine.is_deadly(at, record.key):
                continue
            try:
                keyed.append(decided_event(self._topics, record, at, self._skips.of(at)))
            except UndecodableError as error:
                undecodable.append(Admitted(record, "undecodable", None, error.reason))
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                await self._set_aside(at, record, reason_of(defect(error)))
        return keyed, undecodable

    async def _set_aside(self, at: Partition, record: Record, reason: str) -> None:
        """Sets aside the key of a record that cannot be decoded; without a valid key the record."""
        key = _key_text(self._topics, record, at)
        if key is None:
            await self._quarantine.set_aside_record(at, range(record.offset, record.offset + 1), reason)
        elif not self._quarantine.has_key(at, key):
            await self._quarantine.set_aside_key(key, at, record.offset, reason)

    async def _bury(self, at: Partition, undecodable: Sequence[Admitted]) -> None:
        if undecodable:
            buried = (await self._previous.positions()).get(at, 0) if self._previous else 0
            name = f"{at.topic}-{at.partition}"
            await self._writer.bury([(name, bad) for bad in undecodable if bad.record.offset >= buried])

    async def _fold_key(self, entry: Quarantined, position: int, end: int) -> bool:
        """Folds the events of a key in quarantine from `position` to `end`. Returns whether all of
        them could be folded.
        """
        at = entry.at
        async with aclosing(self._read(at, position, end)) as fetches:
            async for records in fetches:
                for portion in portions(_with_key(records, entry.name), count_max=_PORTION_MAX):
                    async with self._holding.noted(alone(at, portion, self._suspects.get(at, ()))):
                        if not await self._fold_portion(entry, portion):
                            return False
        return True

    async def _fold_portion(self, entry: Quarantined, portion: Sequence[Record]) -> bool:
        events, failed = [], None
        for record in portion:
            try:
                events.append(decided_event(self._topics, record, entry.at, self._skips.of(entry.at)))
            except UndecodableError:
                pass  # it was buried when it was read first
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                failed = record, reason_of(defect(error))
                break
        if events or failed is not None:
            await self._remove_stale(entry)
        if events and not await self._folds.fold_in_order(entry.at, events, retried=True):
            return False
        if failed is not None:
            await self._quarantine.set_aside_key(entry.name, entry.at, failed[0].offset, failed[1])
        return failed is None

    def _read(self, at: Partition, begin: int, end: int) -> AsyncGenerator[list[Record], None]:
        return read(self._settings, at.topic, partition=at.partition, first_offset=begin, end=end)


def _with_key(records: Sequence[Record], key: str) -> list[Record]:
    return [record for record in records if record.key == key.encode()]


def _key_text(topics: Topics, record: Record, at: Partition) -> str | None:
    """The record's key, if it is one that can have an event in this partition."""
    try:
        key = (record.key or b"").decode()
    except UnicodeDecodeError:
        return None
    return key if key and partition_of(topics, key) == at.partition else None
