"""Memories read from the log alone, without MongoDB. Each answer is current, and takes longer the
more there is in the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from runfold.client.connection import LogConnection
from runfold.client.memory import MemorySelection, Published
from runfold.client.pages import ListPlace, page_of
from runfold.encryption.hiding import hide_revision
from runfold.log.fetch_answer import SkippedAt
from runfold.log.leaders import Leaders
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
from runfold_schemas.topics import Partition, Topics


@dataclass(frozen=True, slots=True)
class LoggedMemories:
    """The fold of partitions of `{prefix}.memories`: memories and heads by key, and revisions with
    their final expiry.
    """

    heads: Mapping[str, Head] = field(default_factory=dict)
    records: Mapping[str, MemoryRecord] = field(default_factory=dict)
    revisions: Mapping[tuple[str, str], Revision] = field(default_factory=dict)
    """By key and id."""
    refused: Mapping[tuple[str, str], Refused] = field(default_factory=dict)


class LogMemoryReader:
    """A `MemoryReader` that reads whole partitions for each answer."""

    def __init__(self, connection: LogConnection) -> None:
        self._connection = connection

    @property
    def _topics(self) -> Topics:
        return self._connection.entered().topics

    async def bank(self, bank_id: str) -> BankRecord | None:
        at = deciding(self._topics, bank_key(bank_id))
        return (await self._fold_banks([at])).get(bank_id)

    async def banks(self, *, limit: int, cursor: str | None) -> tuple[list[BankRecord], str | None]:
        folded = await self._fold_banks(partitions_of(self._topics, self._topics.banks))
        placed = [(ListPlace(bank.created_at, bank.bank_id), bank) for bank in folded.values()]
        return page_of(placed, limit=limit, cursor=cursor)

    async def outcomes(self, published: Sequence[Published]) -> list[Refused | MemoryRecord | None]:
        # The log is read to its end, which is after all of these changes.
        partitions = {deciding(self._topics, change.key) for change in published}
        folded = await self._fold(sorted(partitions))
        return [
            folded.refused.get((change.key, change.event_id)) or _unexpired(folded.records.get(change.key))
            for change in published
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
        revisions = [
            revision
            for (of_memory, _), revision in folded.revisions.items()
            if of_memory == key
            and revision.offset >= since
            and revision.expires_at > now
            and labels.items() <= revision.labels.items()
            and (before is None or revision.offset < before)
        ]
        revisions.sort(key=lambda revision: revision.offset, reverse=True)
        page = revisions[:limit]
        return page, encode_offset(page[-1].offset) if len(revisions) > limit else None

    async def revision(self, bank_id: str, memory_id: str, revision_id: str) -> Revision | None:
        folded = await self._of(bank_id, memory_id)
        revision = folded.revisions.get((memory_key(bank_id, memory_id), revision_id))
        return revision if revision is not None and revision.expires_at > datetime.now(UTC) else None

    async def list(
        self, bank_id: str, selection: MemorySelection, *, limit: int, cursor: str | None
    ) -> tuple[list[MemoryRecord], str | None]:
        folded = await self._fold(partitions_of(self._topics, self._topics.memories))
        placed = [
            (ListPlace(getattr(record, selection.order), memory_key(bank_id, record.memory_id)), record)
            for record in map(_unexpired, folded.records.values())
            if record is not None
            and record.bank_id == bank_id
            and selection.scope in (None, record.memory.scope)
            and (selection.matches is None or selection.matches(record))
        ]
        return page_of(placed, limit=limit, cursor=cursor, ascending=selection.ascending)

    async def _of(self, bank_id: str, memory_id: str) -> LoggedMemories:
        return await self._fold([deciding(self._topics, memory_key(bank_id, memory_id))])

    async def _fold(self, partitions: Sequence[Partition]) -> LoggedMemories:
        connection = self._connection.entered()
        skipped = await connection.skipped_in(partitions)
        folded = await fold_memories(connection.settings, partitions, skipped)
        if (sealing := connection.sealing) is None:
            hidden = {key: hide_revision(each) for key, each in folded.revisions.items()}
            return replace(folded, revisions=hidden)
        return replace(
            folded,
            records={key: await sealing.reveal_memory(each) for key, each in folded.records.items()},
            revisions={key: await sealing.reveal_revision(each) for key, each in folded.revisions.items()},
        )

    async def _fold_banks(self, partitions: Sequence[Partition]) -> dict[str, BankRecord]:
        connection = self._connection.entered()
        return await fold_banks(connection.settings, partitions, await connection.skipped_in(partitions))


async def fold_memories(
    settings: LogSettings, partitions: Sequence[Partition], skipped: SkippedAt
) -> LoggedMemories:
    """The fold of these partitions, from their beginning to their end as it is now."""
    fold = MemoryFold({})
    async with Leaders.connect(settings) as leaders:
        for at in partitions:
            async for keyed in read_counting(settings, at, skipped(at), leaders=leaders):
                fold.take(keyed.key, keyed.event, keyed.offset)
    return LoggedMemories(
        {key: state.head for key, state in fold.heads.items()},
        {key: record for key, record in fold.records().items() if record is not None},
        {
            (key, revision.revision_id): expire_with_memory(revision, deleted_at)
            for (key, revision), deleted_at in zip(fold.revisions, _deletions(fold), strict=True)
        },
        {(key, event_id): refused for key, event_id, refused in fold.refused},
    )


async def fold_banks(
    settings: LogSettings, partitions: Sequence[Partition], skipped: SkippedAt
) -> dict[str, BankRecord]:
    """The banks of these partitions of `{prefix}.banks`."""
    banks: dict[str, BankRecord | None] = {}
    async with Leaders.connect(settings) as leaders:
        for at in partitions:
            async for keyed in read_counting(settings, at, skipped(at), leaders=leaders):
                bank_id = bank_of(keyed.event)
                banks[bank_id] = apply_to_bank(banks.get(bank_id), keyed.event)
    return {bank_id: bank for bank_id, bank in banks.items() if bank is not None}


def _deletions(fold: MemoryFold) -> list[datetime | None]:
    """For each revision the time of the deletion after which it expires, or None."""
    deletions: list[datetime | None] = [None] * len(fold.revisions)
    indexes: dict[str, list[int]] = {}
    for index, (key, _) in enumerate(fold.revisions):
        indexes.setdefault(key, []).append(index)
    for key, ending in fold.endings:
        for index in indexes.get(key, []):
            if ending.undone and deletions[index] == ending.deleted_at:
                deletions[index] = None
            elif (
                not ending.undone
                and deletions[index] is None
                and fold.revisions[index][1].offset <= ending.offset
            ):
                deletions[index] = ending.deleted_at
    return deletions


def _unexpired(record: MemoryRecord | None) -> MemoryRecord | None:
    if record is None or (record.memory.expires_at and record.memory.expires_at <= datetime.now(UTC)):
        return None
    return record
