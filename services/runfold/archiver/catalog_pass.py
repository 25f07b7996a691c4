"""One partition of the catalog, as the owner reads it to find archived runs. Values are held
undecoded, because a partition may name many runs.
"""

from contextlib import aclosing
from dataclasses import dataclass, field

from runfold.log.catalog import (
    ARCHIVE_KEY,
    SEGMENT_KEYS,
    entry_of,
    folded_life,
    folded_segments,
    life_key,
    segments_key,
)
from runfold.log.leaders import Leaders
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Life, Segments
from runfold_schemas.codec import Record

_LIFE_KEYS = life_key("")


@dataclass(slots=True)
class ListedRun:
    """The records under the two keys of a run."""

    life_value: bytes | None = None
    segments_value: bytes | None = None
    noted_ms: int = 0
    """When the last of them was written, in milliseconds since 1970, by Kafka's clock."""
    life_removed: bool = False
    segments_removed: bool = False
    """Whether the last record under the key removes what was there."""

    @property
    def is_removed(self) -> bool:
        """Whether compaction removes any of it."""
        return self.life_removed or self.segments_removed

    @property
    def life(self) -> Life | None:
        life = entry_of(_LIFE_KEYS, self.life_value)
        return life if isinstance(life, Life) else None

    @property
    def segments(self) -> Segments | None:
        segments = entry_of(SEGMENT_KEYS, self.segments_value)
        return segments if isinstance(segments, Segments) else None


@dataclass(slots=True)
class CatalogPass:
    """What a partition says up to `position`."""

    runs: dict[str, ListedRun] = field(default_factory=dict)
    position: int = 0
    lacks_archived: bool = False
    """Whether it says that it lacks archived runs."""

    async def read(self, settings: LogSettings, number: int, leaders: Leaders) -> None:
        """Reads on from `position` to the end. Claims are taken as they are, so a run of which
        somebody says that it is deleted is left alone.
        """
        topic = settings.topics.catalog
        reading = read(settings, topic, partition=number, first_offset=self.position, leaders=leaders)
        async with aclosing(reading) as batches:
            async for records in batches:
                for record in records:
                    self._take(record)
                    self.position = record.offset + 1

    def of(self, run_id: str) -> ListedRun:
        """What was read of a run, perhaps nothing."""
        return self.runs.get(run_id) or ListedRun()

    def _take(self, record: Record) -> None:
        key = record.key
        if key == ARCHIVE_KEY:
            self.lacks_archived = True
        elif key is not None and key.startswith((_LIFE_KEYS, SEGMENT_KEYS)):
            run_id = key.partition(b":")[2].decode(errors="replace")
            if key in (life_key(run_id), segments_key(run_id)):
                run = self.runs.setdefault(run_id, ListedRun())
                run.noted_ms = max(run.noted_ms, record.log_time)
                _fold(run, key, record.value)


def _fold(run: ListedRun, key: bytes, value: bytes | None) -> None:
    if key.startswith(_LIFE_KEYS):
        run.life_removed = value is None
        before = run.life
        if folded_life(before, key, value) != before:
            run.life_value = value
    else:
        run.segments_removed = value is None
        segments = run.segments
        if folded_segments(segments, key, value) != segments:
            run.segments_value = value
