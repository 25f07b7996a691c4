"""Helpers to compare the records of shared topics in MongoDB with the log, by their keys."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from runfold.log.ends import LogEnds
from runfold.log.settings import LogSettings
from runfold.log.shared import partitions_of
from runfold.store.edition import Edition


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


async def lag(log: LogSettings, stores: Edition, topic: str) -> AsyncIterator[SharedDifference]:
    """The partitions of a shared topic that are not folded up to their ends."""
    async with LogEnds.connect(log) as ends:
        reached = await stores.shared_positions.positions()
        for at, end in (await ends.ends_of(partitions_of(topic))).items():
            if reached.get(at, 0) < end:
                detail = f"the partition is folded to offset {reached.get(at, 0)}, the log ends at {end}"
                yield SharedDifference(f"{at.topic}-{at.partition}", "stale position", detail)
