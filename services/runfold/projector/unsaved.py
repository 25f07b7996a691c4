"""The states of runs that are folded and not saved yet.

The rule of saving: a run's state is saved when all changes of shared topics up to that state are
durable there. So a worker that begins at a saved state has nothing left to forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from runfold.projector.active import Folded
from runfold.store.runs import RunState
from runfold_projections.state import Forward, Value

FORWARDS_BYTES_MAX = 16 * 1024 * 1024
"""The limit for the events that wait to be forwarded, of all runs together. Events beyond it are
folded again later.
"""


@dataclass(slots=True, eq=False)
class Unsaved:
    """The unsaved data of one run."""

    state: RunState
    """The changes of the events up to this state are durable, or in `forwards`."""
    next_offset: int
    """The position of the fold. It is beyond `state` if there was no room for further forwards."""
    values: dict[str, Value] = field(default_factory=dict)
    forwards: list[Forward] = field(default_factory=list)
    forwards_bytes: int = 0
    durable: RunState | None = None
    """The state up to which the forwards are durable, while later forwards wait."""
    is_new: bool = False
    """Whether anything was added since the last save."""

    @property
    def is_whole(self) -> bool:
        """Whether `state` includes all events that were folded."""
        return self.state.record.next_offset >= self.next_offset

    @property
    def to_save(self) -> RunState | None:
        """The last state without waiting forwards."""
        return self.durable if self.forwards else self.state


class Forwarding:
    """The waiting forwards of one run when their forwarding began."""

    def __init__(self, run: Unsaved) -> None:
        self.run = run
        self.state = run.state
        self.forwards = run.forwards.copy()
        self.size = run.forwards_bytes


class UnsavedRuns:
    """The unsaved data of all runs."""

    def __init__(self) -> None:
        self._runs: dict[str, Unsaved] = {}
        self._bytes = 0

    def all(self) -> list[Unsaved]:
        return list(self._runs.values())

    @property
    def has_waiting(self) -> bool:
        """Whether a run has changes to be forwarded."""
        return any(run.forwards or not run.is_whole for run in self._runs.values())

    def forwarding(self) -> dict[str, object]:
        """The runs with changes to be forwarded, each with the position up to which they are."""
        return {
            run.state.run_id: run.durable.record.next_offset if run.durable else -1
            for run in self._runs.values()
            if run.forwards or not run.is_whole
        }

    def waiting(self) -> list[Forwarding]:
        """The waiting forwards of each run that has some."""
        return [Forwarding(run) for run in self._runs.values() if run.forwards]

    def to_fold_again(self) -> list[Unsaved]:
        """The runs that wait for room, if there is room now."""
        has_room = self._bytes <= FORWARDS_BYTES_MAX // 2
        return [run for run in self._runs.values() if not run.is_whole] if has_room else []

    def add(self, folded: Folded) -> None:
        """Adds folded events of a run. Without room for their forwards, the run's state stays."""
        run = self._runs.setdefault(
            folded.state.run_id, Unsaved(folded.before, folded.before.record.next_offset)
        )
        run.is_new = True
        run.values.update(folded.values)
        has_room = self._bytes + folded.forwards_bytes <= FORWARDS_BYTES_MAX
        if run.is_whole and (has_room or not folded.forwards):
            self.extend(run, folded)
        run.next_offset = max(run.next_offset, folded.state.record.next_offset)

    def extend(self, run: Unsaved, folded: Folded) -> None:
        """Adds the events that follow the state of `run`, unless the run was dropped meanwhile."""
        if self._runs.get(run.state.run_id) is not run:
            return
        run.state = folded.state
        run.forwards += folded.forwards
        run.forwards_bytes += folded.forwards_bytes
        self._bytes += folded.forwards_bytes

    def mark_forwarded(self, done: Sequence[Forwarding]) -> None:
        """Removes forwards that are durable now."""
        for forwarding in done:
            run = forwarding.run
            run.durable = forwarding.state
            del run.forwards[: len(forwarding.forwards)]
            run.forwards_bytes -= forwarding.size
            if self._runs.get(run.state.run_id) is run:
                self._bytes -= forwarding.size

    def mark_saved(self, run: Unsaved, state: RunState) -> None:
        """Drops the run if `state`, which was saved, is all there is."""
        if run.durable is state:
            run.durable = None
        if run.state is state and run.is_whole and not run.forwards and not run.values:
            self._discard(run)

    def forget(self, log_ids: Sequence[str]) -> None:
        """Drops the runs with these logs."""
        for run in self.all():
            if run.state.log_id in log_ids:
                self._discard(run)

    def _discard(self, run: Unsaved) -> None:
        if self._runs.get(run.state.run_id) is run:
            del self._runs[run.state.run_id]
            self._bytes -= run.forwards_bytes
