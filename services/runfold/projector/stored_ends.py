"""Compares the ends of runs' logs with the stored states."""

from collections.abc import Mapping
from typing import NamedTuple

from runfold.log.ends import LogEnds
from runfold.store.runs import RunStore
from runfold_schemas.topics import RunTopic

_PORTION = 1_000
"""The number of runs that are compared at once."""

_WHOLE_SWEEPS = 30
"""One of so many comparisons is of all runs, because MongoDB may have been changed by hand."""


class Findings(NamedTuple):
    """The results of one look at the topics."""

    changed: list[str]
    """Parked runs whose log does not end at the stored state, but beyond it or before it."""
    deleted: list[RunTopic]
    """Deleted runs whose topic still exists, because the worker that was deleting it died."""
    unknown: dict[str, RunTopic]
    """Runs that are not stored, by topic, unless their log is empty: then the opener has died, or
    is about to write.
    """


class StoredEnds:
    """Remembers between two comparisons which runs agreed."""

    def __init__(self, ends: LogEnds, runs: RunStore) -> None:
        self._ends = ends
        self._runs = runs
        self._times = 0
        self._agreed: dict[str, int] = {}
        """The ends of logs that agreed with the stored states, by topic."""

    def forget(self) -> None:
        """Compares all runs with MongoDB again."""
        self._agreed.clear()

    async def compare(self, topics: Mapping[str, RunTopic]) -> Findings:
        """The findings about `topics`.

        MongoDB is asked only for runs whose log has changed since it agreed with the stored state,
        and for all of them every few minutes.
        """
        self._times += 1
        if self._times % _WHOLE_SWEEPS == 0:
            self._agreed.clear()
        self._agreed = {name: self._agreed[name] for name in topics if name in self._agreed}
        findings = Findings([], [], {})
        names = list(topics)
        for begin in range(0, len(names), _PORTION):
            ends = await self._ends.ends(names[begin : begin + _PORTION])
            await self._compare(
                {name: topics[name] for name in ends if self._differs(name, ends)}, ends, findings
            )
        return findings

    def _differs(self, name: str, ends: Mapping[str, int]) -> bool:
        return self._agreed.get(name) != ends[name]

    async def _compare(
        self, topics: Mapping[str, RunTopic], ends: Mapping[str, int], findings: Findings
    ) -> None:
        stored = await self._runs.ends_of(run.run_id for run in topics.values()) if topics else {}
        for name, run in topics.items():
            log_id, position = stored.get(run.run_id, (run.log_id, 0))
            if log_id != run.log_id:
                continue
            if position < 0:
                findings.deleted.append(run)
            elif ends[name] == position:
                self._agreed[name] = position
            elif run.run_id not in stored:
                findings.unknown[name] = run
            else:
                findings.changed.append(run.run_id)
