"""What is folded of the runs and not saved yet, and the rule of saving: a run's state is saved when
all that the events up to it change of shared state is durable in `{prefix}.sessions`. So whoever
begins at a saved state has nothing left to forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from runfold.projector.active import Folded
from runfold.store.runs import RunState
from runfold_projections.state import Forward, Value

FORWARDS_BYTES_MAX = 16 * 1024 * 1024
"""Of the events whose changes of shared state wait, of all runs together. What comes on top is
folded again, later.
"""


@dataclass(slots=True, eq=False)
class Unsaved:
    """One run's."""

    state: RunState
    """What is to be forwarded of the events up to here is in `forwards`, or durable."""
    next_offset: int
    """Where the fold is; behind `state` where there was no room for what is to be forwarded."""
    values: dict[str, Value] = field(default_factory=dict)
    forwards: list[Forward] = field(default_factory=list)
    forwards_bytes: int = 0
    durable: RunState | None = None
    """As far as the forwards are durable, while later ones wait."""
    is_new: bool = False
    """Whether anything came since it was looked at last."""

    @property
    def is_whole(self) -> bool:
        return self.state.record.next_offset >= self.next_offset

    @property
    def to_save(self) -> RunState | None:
        return self.durable if self.forwards else self.state


class Forwarding:
    """Of one run: what was waiting when its forwarding began."""

    def __init__(self, one: Unsaved) -> None:
        self.one = one
        self.state = one.state
        self.forwards = one.forwards.copy()
        self.size = one.forwards_bytes


class UnsavedRuns:
    def __init__(self) -> None:
        self._runs: dict[str, Unsaved] = {}
        self._bytes = 0

    def all(self) -> list[Unsaved]:
        return list(self._runs.values())

    @property
    def has_waiting(self) -> bool:
        return any(one.forwards or not one.is_whole for one in self._runs.values())

    def waiting(self) -> list[Forwarding]:
        """The runs that have something to be forwarded."""
        return [Forwarding(one) for one in self._runs.values() if one.forwards]

    def to_fold_again(self) -> list[Unsaved]:
        """The runs that wait for room, while there is room."""
        has_room = self._bytes <= FORWARDS_BYTES_MAX // 2
        return [one for one in self._runs.values() if not one.is_whole] if has_room else []

    def add(self, folded: Folded) -> None:
        one = self._runs.setdefault(
            folded.state.run_id, Unsaved(folded.before, folded.before.record.next_offset)
        )
        one.is_new = True
        one.values.update(folded.values)
        has_room = self._bytes + folded.forwards_bytes <= FORWARDS_BYTES_MAX
        if one.is_whole and (has_room or not folded.forwards):
            self.go_on(one, folded)
        one.next_offset = max(one.next_offset, folded.state.record.next_offset)

    def go_on(self, one: Unsaved, folded: Folded) -> None:
        """Takes in what follows on the state of `one`."""
        one.state = folded.state
        one.forwards += folded.forwards
        one.forwards_bytes += folded.forwards_bytes
        self._bytes += folded.forwards_bytes

    def forwarded(self, done: Sequence[Forwarding]) -> None:
        """What these had is durable."""
        for part in done:
            one = part.one
            one.durable = part.state
            del one.forwards[: len(part.forwards)]
            one.forwards_bytes -= part.size
            if self._runs.get(one.state.run_id) is one:
                self._bytes -= part.size

    def saved(self, one: Unsaved, state: RunState) -> None:
        if one.durable is state:
            one.durable = None
        if one.state is state and one.is_whole and not one.forwards and not one.values:
            self._discard(one)

    def forget(self, log_ids: Sequence[str]) -> None:
        for one in self.all():
            if one.state.log_id in log_ids:
                self._discard(one)

    def _discard(self, one: Unsaved) -> None:
        if self._runs.get(one.state.run_id) is one:
            del self._runs[one.state.run_id]
            self._bytes -= one.forwards_bytes
