"""What comparing has in common of all that runs share: records of MongoDB held against those of the
log, by their keys.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from runfold.log.ends import LogEnds
from runfold.log.settings import LogSettings
from runfold.log.shared import partitions_of
from runfold.store.edition import Edition


class SharedDifference(NamedTuple):
    """Something in MongoDB that is not what the log says of something that runs share."""

    key: str
    kind: str
    detail: str


def differences(
    kind: str, expected: Mapping[str, BaseModel], stored: Mapping[str, BaseModel]
) -> Iterator[SharedDifference]:
    """Between the records that the log folds to and those that are stored."""
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
            yield SharedDifference(key, f"wrong {kind}", f"it differs from the log in {', '.join(fields)}")


async def lag(log: LogSettings, stores: Edition, topic: str) -> AsyncIterator[SharedDifference]:
    """Partitions of a topic that runs share which are not folded to their ends."""
    async with LogEnds.connect(log) as ends:
        reached = await stores.shared_positions.positions()
        for at, end in (await ends.ends_of(partitions_of(topic))).items():
            if reached.get(at, 0) < end:
                detail = f"it is folded to offset {reached.get(at, 0)}, the log ends at {end}"
                yield SharedDifference(f"{at.topic}-{at.partition}", "stale position", detail)
