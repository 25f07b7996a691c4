"""Memories from MongoDB. An answer contains every change that was acknowledged before the
question.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

from runfold.client.memory import MemorySelection, Published
from runfold.log.shared import deciding
from runfold.query.shared import SharedReader, refuse_quarantined
from runfold.store.edition import Edition
from runfold.store.memories import cursor_after
from runfold_projections.memory import BankRecord, Head, HeadAt, MemoryRecord, Refused, Revision
from runfold_schemas.cursors import decode_offset, encode_offset
from runfold_schemas.memories import bank_key, memory_key
from runfold_schemas.topics import Partition


class StoredMemories:
    """A `MemoryReader`."""

    def __init__(self, shared: SharedReader) -> None:
        self._shared = shared
        self._names = shared.names

    async def bank(self, bank_id: str) -> BankRecord | None:
        async def read(edition: Edition) -> BankRecord | None:
            return (await edition.banks.get([bank_id])).get(bank_id)

        return await self._shared.find(bank_key(bank_id), read)

    async def banks(self, *, limit: int, cursor: str | None) -> tuple[list[BankRecord], str | None]:
        edition = await self._shared.edition_of_topic(self._names.banks)
        return await edition.banks.list(limit=limit, cursor=cursor) if edition else ([], None)

    async def outcomes(self, published: Sequence[Published]) -> list[Refused | MemoryRecord | None]:
        ends: dict[Partition, int] = {}
        topics = await self._shared.topics()
        for change in published:
            partition = deciding(topics, change.key)
            ends[partition] = max(ends.get(partition, 0), change.offset + 1)
        edition = await self._shared.edition_at(ends)
        if edition is None:
            return []
        refused, records, _ = await asyncio.gather(
            edition.shared_positions.refusals((change.key, change.event_id) for change in published),
            edition.memories.get([change.key for change in published], now=datetime.now(UTC)),
            # One of the changes may have put its memory into quarantine just now.
            refuse_quarantined(edition, {change.key for change in published}),
        )
        clear = {key: await self._shared.revealed_memory(record) for key, record in records.items()}
        return [refused.get((change.key, change.event_id)) or clear.get(change.key) for change in published]

    async def head(self, bank_id: str, memory_id: str) -> Head | None:
        key = memory_key(bank_id, memory_id)

        async def read(edition: Edition) -> HeadAt | None:
            return (await edition.shared_positions.heads([key])).get(key)

        known = await self._shared.find(key, read)
        return known.head if known else None

    async def find(self, bank_id: str, memory_id: str) -> MemoryRecord | None:
        key = memory_key(bank_id, memory_id)

        async def read(edition: Edition) -> MemoryRecord | None:
            record = (await edition.memories.get([key], now=datetime.now(UTC))).get(key)
            return record if record is None else await self._shared.revealed_memory(record)

        return await self._shared.find(key, read)

    async def revisions(
        self,
        bank_id: str,
        memory_id: str,
        *,
        since: int,
        labels: Mapping[str, str],
        limit: int,
        cursor: str | None,
    ) -> tuple[list[Revision], str | None]:
        self._shared.check_filter(labels)
        key = memory_key(bank_id, memory_id)
        before = decode_offset(cursor) if cursor is not None else None
        edition = await self._shared.edition_of_keys(key)
        if edition is None:
            return [], None
        page = await edition.revisions.list(
            key, since=since, labels=labels, now=datetime.now(UTC), before=before, limit=limit + 1
        )
        following = encode_offset(page[limit - 1].offset) if len(page) > limit else None
        return [await self._shared.revealed_revision(revision) for revision in page[:limit]], following

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision | None:
        key = memory_key(bank_id, memory_id)

        async def read(edition: Edition) -> Revision | None:
            offsets = await edition.shared_positions.first_offsets([(key, revision_id)])
            offset = offsets.get((key, revision_id))
            if offset is None:
                return None
            revision = await edition.revisions.get(key, offset, now=datetime.now(UTC))
            return revision if revision is None else await self._shared.revealed_revision(revision)

        return await self._shared.find(key, read)

    async def list(
        self, bank_id: str, selection: MemorySelection, *, limit: int, cursor: str | None
    ) -> tuple[list[MemoryRecord], str | None]:
        edition = await self._shared.edition_of_topic(self._names.memories)
        if edition is None:
            return [], None
        listed = edition.memories.list(
            bank_id,
            scope=selection.scope,
            order=selection.order,
            ascending=selection.ascending,
            now=datetime.now(UTC),
            cursor=cursor,
        )
        page: list[MemoryRecord] = []
        async with aclosing(listed):
            async for stored in listed:
                record = await self._shared.revealed_memory(stored)
                if selection.matches is None or selection.matches(record):
                    page.append(record)
                if len(page) > limit:
                    return page[:limit], cursor_after(page[limit - 1], order=selection.order)
        return page, None
