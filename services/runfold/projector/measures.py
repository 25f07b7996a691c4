"""The metrics of a projector about what waits: its lag, its backlog, its partitions. They are right
also while no worker works, because they are what alerts are made of.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, get_args

from prometheus_client import Gauge

from runfold.projector.fold_lag import FoldLag
from runfold.projector.worker import Worker
from runfold_schemas.lists import QuarantineKind

_LOOK_SECONDS: Final = 1.0

STALLED_SECONDS: Final = 30.0
"""How long nothing may be folded while records wait, before the projector is not ready."""

_ACTIVE: Final = Gauge("runfold_active_runs", "Runs that this projector tails")
_BACKLOG: Final = Gauge("runfold_backlog_runs", "Runs with records that this projector has not folded yet")
_PARTITIONS: Final = Gauge("runfold_catalog_partitions", "Catalog partitions that this projector owns")
_ALL_PARTITIONS: Final = Gauge(
    "runfold_catalog_partitions_expected",
    "Partitions of the catalog, 1 before this projector knows their number",
)
_QUARANTINED: Final = Gauge(
    "runfold_quarantined", "Runs, keys and records of this projector's partitions in quarantine", ["kind"]
)
_TOPICS: Final = Gauge("runfold_run_topics", "Topics of runs of this projector's partitions")
_LAG_RECORDS: Final = Gauge("runfold_fold_lag_records", "Records that this projector has not stored yet")
_LAG_SECONDS: Final = Gauge(
    "runfold_fold_lag_seconds",
    "Age of the oldest record that this projector has not stored, or the time for which it cannot tell",
)


class Measures:
    """The lag of each tenant that a projector works for. `own` is the worker of the installation,
    None while there is none, and `hosted` has those of further tenants that are not parked, by
    name. The lag of a tenant stays while its worker fails again and again.
    """

    def __init__(
        self, prefix: str, own: Callable[[], Worker | None], hosted: Callable[[], Mapping[str, Worker | None]]
    ) -> None:
        self._prefix = prefix
        self._own = own
        self._hosted = hosted
        self.lags: dict[str, FoldLag] = {prefix: FoldLag()}
        _ALL_PARTITIONS.set(1)

    async def work(self) -> None:
        """Endless."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def own(self) -> FoldLag:
        """The lag of the installation itself."""
        return self.lags[self._prefix]

    def look(self) -> None:
        """Looks at all workers, and sets the metrics."""
        own, hosted = self._own(), self._hosted()
        named = {self._prefix: own, **hosted}
        workers = {name: worker for name, worker in named.items() if worker is not None}
        self.lags = {name: self.lags.get(name) or FoldLag() for name in (self._prefix, *hosted)}
        for name, worker in workers.items():
            if worker.partitions and worker.progress.is_settled:
                self.lags[name].look(worker.progress.waiting(worker.partitions), folded=worker.events)
            worker.folded_events.report()
        _ACTIVE.set(sum(worker.active_runs for worker in workers.values()))
        _BACKLOG.set(sum(worker.backlog_runs for worker in workers.values()))
        _PARTITIONS.set(len(own.partitions) if own is not None else 0)
        if own is not None:
            _ALL_PARTITIONS.set(max(1, own.progress.all_partitions))
        _TOPICS.set(sum(worker.progress.run_topics for worker in workers.values()))
        _LAG_RECORDS.set(sum(lag.records for lag in self.lags.values()))
        _LAG_SECONDS.set(max(lag.seconds for lag in self.lags.values()))
        counts = sum((worker.quarantine.counts() for worker in workers.values()), Counter[QuarantineKind]())
        for kind in get_args(QuarantineKind):
            _QUARANTINED.labels(kind).set(counts[kind])
