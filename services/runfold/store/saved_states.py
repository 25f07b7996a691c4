"""The states of live runs that this process saved last, so that the next save of a run leaves out
what has not changed.
"""

from collections.abc import Iterable
from typing import Final

from runfold.store.run_state import RunState
from runfold_projections.run import LIVE

_RUNS_MAX: Final = 20_000


class SavedStates:
    """The states by run. The run that was saved the longest time ago is forgotten first."""

    def __init__(self) -> None:
        self._states: dict[str, RunState] = {}

    def base_of(self, state: RunState) -> RunState | None:
        """The state that the run's document should have, if it is an earlier state of this life."""
        last = self._states.get(state.run_id)
        is_earlier = (
            last is not None
            and last.log_id == state.log_id
            and last.record.next_offset < state.record.next_offset
        )
        return last if is_earlier else None

    def note(self, states: Iterable[RunState]) -> None:
        for state in states:
            self._states.pop(state.run_id, None)
            if state.record.status in LIVE:
                self._states[state.run_id] = state
        while len(self._states) > _RUNS_MAX:
            del self._states[next(iter(self._states))]

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self._states.pop(run_id, None)
