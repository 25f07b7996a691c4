"""The runs that a process publishes to, call by call.

A `Run` of the client remembers when it last woke the projector and whether it has ended. So one
object serves all calls that name its run. The runs that were used last are kept.
"""

from collections import OrderedDict
from typing import Unpack

from runfold.client.run import Run
from runfold.client.runfold import Runfold, RunOptions


class Runs:
    def __init__(self, *, runs_max: int = 10_000) -> None:
        self._runs_max = runs_max
        self._runs: OrderedDict[str, Run] = OrderedDict()

    async def get(self, runfold: Runfold, run_id: str) -> Run:
        """Raises `RunNotFoundError`, `InvalidIdError`, `UnavailableError`."""
        if run_id in self._runs:
            return self._used(run_id)
        return self._kept(await runfold.get_run(run_id))

    async def open(
        self, runfold: Runfold, *, agent_id: str, **options: Unpack[RunOptions]
    ) -> tuple[Run, bool]:
        """The run, and whether this call has opened it. Takes and raises what `Runfold.open_run`
        does.
        """
        run = await runfold.open_run(agent_id=agent_id, **options)
        return self._kept(run), run.is_new

    def _kept(self, run: Run) -> Run:
        # A concurrent request may have kept another object. It has published, so it knows more.
        self._runs.setdefault(run.run_id, run)
        if len(self._runs) > self._runs_max:
            self._runs.popitem(last=False)
        return self._used(run.run_id)

    def _used(self, run_id: str) -> Run:
        self._runs.move_to_end(run_id)
        return self._runs[run_id]
