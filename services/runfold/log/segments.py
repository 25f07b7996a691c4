"""Where the logs of runs lie, as far as a process has read it in the catalog.

    archived records | a sealed topic, if any | gap | the last topic, if it exists

A log that was never sealed has no entry: it is the topic of the run. A reader learns of a seal from
the log itself: a seal mark is the last record of a sealed topic, and the topic of archived records
is missing. Then the entry is looked up in the catalog.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from runfold_schemas.catalog import Segments
from runfold_schemas.topics import Topics

_ENTRIES_MAX: Final = 20_000
"""The number of remembered entries: about 8 MB. A forgotten one is looked up again."""

LookUp = Callable[[str], Awaitable[Segments | None]]
"""Reads the entry of a run in the catalog as it is now. May raise `UnavailableError`."""


class Stretch(NamedTuple):
    """A part of a log that lies at one place."""

    topic: str | None
    """The topic that has the records. None if they are archived."""
    begin: int
    """The first offset that records of this stretch may have."""
    end: int | None
    """The offset behind the stretch. None for the last topic of the log."""


class _Entry(NamedTuple):
    """What a book keeps of an entry. A model of it has 1.4 KB."""

    base: int
    end: int
    sealed_base: int | None
    archived_end: int | None
    archived_records: int | None


class SegmentBook:
    """Where the logs of runs under one prefix lie. Entries only move forward."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """By the name of the log, which is the name of its first topic."""
        self.look_up: LookUp | None = None
        """Reads an entry, if this process has a view of the catalog."""

    def take(self, entry: Segments) -> None:
        """Takes an entry of the catalog. Entries come in their order, perhaps again."""
        log = self._topics.run(entry.run_id, entry.log_id)
        current = self.of_topic(log)
        if current is not None and not follows(current, entry):
            return
        self._entries[log] = _Entry(*(getattr(entry, name) for name in _Entry._fields))
        self._entries.move_to_end(log)
        if len(self._entries) > _ENTRIES_MAX:
            self._entries.popitem(last=False)

    def of(self, run_id: str, log_id: str) -> Segments | None:
        """Where the log of a run lies. None if it was not sealed, as far as this book knows."""
        return self.of_topic(self._topics.run(run_id, log_id)) if self._entries else None

    def of_topic(self, log: str) -> Segments | None:
        """The same by the name of the log."""
        entry = self._entries.get(log)
        if entry is None or (run := self._topics.parse_run(log)) is None:
            return None
        return Segments.model_construct(**run._asdict(), **entry._asdict())

    def forget(self, run_id: str, log_id: str) -> None:
        """Forgets the log of a run that was deleted."""
        self._entries.pop(self._topics.run(run_id, log_id), None)

    def stretch(self, log: str, offset: int) -> Stretch:
        """The place of the record at `offset` of a log, or of the next one."""
        entry = self._entries.get(log)
        if entry is None:
            return Stretch(log, 0, None)
        if offset >= entry.end:
            return Stretch(self._segment(log, entry.base), entry.base, None)
        if entry.sealed_base is None:
            return Stretch(None, 0, entry.end)
        if offset < entry.sealed_base:
            return Stretch(None, 0, entry.sealed_base)
        return Stretch(self._segment(log, entry.sealed_base), entry.sealed_base, entry.end)

    def last_topic(self, log: str) -> str:
        """The last topic of a log, which takes new records. It may not exist."""
        entry = self._entries.get(log)
        return log if entry is None else self._segment(log, entry.base)

    def _segment(self, log: str, base: int) -> str:
        run = self._topics.parse_run(log)
        assert run is not None
        return self._topics.segment(*run, base)


def follows(current: Segments, entry: Segments) -> bool:
    """Whether an entry of the same log counts after `current`.

    Two archivers may seal one topic at the same time and choose two bases: the first one counts.
    """
    if entry.base == current.base:
        return entry.sealed_base is None and entry != current
    return entry.base > current.base and (entry.sealed_base is None or entry.sealed_base >= current.base)
