"""Helpers to compare the records of shared topics in MongoDB with the log, by their keys."""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from runfold.log.catalog_view import CatalogView
from runfold.log.ends import LogEnds
from runfold.log.fetch_answer import SkippedAt
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.log.shared import partitions_of
from runfold.store.edition import Edition
from runfold.store.quarantine import Quarantined
from runfold_schemas.topics import Partition


class SharedDifference(NamedTuple):
    """A difference between MongoDB and a shared topic."""

    key: str
    kind: str
    detail: str


def differences(
    kind: str, expected: Mapping[str, BaseModel], stored: Mapping[str, BaseModel]
) -> Iterator[SharedDifference]:
    """The differences between the records folded from the log and the stored records."""
    for name in sorted(expected.keys() | stored.keys()):
        key = f"{kind} {name}"
        if name not in stored:
            yield SharedDifference(key, f"missing {kind}", "the log has it, MongoDB does not")
        elif name not in expected:
            yield SharedDifference(key, f"extra {kind}", "MongoDB has it, the log does not")
        elif expected[name] != stored[name]:
            fields = [
                field
                for field in type(expected[name]).model_fields
                if getattr(expected[name], field) != getattr(stored[name], field)
            ]
            yield SharedDifference(
                key, f"wrong {kind}", f"the record differs from the log in {', '.join(fields)}"
            )


async def left_out(log: LogSettings, stores: Edition, topics: Collection[str]) -> SkippedAt:
    """The offsets that count for nothing in partitions of these topics: those that an operator
    skipped, and as long as a key is in quarantine, its records from there on.
    """
    held: dict[Partition, set[range]] = {}
    for entry in await stores.quarantine.all():
        if entry.topic in topics and entry.kind == "record":
            held.setdefault(entry.at, set()).add(range(entry.offset, entry.next_offset))
        elif entry.topic in topics:
            held.setdefault(entry.at, set()).update(await _records_of(log, entry))
    async with CatalogView.connect(log) as catalog:
        await catalog.read_skips(range(log.topics.partitions))
        skipped = catalog.skipped
    return lambda at: skipped(at) | held.get(at, set())


async def _records_of(log: LogSettings, entry: Quarantined) -> list[range]:
    """The offsets of the records under the entry's key, from the entry's offset on."""
    key = entry.name.encode()
    return [
        range(record.offset, record.offset + 1)
        async for records in read(log, entry.topic, partition=entry.partition, first_offset=entry.offset)
        for record in records
        if record.key == key
    ]


async def lag(log: LogSettings, stores: Edition, topic: str) -> AsyncIterator[SharedDifference]:
    """The partitions of a shared topic that are not folded up to their ends."""
    async with LogEnds.connect(log) as ends:
        reached = await stores.shared_positions.positions()
        for at, end in (await ends.ends_of(partitions_of(log.topics, topic))).items():
            if reached.get(at, 0) < end:
                detail = f"the partition is folded to offset {reached.get(at, 0)}, the log ends at {end}"
                yield SharedDifference(f"{at.topic}-{at.partition}", "stale position", detail)
