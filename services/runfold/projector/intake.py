"""Takes records of the catalog, and sets aside a record that cannot be taken. The offsets of a
batch are committed afterwards: then each record is stored, or its quarantine is.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from runfold.log.catalog_group import CatalogRecord
from runfold.log.fetch_answer import FetchedRecords
from runfold.log.reader import read_fetches
from runfold.log.settings import LogSettings
from runfold.projector.holding import alone, is_suspected, large
from runfold.projector.quarantine import DIED, defect, reason_of
from runfold.projector.safeguards import Safeguards
from runfold.store.holdings import Held
from runfold.store.quarantine import Quarantined
from runfold_schemas.catalog import Bell, Life, Segments, Skip
from runfold_schemas.codec import Record, UnreadableBatch
from runfold_schemas.topics import Partition

Entry = tuple[Life | Segments | Bell | Skip, int]
"""An entry of the catalog with the broker's append time, in milliseconds since 1970."""

Settle = Callable[[Sequence[Record], Partition], Awaitable[Sequence[Record]]]
"""Returns the records of a partition of the catalog without claims that have no verdict."""

TakeEntries = Callable[[Sequence[Entry]], Awaitable[None]]


class Intake:
    """The records of the catalog on their way to `take_entries`."""

    def __init__(
        self,
        settings: LogSettings,
        take_entries: TakeEntries,
        *,
        safeguards: Safeguards,
        settle: Settle,
    ) -> None:
        self._settings = settings
        self.partitions = settings.partitions
        """The number of partitions of the catalog."""
        self._take_entries = take_entries
        self._settle = settle
        self._quarantine = safeguards.quarantine
        self._skips = safeguards.skips
        self._holding = safeguards.holding
        self.suspects: Mapping[Partition, Sequence[Held]] = {}
        """Records that were in hand when a process died. They are taken alone."""
        self.after: asyncio.Task[None] | None = None
        """A change of ownership. Before its end, `suspects` is not up to date."""

    async def take(self, records: Sequence[CatalogRecord], unreadable: Sequence[UnreadableBatch]) -> None:
        """Takes records in the order of the catalog, and the batches that cannot be read."""
        if self.after is not None:
            await asyncio.wait([self.after])
        for batch in unreadable:
            if not self._skips.has(batch.partition, batch.offset):
                await self._set_aside_batch(batch)
        new = [each for each in records if not self._skips.has(each.at, each.offset)]
        if any(is_suspected(each.record, self.suspects.get(each.at, ())) for each in new):
            for each in new:
                await self._take_alone(each)
        else:
            async with self._holding.noted(large(_by_partition(new))):
                await self._take(new)
        for each in records:
            if each.at in self.suspects:
                await self._holding.settle(each.at, below=each.offset + 1)

    async def retry(self, entry: Quarantined) -> None:
        """Reads a record in quarantine again, and takes it. It stays there if it cannot be read or
        taken.
        """
        retried = False
        reading = read_fetches(self._settings, entry.at, first_offset=entry.offset, end=entry.next_offset)
        async with aclosing(reading) as fetches:
            async for fetched in fetches:
                if fetched.unreadable:
                    await self._set_aside_batch(fetched.unreadable[0])
                    return
                for record in fetched.records:
                    retried = True
                    each = CatalogRecord(self._settings.topics, entry.at, record)
                    async with self._holding.noted(alone(entry.at, [record], ())):
                        if not await self._is_taken(each):
                            return
        why = "the record was taken" if retried else "the record is not in the log any more"
        await self._quarantine.release([entry.id], why)

    async def _take_alone(self, each: CatalogRecord) -> None:
        suspects = self.suspects.get(each.at, ())
        if await self._holding.is_condemned(each.at, [each.record], suspects):
            await self._set_aside(each, DIED)
        else:
            async with self._holding.noted(alone(each.at, [each.record], suspects)):
                await self._take([each])

    async def _take(self, records: Sequence[CatalogRecord]) -> None:
        if len(records) == 1:
            await self._is_taken(records[0])
        elif records:
            try:
                await self._take_entries(_entries(await self._settled(records)))
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                defect(error)
                half = len(records) // 2
                await self._take(records[:half])
                await self._take(records[half:])

    async def _is_taken(self, each: CatalogRecord) -> bool:
        """Takes one record, or sets it aside."""
        try:
            await self._take_entries(_entries(await self._settled([each])))
        except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
            await self._set_aside(each, reason_of(defect(error)))
            return False
        return True

    async def _settled(self, records: Sequence[CatalogRecord]) -> list[CatalogRecord]:
        settled = {
            part.partition: iter(await self._settle(part.records, part.partition))
            for part in _by_partition(records)
        }
        return [each._replace(record=next(settled[each.at])) for each in records]

    async def _set_aside_batch(self, batch: UnreadableBatch) -> None:
        offsets = range(batch.offset, batch.next_offset)
        await self._quarantine.set_aside_record(batch.partition, offsets, batch.reason)

    async def _set_aside(self, each: CatalogRecord, reason: str) -> None:
        await self._quarantine.set_aside_record(each.at, range(each.offset, each.offset + 1), reason)


def _entries(records: Sequence[CatalogRecord]) -> list[Entry]:
    return [(entry, each.record.log_time) for each in records if (entry := each.entry) is not None]


def _by_partition(records: Sequence[CatalogRecord]) -> list[FetchedRecords]:
    parts: defaultdict[Partition, list[Record]] = defaultdict(list)
    for each in records:
        parts[each.at].append(each.record)
    return [FetchedRecords(at, own, own[-1].offset + 1) for at, own in parts.items()]
