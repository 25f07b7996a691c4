"""The metrics of what a projector folds: events by type and outcome, whoever published them, and
how long they took from the log to MongoDB.
"""

import time
from collections.abc import Collection, Sequence
from typing import Final

from prometheus_client import Counter, Histogram

from runfold.projector.active import ActiveRun, Folded
from runfold.projector.suspects import Suspects

_EVENTS: Final = Counter(
    "runfold_folded_events",
    "Events of runs that this projector folded and stored, whoever published them",
    ["type", "outcome"],
)

_DELAY: Final = Histogram(
    "runfold_fold_delay_seconds",
    "From the append of an event to its storage, of the last event of each write",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600),
)

_UNKNOWN: Final = "unknown"


class FoldedEvents:
    """Counts for one worker. The metrics get the counts in `report`, because they cost more than a
    dictionary.
    """

    def __init__(self) -> None:
        self._accepted: dict[str, int] = {}
        self._others: dict[tuple[str, str], int] = {}

    def add(self, batch: Sequence[Folded], *, beaten: Collection[ActiveRun], suspects: Suspects) -> int:
        """Counts what a write has stored: its batch without the runs that another worker has stored
        before, and without the suspected ones. Returns the number of records.
        """
        accepted, others, count, newest = self._accepted, self._others, 0, 0
        for folded in batch:
            if folded.run in beaten or folded.run.run_id in suspects:
                continue
            newest = max(newest, folded.run.max_time) if folded.pages else newest
            for page in folded.pages:
                count += page.count
                for kind, events in page.tally.counts.items():
                    accepted[kind] = accepted.get(kind, 0) + events
                for name, events in page.tally.not_accepted.items():
                    others[name] = others.get(name, 0) + events
        if newest:
            _DELAY.observe(max(0.0, time.time() - newest / 1000))
        return count

    def report(self) -> None:
        """Adds the counts since the last call to the metrics."""
        accepted, self._accepted = self._accepted, {}
        others, self._others = self._others, {}
        for (kind, outcome), count in others.items():
            _EVENTS.labels(kind or _UNKNOWN, outcome).inc(count)
            if outcome == "late" and kind in accepted:
                accepted[kind] -= count  # late events count too
        for kind, count in accepted.items():
            _EVENTS.labels(kind, "accepted").inc(count)
