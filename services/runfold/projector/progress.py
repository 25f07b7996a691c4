"""What waits for a worker to be stored: of its active runs, of the shared topics, and of the
catalog. The worker keeps all of this anyway, so a look costs no request, and nothing per record.
"""

from collections.abc import Collection, Mapping

from runfold.projector.active import ActiveRun
from runfold.projector.backlog import Backlog
from runfold.projector.fold_lag import Waiting
from runfold.projector.intake import Intake
from runfold.projector.shared import SharedTopics
from runfold_schemas.topics import Partition


class WorkerProgress:
    """The progress of one worker, whose active runs are `active`."""

    def __init__(
        self,
        active: Mapping[str, ActiveRun],
        backlog: Backlog,
        shared: SharedTopics,
        intake: Intake,
        edition: str,
    ) -> None:
        self.edition = edition
        self._active = active
        self._shared = shared
        self._backlog = backlog
        self._intake = intake
        self.catalog: dict[Partition, tuple[int, int]] = {}
        """The position and the end of each partition of the catalog that was asked for."""
        self.unread: dict[Partition, None] = {}
        """The own partitions of the catalog that are not read yet."""
        self.run_topics = 0
        """The number of topics of own runs in the last sweep."""

    @property
    def all_partitions(self) -> int:
        """The number of partitions of the catalog, 0 if it is unknown."""
        return self._intake.partitions or 0

    @property
    def is_settled(self) -> bool:
        """Whether the worker has loaded what it owns, so that `waiting` has all of it."""
        return self._intake.after is not None and self._intake.after.done()

    @property
    def loaded_runs(self) -> int:
        return len(self._active)

    def expect(self, catalog: str, own: Collection[int]) -> None:
        """The worker owns these partitions of the topic `catalog` from now on."""
        self.unread = dict.fromkeys(Partition(catalog, number) for number in sorted(own))

    def note_catalog(self, at: Partition, position: int, end: int) -> None:
        """Notes how far a partition of the catalog is taken."""
        self.catalog[at] = position, end
        self.unread.pop(at, None)

    def waiting(self, own: Collection[int]) -> dict[Partition, Waiting]:
        """Everything that waits in the partitions with these numbers of the catalog."""
        waiting = {}
        for run in self._active.values():
            end = self._backlog.end(run)
            if end is None:
                if self._backlog.has(run):
                    waiting[run.at] = Waiting(run.stored_offset, None, run.max_time)
            elif end > run.stored_offset:
                waiting[run.at] = Waiting(run.stored_offset, end, run.max_time)
        for at, stored in self._shared.reached.items():
            end = self._shared.tail.end(at)
            if end is None or end > stored:
                waiting[at] = Waiting(stored, end)
        for at, (position, end) in self.catalog.items():
            if at.partition in own and end > position:
                waiting[at] = Waiting(position, end)
        for at in self.unread:
            waiting.setdefault(at, Waiting(0, None))
        return waiting
