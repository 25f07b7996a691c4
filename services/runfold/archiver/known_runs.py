"""The runs with topics, as far as an archiver has read its partitions of the catalog.

Runs whose topics are all deleted are forgotten. If such a run goes on, the list of topics names it
again, and the partition is read once more.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from runfold.archive.table import Fence
from runfold.archiver.deleted_runs import DeletedRuns
from runfold.log.catalog import (
    SEGMENT_KEYS,
    entry_of,
    folded_life,
    folded_segments,
    life_key,
    partition_of,
    segments_key,
)
from runfold_schemas.catalog import Bell, Life, Segments, Skip
from runfold_schemas.codec import Record
from runfold_schemas.topics import Topics, base_of

_LONGEST_BASE: Final = 10**18


@dataclass(slots=True)
class KnownRun:
    """A run of an own partition of the catalog."""

    number: int
    """The partition."""
    life: Life
    noted_ms: int
    """When the catalog last named the run, in milliseconds since 1970, by Kafka's clock."""
    entry: Segments | None = None
    entry_ms: int = 0
    """When the entry was written."""
    bases: set[int] = field(default_factory=set)
    """The bases of its topics, as far as they are known. They may not exist."""
    skipped: frozenset[range] = frozenset()
    """The offsets that an operator skipped."""
    archived_end: int = 0
    archived_records: int = 0
    """What the archive has of its log, as far as it was looked at: see `Segments`."""
    not_before: float = 0.0
    """When the run is looked at again, in seconds of the monotonic clock."""
    failure: str | None = None
    """Why the run cannot be archived."""
    is_sealing: bool = False
    """Whether its last topic may be sealed, and no entry says where the log goes on: publishers
    wait for that.
    """
    is_overwritten: bool = False
    """Whether another record has come under the key of the entry, which compaction would keep."""

    @property
    def run_id(self) -> str:
        return self.life.run_id

    @property
    def log_id(self) -> str:
        return self.life.log_id

    @property
    def open_base(self) -> int:
        """The base of the topic that takes events."""
        return 0 if self.entry is None else self.entry.base

    @property
    def is_sealed(self) -> bool:
        """Whether it has a sealed topic that is not archived, by its entry."""
        return self.entry is not None and self.entry.sealed_base is not None

    @property
    def is_open(self) -> bool:
        """Whether its last topic may be sealed."""
        return self.open_base in self.bases and not self.is_sealed

    def past_bases(self) -> list[int]:
        """The bases of topics that are archived."""
        if self.entry is None:
            return []
        first = self.entry.base if self.entry.sealed_base is None else self.entry.sealed_base
        return sorted(base for base in self.bases if base < first)

    def postpone(self, seconds: float) -> None:
        self.not_before = time.monotonic() + seconds


class ListedTopics:
    """The topics of runs in a list of all topics."""

    def __init__(self, topics: Topics, names: Iterable[str]) -> None:
        self._topics = topics
        self.bases: dict[str, set[int]] = {}
        """The bases of the topics of each log, by the beginning of their names."""
        for name in names:
            if topics.has(name) and name.startswith(topics.run_prefix):
                base = base_of(name)
                log = name if base == 0 else name.rpartition(".")[0]
                self.bases.setdefault(log, set()).add(base)

    def bases_of(self, run_id: str, log_id: str) -> set[int]:
        """The bases of the topics of a log. A hash may stand for the run in later ones."""
        longest = self._topics.segment(run_id, log_id, _LONGEST_BASE).rpartition(".")[0]
        found: set[int] = set()
        for log in {self._topics.run(run_id, log_id), longest}:
            found |= self.bases.get(log, set())
        return found


class PartitionRuns:
    """The runs of one partition of the catalog."""

    def __init__(self, topics: Topics, number: int) -> None:
        self.number: Final = number
        self.position = 0
        """The offset behind the last record that was taken."""
        self.fence: Fence | None = None
        """By which the archive knows the owner of the partition."""
        self.runs: dict[str, KnownRun] = {}
        self.deleted = DeletedRuns()
        self._topics = topics
        self._entries: dict[str, Record] = {}
        """While the partition is read, the entries of runs whose lives come later. Compaction may
        leave a life behind the entry.
        """
        self._others: set[str] = set()
        """The listed logs that the catalog does not name."""
        self._forgotten_rang = False
        """Whether a run rang that is not known any more."""

    @property
    def unnamed(self) -> Collection[str]:
        """The listed logs of this partition that the catalog does not name."""
        return self._others

    def take(self, record: Record, listed: ListedTopics | None = None) -> None:
        """Takes a record of the partition. With `listed`, only runs with topics are noted."""
        key = record.key
        if key is not None and key.startswith(SEGMENT_KEYS):
            self._take_segments(key, record, is_reading=listed is not None)
        entry = entry_of(key, record.value)
        if key is None or entry is None:
            return
        match entry:
            case Life():
                self._take_life(entry, key, record, listed)
            case Bell():
                if (run := self.runs.get(entry.run_id)) is not None:
                    run.noted_ms = record.log_time
                    run.bases.add(run.open_base)
                else:
                    self._forgotten_rang = True
            case Skip():
                self._take_skip(entry)

    def _take_life(self, life: Life, key: bytes, record: Record, listed: ListedTopics | None) -> None:
        if life_key(life.run_id) != key:
            return
        known = self.runs.get(life.run_id)
        folded = folded_life(known.life if known else None, key, record.value)
        if folded is None or folded.deleted:
            gone = self.runs.pop(life.run_id, None)
            if folded is not None:
                self.deleted.note_life(folded.run_id, folded.log_id, offset=record.offset)
            if gone is not None and gone.entry is not None:
                self.deleted.note_entry(gone.run_id, gone.log_id, offset=record.offset)
        elif known is not None:
            known.noted_ms = record.log_time if folded != known.life else known.noted_ms
            known.life = folded
        else:
            bases = {0} if listed is None else listed.bases_of(life.run_id, life.log_id)
            if bases:
                run = self.runs[life.run_id] = KnownRun(self.number, folded, record.log_time, bases=bases)
                if (earlier := self._entries.get(life.run_id)) is not None:
                    entry = folded_segments(None, segments_key(life.run_id), earlier.value)
                    if entry is not None and entry.log_id == run.log_id:
                        run.entry, run.entry_ms = entry, earlier.log_time

    def _take_segments(self, key: bytes, record: Record, *, is_reading: bool) -> None:
        run_id = key.removeprefix(SEGMENT_KEYS).decode(errors="replace")
        run, entry = self.runs.get(run_id), entry_of(key, record.value)
        if run is None and segments_key(run_id) == key:
            log_id = entry.log_id if isinstance(entry, Segments) else None
            self.deleted.note_entry(run_id, log_id, offset=record.offset)
            if is_reading:
                self._note_entry(run_id, key, record)
        if run is None or segments_key(run.run_id) != key:
            return
        if isinstance(entry, Segments) and (entry.run_id, entry.log_id) == (run.run_id, run.log_id):
            folded = folded_segments(run.entry, key, record.value)
            if folded != run.entry:
                run.entry, run.entry_ms = folded, record.log_time
                run.not_before, run.failure, run.is_sealing = 0.0, None, False
        run.is_overwritten = run.entry is not None and entry != run.entry

    def _note_entry(self, run_id: str, key: bytes, record: Record) -> None:
        before = self._entries.get(run_id)
        current = folded_segments(None, key, before.value) if before is not None else None
        if folded_segments(current, key, record.value) != current:
            self._entries[run_id] = record

    def _take_skip(self, skip: Skip) -> None:
        named = self._topics.parse_run(skip.topic)
        run = self.runs.get(named.run_id) if named is not None else None
        if run is not None and named is not None and run.log_id == named.log_id:
            run.skipped |= {skip.offsets}

    def lacks(self, listed: ListedTopics, logs: Mapping[str, int]) -> bool:
        """Whether there are topics of this partition that no known run has, so that the partition
        has to be read again. `logs` are all listed logs with their partitions.
        """
        named: set[str] = set()
        for run in self.runs.values():
            run.bases |= listed.bases_of(run.run_id, run.log_id)
            named.add(self._topics.run(run.run_id, run.log_id))
        others = {log for log, number in logs.items() if number == self.number} - named
        is_lacking = self._forgotten_rang or bool(others - self._others)
        self._others, self._forgotten_rang = others, False
        return is_lacking

    def anew(self) -> "PartitionRuns":
        """The partition as it is before a reading of all of it."""
        again = PartitionRuns(self._topics, self.number)
        again.deleted = DeletedRuns(since=self.position)
        return again

    def read_again(self, again: "PartitionRuns") -> None:
        """Takes the runs of a later reading."""
        self.deleted.take(again.deleted)
        for run_id, run in again.runs.items():
            if (before := self.runs.get(run_id)) is not None:
                run.not_before, run.failure = before.not_before, before.failure
                run.is_sealing = before.is_sealing and before.open_base == run.open_base
        self.runs, self.position = again.runs, again.position

    def forget(self, runs: Collection[KnownRun]) -> None:
        """Forgets runs without topics."""
        for run in runs:
            if not run.bases and self.runs.get(run.run_id) is run:
                del self.runs[run.run_id]


def listed_logs(topics: Topics, listed: ListedTopics) -> Iterator[tuple[str, int]]:
    """The listed logs whose names have their runs, and the partitions of these."""
    for log in listed.bases:
        if (run := topics.parse_run(log)) is not None:
            yield log, partition_of(topics, run.run_id)
