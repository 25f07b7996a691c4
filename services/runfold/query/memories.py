"""Memories as MongoDB has them, and nothing older than what was acknowledged before they were asked
for.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

from runfold.client.memory import MemoriesWanted, Published
from runfold.log.shared import deciding
from runfold.query.shared import SharedReader
from runfold.store.memories import cursor_after
from runfold_projections.memory import BankRecord, Head, MemoryRecord, Refused, Revision
from runfold_schemas.cursors import decode_offset, encode_offset
from runfold_schemas.memories import bank_key, memory_key
from runfold_schemas.topics import Partition


class StoredMemories:
    """A `MemoryReader`."""

    def __init__(self, shared: SharedReader) -> None:
        self._shared = shared
        self._topics = shared.topics

    async def bank(self, bank_id: str) -> BankRecord | None:
        edition = await self._shared.edition_of_keys(bank_key(bank_id))
        return (await edition.banks.get([bank_id])).get(bank_id) if edition else None

    async def banks(self, *, limit: int, cursor: str | None) -> tuple[list[BankRecord], str | None]:
        edition = await self._shared.edition_of_topic(self._topics.banks)
        return await edition.banks.list(limit=limit, cursor=cursor) if edition else ([], None)

    async def outcomes(self, published: Sequence[Published]) -> list[Refused | MemoryRecord | None]:
        ends: dict[Partition, int] = {}
        for one in published:
            at = deciding(self._topics, one.key)
            ends[at] = max(ends.get(at, 0), one.offset + 1)
        edition = await self._shared.edition_at(ends)
        if edition is None:
            return []
        refused, found = await asyncio.gather(
            edition.shared_positions.refusals((one.key, one.event_id) for one in published),
            edition.memories.get([one.key for one in published], now=datetime.now(UTC)),
        )
        return [refused.get((one.key, one.event_id)) or found.get(one.key) for one in published]

    async def head(self, bank_id: str, memory_id: str) -> Head | None:
        key = memory_key(bank_id, memory_id)
        edition = await self._shared.edition_of_keys(key)
        found = (await edition.shared_positions.heads([key])).get(key) if edition else None
        return found.head if found else None

    async def find(self, bank_id: str, memory_id: str) -> MemoryRecord | None:
        key = memory_key(bank_id, memory_id)
        edition = await self._shared.edition_of_keys(key)
        return (await edition.memories.get([key], now=datetime.now(UTC))).get(key) if edition else None

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
        key, before = memory_key(bank_id, memory_id), decode_offset(cursor) if cursor is not None else None
        edition = await self._shared.edition_of_keys(key)
        if edition is None:
            return [], None
        found = await edition.revisions.list(
            key, since=since, labels=labels, now=datetime.now(UTC), before=before, limit=limit + 1
        )
        return found[:limit], encode_offset(found[limit - 1].offset) if len(found) > limit else None

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision | None:
        key = memory_key(bank_id, memory_id)
        edition = await self._shared.edition_of_keys(key)
        if edition is None:
            return None
        offset = (await edition.shared_positions.first_offsets([(key, revision_id)])).get((key, revision_id))
        return await edition.revisions.get(key, offset, now=datetime.now(UTC)) if offset is not None else None

    async def list(
        self, bank_id: str, wanted: MemoriesWanted, *, limit: int, cursor: str | None
    ) -> tuple[list[MemoryRecord], str | None]:
        edition = await self._shared.edition_of_topic(self._topics.memories)
        if edition is None:
            return [], None
        listed = edition.memories.list(
            bank_id,
            scope=wanted.scope,
            order=wanted.order,
            ascending=wanted.ascending,
            now=datetime.now(UTC),
            cursor=cursor,
        )
        page: list[MemoryRecord] = []
        async with aclosing(listed):
            async for record in listed:
                if wanted.matches is None or wanted.matches(record):
                    page.append(record)
                if len(page) > limit:
                    return page[:limit], cursor_after(page[limit - 1], order=wanted.order)
        return page, None
