"""Memories read from the log alone, without MongoDB. Each answer is current, and takes longer the more
there is in the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from runfold.client.connection import LogConnection
from runfold.client.memory import MemoriesWanted, Published
from runfold.client.pages import ListPlace, page_of
from runfold.log.settings import LogSettings
from runfold.log.shared import deciding, partitions_of, read_counting
from runfold_projections.memory import (
    BankRecord,
    Head,
    MemoryFold,
    MemoryRecord,
    Refused,
    Revision,
    apply_to_bank,
    bank_of,
    expire_with_memory,
)
from runfold_schemas.cursors import decode_offset, encode_offset
from runfold_schemas.memories import bank_key, memory_key
from runfold_schemas.topics import Partition


@dataclass(frozen=True, slots=True)
class LoggedMemories:
    """What partitions of `{prefix}.memories` fold to: memories and heads by key, revisions with the
    deletion that ends them.
    """

    heads: Mapping[str, Head] = field(default_factory=dict)
    records: Mapping[str, MemoryRecord] = field(default_factory=dict)
    revisions: Mapping[tuple[str, str], Revision] = field(default_factory=dict)
    """By key and id."""
    refused: Mapping[tuple[str, str], Refused] = field(default_factory=dict)


class LogMemoryReader:
    """A `MemoryReader` that reads whole partitions for each answer, and knows nothing of
    similarity.
    """

    def __init__(self, connection: LogConnection) -> None:
        self._connection = connection
        self._topics = connection.topics

    @property
    def _settings(self) -> LogSettings:
        """Raises `RuntimeError` if the connection was not entered."""
        return self._connection.entered().settings

    async def bank(self, bank_id: str) -> BankRecord | None:
        at = deciding(self._topics, bank_key(bank_id))
        return (await fold_banks(self._settings, [at])).get(bank_id)

    async def banks(self, *, limit: int, cursor: str | None) -> tuple[list[BankRecord], str | None]:
        folded = await fold_banks(self._settings, partitions_of(self._topics.banks))
        placed = [(ListPlace(bank.created_at, bank.bank_id), bank) for bank in folded.values()]
        return page_of(placed, limit=limit, cursor=cursor)

    async def outcomes(self, published: Sequence[Published]) -> list[Refused | MemoryRecord | None]:
        # The log is read to its end, which is behind all of them.
        partitions = {deciding(self._topics, one.key) for one in published}
        folded = await fold_memories(self._settings, sorted(partitions))
        return [
            folded.refused.get((one.key, one.event_id)) or _unexpired(folded.records.get(one.key))
            for one in published
        ]

    async def head(self, bank_id: str, memory_id: str) -> Head | None:
        return (await self._of(bank_id, memory_id)).heads.get(memory_key(bank_id, memory_id))

    async def find(self, bank_id: str, memory_id: str) -> MemoryRecord | None:
        return _unexpired((await self._of(bank_id, memory_id)).records.get(memory_key(bank_id, memory_id)))

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
        folded, key, now = (
            await self._of(bank_id, memory_id),
            memory_key(bank_id, memory_id),
            datetime.now(UTC),
        )
        before = decode_offset(cursor) if cursor is not None else None
        found = [
            revision
            for (of, _), revision in folded.revisions.items()
            if of == key
            and revision.offset >= since
            and revision.expires_at > now
            and labels.items() <= revision.labels.items()
            and (before is None or revision.offset < before)
        ]
        found.sort(key=lambda revision: revision.offset, reverse=True)
        return found[:limit], encode_offset(found[limit - 1].offset) if len(found) > limit else None

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision | None:
        folded = await self._of(bank_id, memory_id)
        found = folded.revisions.get((memory_key(bank_id, memory_id), revision_id))
        return found if found is not None and found.expires_at > datetime.now(UTC) else None

    async def list(
        self, bank_id: str, wanted: MemoriesWanted, *, limit: int, cursor: str | None
    ) -> tuple[list[MemoryRecord], str | None]:
        folded = await fold_memories(self._settings, partitions_of(self._topics.memories))
        placed = [
            (ListPlace(getattr(record, wanted.order), memory_key(bank_id, record.memory_id)), record)
            for record in map(_unexpired, folded.records.values())
            if record is not None
            and record.bank_id == bank_id
            and wanted.scope in (None, record.memory.scope)
            and (wanted.matches is None or wanted.matches(record))
        ]
        return page_of(placed, limit=limit, cursor=cursor, ascending=wanted.ascending)

    async def _of(self, bank_id: str, memory_id: str) -> LoggedMemories:
        return await fold_memories(self._settings, [deciding(self._topics, memory_key(bank_id, memory_id))])


async def fold_memories(settings: LogSettings, partitions: list[Partition]) -> LoggedMemories:
    """What these partitions fold to, from their beginning to their end as it is now."""
    fold = MemoryFold({})
    for at in partitions:
        async for one in read_counting(settings, at):
            fold.take(one.key, one.event, one.offset)
    return LoggedMemories(
        {key: one.head for key, one in fold.heads.items()},
        {key: record for key, record in fold.records().items() if record is not None},
        {
            (key, revision.revision_id): expire_with_memory(revision, deleted_at)
            for (key, revision), deleted_at in zip(fold.revisions, _deletions(fold), strict=True)
        },
        {(key, event_id): refused for key, event_id, refused in fold.refused},
    )


async def fold_banks(settings: LogSettings, partitions: list[Partition]) -> dict[str, BankRecord]:
    """The banks of these partitions of `{prefix}.banks`."""
    banks: dict[str, BankRecord | None] = {}
    for at in partitions:
        async for one in read_counting(settings, at):
            bank_id = bank_of(one.event)
            banks[bank_id] = apply_to_bank(banks.get(bank_id), one.event)
    return {bank_id: bank for bank_id, bank in banks.items() if bank is not None}


def _deletions(fold: MemoryFold) -> list[datetime | None]:
    """For each revision when the deletion was that ends it, or None."""
    deletions: list[datetime | None] = [None] * len(fold.revisions)
    places: dict[str, list[int]] = {}
    for place, (key, _) in enumerate(fold.revisions):
        places.setdefault(key, []).append(place)
    for key, ending in fold.endings:
        for place in places.get(key, []):
            if ending.undone and deletions[place] == ending.deleted_at:
                deletions[place] = None
            elif (
                not ending.undone
                and deletions[place] is None
                and fold.revisions[place][1].offset <= ending.offset
            ):
                deletions[place] = ending.deleted_at
    return deletions


def _unexpired(record: MemoryRecord | None) -> MemoryRecord | None:
    if record is None or (record.memory.expires_at and record.memory.expires_at <= datetime.now(UTC)):
        return None
    return record
