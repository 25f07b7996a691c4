"""The newest records of runs that are read while they grow, from the log behind the stored pages.

A reader with `min_offset` knows that the event is in the log, so it need not wait until the
projector has stored it. The outcome of a record depends on the records before, so the rule of
outcomes is kept for a while for each run that was read ahead of the projector.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from runfold.log.newest import Newest, newest
from runfold.query.cache_room import CacheRoom
from runfold.query.log_ends import ConnectedEnds
from runfold.query.unforeseen import reading_run
from runfold_projections.admission import Admission, Admitted
from runfold_schemas.codec import decode_again
from runfold_schemas.errors import QuarantinedError
from runfold_schemas.topics import Partition

EVENTS_MAX: Final = 20_000
"""The longest run that is read ahead of the projector. Loading the ids of more events takes longer
than waiting for the projector.
"""

_KEPT_SECONDS: Final = 60.0

_SKIPS_SECONDS: Final = 2.0
"""How often a run that is read asks whether an operator skipped one of its records."""

_BYTES_MAX: Final = 32 * 1024 * 1024
"""The limit of all runs together."""

_ID_BYTES: Final = 150
"""What the id of an event takes at most."""

_RECORD_BYTES: Final = 2_000
"""What a record takes beside its value."""

_FETCHES_MAX: Final = 4


class UnstoredRecords(NamedTuple):
    """Records that the stored pages lack: those of a log from `begin` to `next_offset`, without
    their events.
    """

    begin: int
    next_offset: int
    records: Sequence[Admitted]

    def between(self, first_offset: int, end: int) -> list[Admitted]:
        """The records of `[first_offset, end)`, with events that the caller may change."""
        return [_decoded(each) for each in self.records if first_offset <= each.record.offset < end]


def _decoded(admitted: Admitted) -> Admitted:
    if admitted.outcome == "undecodable":
        return admitted
    # Its bytes were validated when it was admitted.
    (event,) = decode_again([admitted.record.value or b""])
    return admitted._replace(event=event)


class RecentRun:
    """The rule of outcomes after the first `next_offset` records of a log, and those of these
    records that the stored pages lack.
    """

    def __init__(self, at: Partition, admission: Admission, next_offset: int) -> None:
        self.at = at
        self.log_id = at.topic.rpartition(".")[2]
        self.admission = admission
        self.next_offset = next_offset
        self.begin = next_offset
        self._began_at = self._skips_at = time.monotonic()
        self._events = next_offset
        self._advancing = asyncio.Lock()
        self._records: list[Admitted] = []

    @property
    def is_old(self) -> bool:
        return time.monotonic() - self._began_at > _KEPT_SECONDS

    @property
    def size(self) -> int:
        """How many bytes it takes, roughly."""
        values = sum(len(admitted.record.value or b"") for admitted in self._records)
        return _ID_BYTES * self._events + _RECORD_BYTES * len(self._records) + values

    @property
    def wants_skips(self) -> bool:
        """Whether it is time to ask for the run's skips again."""
        return time.monotonic() - self._skips_at > _SKIPS_SECONDS

    def has_skips(self, skipped: Collection[range]) -> bool:
        """Whether the run was read with these skips. They are not asked for again for a while."""
        if frozenset(skipped) != frozenset(self.admission.skipped):
            return False
        self._skips_at = time.monotonic()
        return True

    def unstored(self, stored_end: int) -> UnstoredRecords | None:
        """The records behind the stored pages. None if some of them are not kept any more, or if
        the pages reach as far.
        """
        if not self.begin <= stored_end < self.next_offset:
            return None
        return UnstoredRecords(stored_end, self.next_offset, self._from(stored_end))

    async def advance(self, ends: ConnectedEnds, offset: int) -> bool:
        """Reads the log up to `offset`, if it is there and near. Returns False if the next record
        cannot be read. Raises `UnavailableError`, and `QuarantinedError` if a record up to
        `offset` cannot be admitted.
        """
        async with self._advancing:
            for _ in range(_FETCHES_MAX):
                if self.next_offset > offset:
                    break
                leaders = (await ends.get()).leaders
                read = await newest(leaders, self.at, first_offset=self.next_offset)
                if read is None:
                    return False
                if read.next_offset == self.next_offset:
                    break
                try:
                    self._admit(read)
                except QuarantinedError as error:
                    if error.offset is None or error.offset <= offset:
                        raise
                    break
        return True

    def drop_stored(self, stored_end: int) -> None:
        """Drops records that are in the pages."""
        self._records = self._from(stored_end)
        self.begin = max(self.begin, min(stored_end, self.next_offset))

    def _admit(self, read: Newest) -> None:
        for record in read.records:
            with reading_run(self.admission.run_id, offset=record.offset):
                admitted = self.admission.admit(record)
            self._records.append(admitted._replace(event=None))
            # One after the other: a record that cannot be admitted is not passed over.
            self.next_offset = record.offset + 1
            self._events += 1
        self.next_offset = read.next_offset

    def _from(self, offset: int) -> list[Admitted]:
        return [admitted for admitted in self._records if admitted.record.offset >= offset]


class RecentRuns:
    """The runs that were read ahead of the projector within a minute."""

    def __init__(self, room: CacheRoom | None = None) -> None:
        self._runs: OrderedDict[str, RecentRun] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._room = room or CacheRoom()
        self._room.join(self)
        self.size = 0

    def get(self, run_id: str, log_id: str | None = None) -> RecentRun | None:
        """The run, or a life of it."""
        self._drop_old()
        run = self._runs.get(run_id)
        if run is None or run.is_old or log_id not in (None, run.log_id):
            return None
        return run

    def keep(self, run_id: str, run: RecentRun) -> None:
        """Keeps the run as it is now. Call it again when the run has grown."""
        if self._runs.get(run_id) is not run:
            self.drop(run_id)
            self._runs[run_id] = run
        size = run.size
        self.size += size - self._sizes.get(run_id, 0)
        self._sizes[run_id] = size
        while self.size > _BYTES_MAX:
            self.drop_oldest()
        self._room.make_room()

    def drop_oldest(self) -> None:
        self.drop(next(iter(self._runs)))

    def drop(self, run_id: str) -> None:
        if self._runs.pop(run_id, None) is not None:
            self.size -= self._sizes.pop(run_id)

    def _drop_old(self) -> None:
        while self._runs and next(iter(self._runs.values())).is_old:
            self.drop(next(iter(self._runs)))
