"""The whole catalog of a hosted tenant, read by one worker without a consumer group. The host has
the tenant to itself, so nobody shares the partitions. Another process may host the tenant for a
moment too, which is as harmless as two owners of a partition.

    catalog --> effects in MongoDB --> positions in MongoDB
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from runfold.log.catalog_group import (
    CatalogRecord,
    NoteProgress,
    OnAssigned,
    OnRecords,
    catalog_group,
)
from runfold.log.leaders import Leaders
from runfold.log.settings import LogSettings
from runfold.log.shared import partitions_of
from runfold.log.tail import Tail
from runfold.settings import Settings
from runfold.store.shared_positions import SharedPositionStore

_BATCH_MAX: Final = 500

FollowCatalog = Callable[
    [OnAssigned, OnRecords, NoteProgress], AbstractAsyncContextManager[asyncio.Future[Any]]
]
"""Follows the catalog for the length of a block, which gets a future that ends with the first
error.
"""


def by_group(settings: Settings, log: LogSettings, edition: str) -> FollowCatalog:
    """The projectors of one edition share the partitions."""

    def follow(
        on_assigned: OnAssigned, on_records: OnRecords, note_progress: NoteProgress
    ) -> AbstractAsyncContextManager[Any]:
        return catalog_group(
            log,
            f"projector.{edition}",
            member_id=settings.worker_id,
            session_timeout_seconds=settings.session_timeout_seconds,
            on_assigned=on_assigned,
            on_records=on_records,
            note_progress=note_progress,
        )

    return follow


def as_whole(log: LogSettings, leaders: Leaders, positions: SharedPositionStore) -> FollowCatalog:
    """One worker has all partitions, and keeps its positions in MongoDB."""

    @asynccontextmanager
    async def follow(
        on_assigned: OnAssigned, on_records: OnRecords, note_progress: NoteProgress
    ) -> AsyncIterator[asyncio.Future[None]]:
        partitions = partitions_of(log.topics, log.topics.catalog)
        async with Tail.connect(log, leaders=leaders) as tail:
            stored = await positions.catalog_positions(partitions)
            await on_assigned({at.partition for at in partitions})
            for at in partitions:
                position = stored.get(at, 0)
                tail.follow(at, position)
                note_progress(at, position, position)
            taking = asyncio.create_task(_take(log, tail, positions, on_records, note_progress))
            try:
                yield taking
            finally:
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)

    return follow


async def _take(
    log: LogSettings,
    tail: Tail,
    positions: SharedPositionStore,
    on_records: OnRecords,
    note_progress: NoteProgress,
) -> None:
    """Endless. A position is stored when the effects of the records before it are."""
    async for fetch in tail.fetches():
        for at, position in tail.behind.items():
            note_progress(at, position, tail.end(at) or position)
        if not fetch:
            continue
        records = [
            CatalogRecord(log.topics, part.partition, record) for part in fetch for record in part.records
        ]
        unreadable = [batch for part in fetch for batch in part.unreadable]
        for portion in _portions(records):
            await on_records(portion, unreadable)
            unreadable = []
        if unreadable:
            await on_records([], unreadable)
        await positions.save_catalog_positions({part.partition: part.next_offset for part in fetch})
        for part in fetch:
            note_progress(part.partition, part.next_offset, tail.end(part.partition) or part.next_offset)


def _portions(records: Sequence[CatalogRecord]) -> list[Sequence[CatalogRecord]]:
    return [records[begin : begin + _BATCH_MAX] for begin in range(0, len(records), _BATCH_MAX)]
