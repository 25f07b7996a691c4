"""The metrics of the whole installation. Only the projector with the first partition of the catalog
counts, so sums over all projectors are right. A count takes at most one hundredth of the time.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import Gauge

from runfold.projector.worker import Worker
from runfold.store.database import Database
from runfold.store.edition import Edition
from runfold.store.reports import JOB_AWAY_SECONDS, Report, ReportStore
from runfold_schemas.topics import Partition

_PAUSE_SECONDS: Final = 15.0

_SHARE: Final = 100

_FIRST: Final = 0

_RUNS: Final = Gauge("runfold_runs", "Runs of the installation's own tenant", ["status"])
_DEAD_LETTERS: Final = Gauge(
    "runfold_dead_letters_kept",
    "Records in the topic of dead letters: a letter whose event was published again is two",
)
_REBUILDING: Final = Gauge("runfold_rebuild_running", "1 while a rebuild works, otherwise 0")
_REBUILT: Final = Gauge(
    "runfold_rebuild_progress_ratio", "The part of the records that the last rebuild has folded"
)
_VERIFIED: Final = Gauge(
    "runfold_verify_timestamp_seconds", "When `runfold verify` last compared everything, 0 if it never did"
)
_DIFFERENCES: Final = Gauge("runfold_verify_differences", "Differences that the last comparison left")

_log = logging.getLogger(__name__)


class Census:
    """Counts for the installation `prefix`, while `worker` has the first partition."""

    def __init__(
        self, prefix: str, *, database: Callable[[], Database | None], worker: Callable[[], Worker | None]
    ) -> None:
        self._prefix = prefix
        self._database = database
        self._worker = worker

    async def work(self) -> None:
        """Endless. A count that fails is repeated."""
        while True:
            began = time.monotonic()
            database, worker = self._database(), self._worker()
            if database is not None and worker is not None and _FIRST in worker.partitions:
                try:
                    await self.count(database, worker)
                except Exception as error:  # noqa: BLE001  # no count is worth the projector
                    _log.info("nothing was counted: %s", error)
                await asyncio.sleep(max(_PAUSE_SECONDS, _SHARE * (time.monotonic() - began)))
            else:
                _forget()
                await asyncio.sleep(1)

    async def count(self, database: Database, worker: Worker) -> None:
        """Counts once. Raises `UnavailableError`."""
        counts = await Edition.of(database, worker.progress.edition).runs.count_by_status()
        _RUNS.clear()
        for status, runs in counts.items():
            _RUNS.labels(status).set(runs)
        _DEAD_LETTERS.set(await worker.ends.count(Partition(worker.topics.dead_letters, 0)))
        reports = ReportStore(database)
        _tell_rebuild(await reports.job("rebuild", self._prefix))
        verified = await reports.job("verify", self._prefix)
        _VERIFIED.set(verified.seen_at.timestamp() if verified is not None else 0)
        _DIFFERENCES.set(verified.fields["differences"] if verified is not None else 0)


def _tell_rebuild(report: Report | None) -> None:
    running = (
        report is not None and report.fields["status"] == "running" and report.age_seconds < JOB_AWAY_SECONDS
    )
    _REBUILDING.set(int(running))
    if report is not None:
        done, total = report.fields["done_records"], report.fields["total_records"]
        _REBUILT.set(done / total if total else 1.0)


def _forget() -> None:
    """Another projector counts."""
    _RUNS.clear()
    for gauge in (_DEAD_LETTERS, _REBUILDING, _REBUILT, _VERIFIED, _DIFFERENCES):
        gauge.set(0)
