"""Compares the records of shared topics in MongoDB with the log, by their keys."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from runfold.log.catalog_view import CatalogView
from runfold.log.ends import LogEnds
from runfold.log.fetch_answer import SkippedAt
from runfold.log.leaders import Leaders
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.log.shared import partitions_of
from runfold.store.edition import Edition
from runfold.store.quarantine import Quarantined
from runfold.verify.patience import LOOK_SECONDS, Patience
from runfold_schemas.topics import Partition


class SharedDifference(NamedTuple):
    """A difference between MongoDB and a shared topic. `place` says where, to a person.

    `key` is the key in the log under which it lies. None if it concerns a whole partition.
    """

    place: str
    kind: str
    detail: str
    key: str | None


Compare = Callable[[], Awaitable[tuple[int, list[SharedDifference]]]]
"""Reads MongoDB and the log once. Returns the number of stored records, and the differences."""


async def settled(
    log: LogSettings, stores: Edition, topics: Collection[str], compare: Compare, *, wait_seconds: float
) -> tuple[int, list[SharedDifference]]:
    """What `compare` returns of these topics, and the partitions that are not folded up to the end
    that they had at the beginning. Projectors may work meanwhile, so it is called again while
    something differs and the projectors get on (see `Patience`).

    A key that has records which are not folded yet may differ. `compare` reads the log last, so
    that it has everything that is stored.
    """
    partitions = [at for topic in topics for at in partitions_of(log.topics, topic)]
    async with LogEnds.connect(log) as ends:
        end_of = await ends.ends_of(partitions)

    async def folded() -> int:
        return sum((await stores.shared_positions.positions(partitions)).values())

    patience = Patience(folded, at=await folded(), wait_seconds=wait_seconds)
    while True:
        reached = await stores.shared_positions.positions(partitions)
        count, found = await compare()
        if found:
            changing = await _keys_after(log, {at: reached.get(at, 0) for at in partitions})
            found = [each for each in found if each.key not in changing]
        found += [
            _stale(at, reached.get(at, 0), end) for at, end in end_of.items() if reached.get(at, 0) < end
        ]
        if not found or not await patience.lasts():
            return count, found
        await asyncio.sleep(LOOK_SECONDS)


def _stale(at: Partition, reached: int, end: int) -> SharedDifference:
    detail = f"the partition is folded to offset {reached}, the log ends at {end}"
    return SharedDifference(f"{at.topic}-{at.partition}", "stale position", detail, None)


async def _keys_after(log: LogSettings, offsets: Mapping[Partition, int]) -> set[str]:
    """The keys of all records from these offsets on."""
    keys = set[str]()
    async with Leaders.connect(log) as leaders:
        for at, offset in offsets.items():
            reading = read(log, at.topic, partition=at.partition, first_offset=offset, leaders=leaders)
            async for records in reading:
                keys.update(record.key.decode(errors="replace") for record in records if record.key)
    return keys


def differences(
    kind: str,
    expected: Mapping[str, BaseModel],
    stored: Mapping[str, BaseModel],
    *,
    key_of: Callable[[str], str],
) -> Iterator[SharedDifference]:
    """The differences between the records folded from the log and the stored records, by their
    names. `key_of` gives the key of a name in the log.
    """
    for name in sorted(expected.keys() | stored.keys()):
        place, key = f"{kind} {name}", key_of(name)
        if name not in stored:
            yield SharedDifference(place, f"missing {kind}", "the log has it, MongoDB does not", key)
        elif name not in expected:
            yield SharedDifference(place, f"extra {kind}", "MongoDB has it, the log does not", key)
        elif expected[name] != stored[name]:
            fields = [
                field
                for field in type(expected[name]).model_fields
                if getattr(expected[name], field) != getattr(stored[name], field)
            ]
            detail = f"the record differs from the log in {', '.join(fields)}"
            yield SharedDifference(place, f"wrong {kind}", detail, key)


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
