"""The verdicts of projectors: which runs are deleted.

Clients write to the catalog, so a record there that says `deleted` is a claim. The topic
`{prefix}.verdicts` is compacted, and only services write to it:

    deleted:{log}:{run} this log of the run is deleted
    catalog:{partition} from this offset of the partition on, a claim needs a verdict

A claim without a verdict counts as a life that is not deleted. Where no such offset is noted,
claims count, and so do those before the offset, because earlier versions wrote no verdicts. A
verdict is durable before its claim is published, so whoever reads the claim finds the verdict.
"""

import logging
import time
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runfold.log.catalog import entry_of, is_life, life_record
from runfold.log.driver import TopicRefusedError
from runfold.log.leaders import Leaders
from runfold.log.reader import LogGoneError, read
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record
from runfold_schemas.topics import OFFSET_MAX, Partition

DELETED: Final = b"deleted:"
CATALOG: Final = b"catalog:"
"""How the keys of the two kinds of records begin."""

_ALIVE: Final = b',"deleted":false}'
"""How the value of a life ends that claims nothing. Of a key that is there twice, the last counts.
Most lives need not be decoded.
"""

_LOOK_SECONDS: Final = 10.0
"""How often a process looks whether claims need verdicts, while claims come."""

_RECENT_MAX: Final = 1_000

_log = logging.getLogger(__name__)


class Deletion(BaseModel):
    """The verdict that a run is deleted, with this log."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    log_id: str


class Begin(BaseModel):
    """From this offset of a partition of the catalog on, claims need verdicts."""

    model_config = ConfigDict(frozen=True)

    partition: int = Field(ge=0)
    offset: int = Field(ge=0, le=OFFSET_MAX)


class Verdicts:
    """The verdicts as far as this process has read them: eight bytes for each deleted run."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._topic = settings.topics.verdicts
        self._begins: dict[int, int] = {}
        """The offset from which on a claim needs a verdict, by partition of the catalog."""
        self._deleted = _Hashes()
        self._next_offset = 0
        self._looked_at = self._warned_at = float("-inf")

    async def settle(
        self, records: Sequence[Record], at: Partition, *, leaders: Leaders | None = None
    ) -> Sequence[Record]:
        """These records of a partition of the catalog, in which a claim without a verdict says no
        more that the run is deleted. Raises `UnavailableError`.
        """
        doubtful = [each for each in records if each.value and not each.value.endswith(_ALIVE)]
        claims = {record.offset: life for record in doubtful if (life := _claim_of(record)) is not None}
        if not claims:
            return records
        if at.partition not in self._begins and time.monotonic() - self._looked_at > _LOOK_SECONDS:
            await self.read(leaders)
        if not all(self.has(life, at, offset) for offset, life in claims.items()):
            await self.read(leaders)
        unfounded = {offset: life for offset, life in claims.items() if not self.has(life, at, offset)}
        self._warn(unfounded, at)
        return [
            _not_deleted(record, unfounded[record.offset]) if record.offset in unfounded else record
            for record in records
        ]

    def has(self, life: Life, at: Partition, offset: int) -> bool:
        """Whether a claim at this offset of the catalog counts, by what was read so far."""
        begin = self._begins.get(at.partition)
        return begin is None or offset < begin or _hash_of(life.run_id, life.log_id) in self._deleted

    async def read(self, leaders: Leaders | None = None) -> None:
        """Reads the verdicts to their end. Raises `UnavailableError`."""
        try:
            reading = read(self._settings, self._topic, first_offset=self._next_offset, leaders=leaders)
            async with aclosing(reading) as batches:
                async for records in batches:
                    for record in records:
                        self._take(record)
                        self._next_offset = record.offset + 1
        except (LogGoneError, TopicRefusedError):
            if self._begins:
                raise
            # No projector has written a verdict yet, or this login has rights from before there
            # were any.
        self._looked_at = time.monotonic()

    def add(self, deletion: Deletion) -> None:
        """Notes a verdict that is durable."""
        self._deleted.add(_hash_of(deletion.run_id, deletion.log_id))

    def new_begins(self, ends: Mapping[Partition, int]) -> list[Begin]:
        """The offsets to note for the partitions of the catalog that end so. A partition that ends
        before its noted offset was made anew, so each claim in it needs a verdict.
        """
        begins = []
        for at, end in ends.items():
            noted = self._begins.get(at.partition)
            if noted is None or noted > end:
                begins.append(Begin(partition=at.partition, offset=end if noted is None else 0))
        return begins

    def _warn(self, unfounded: Mapping[int, Life], at: Partition) -> None:
        now = time.monotonic()
        if unfounded and now - self._warned_at > _LOOK_SECONDS:
            self._warned_at = now
            offset, life = next(iter(unfounded.items()))
            _log.warning(
                "the record at offset %d of %s-%d does not delete run %r: no projector has said so",
                offset,
                *at,
                life.run_id,
            )

    def _take(self, record: Record) -> None:
        key, value = record.key or b"", record.value or b""
        try:
            if key.startswith(DELETED):
                self.add(Deletion.model_validate_json(value))
            elif key.startswith(CATALOG):
                begin = Begin.model_validate_json(value)
                self._begins[begin.partition] = begin.offset
        except ValidationError:
            _log.warning("the record at offset %d of the verdicts cannot be decoded", record.offset)


async def read_settled(
    settings: LogSettings,
    at: Partition,
    verdicts: Verdicts,
    *,
    first_offset: int = 0,
    end: int | None = None,
    leaders: Leaders | None = None,
) -> AsyncGenerator[Sequence[Record], None]:
    """As `read`, for a partition of the catalog, and each batch settled."""
    reading = read(
        settings, at.topic, partition=at.partition, first_offset=first_offset, end=end, leaders=leaders
    )
    async with aclosing(reading) as batches:
        async for records in batches:
            yield await verdicts.settle(records, at, leaders=leaders)


class _Hashes:
    """Hashes in sorted order, of eight bytes each, and some recent ones."""

    def __init__(self) -> None:
        self._sorted = array("q")
        self._recent: set[int] = set()

    def add(self, hashed: int) -> None:
        self._recent.add(hashed)
        if len(self._recent) > max(_RECENT_MAX, len(self._sorted) // 4):
            self._sorted = array("q", sorted(self._recent.union(self._sorted)))
            self._recent = set()

    def __contains__(self, hashed: int) -> bool:
        if hashed in self._recent:
            return True
        place = bisect_left(self._sorted, hashed)
        return place < len(self._sorted) and self._sorted[place] == hashed


def _claim_of(record: Record) -> Life | None:
    """The life in a record of the catalog, if it says that the run is deleted."""
    life = entry_of(record.key, record.value) if is_life(record) else None
    return life if isinstance(life, Life) and life.deleted else None


def _not_deleted(record: Record, life: Life) -> Record:
    return record._replace(value=life_record(life.model_copy(update={"deleted": False})).value)


def _hash_of(run_id: str, log_id: str) -> int:
    return hash((run_id, log_id))
