"""What a projector reports about itself to MongoDB every few seconds, so that an operator can ask
any API about all projectors, also about one that is away.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from runfold.projector.fold_lag import FoldLag
from runfold.projector.stuck import Watch
from runfold.projector.worker import Worker
from runfold.store.database import Database
from runfold.store.reports import ReportStore
from runfold_schemas.errors import UnavailableError

REPORT_SECONDS: Final = 5.0

_STUCK_MAX: Final = 100

_log = logging.getLogger(__name__)


def name_of_worker(worker_id: str | None) -> str:
    """The name under which this process reports."""
    return worker_id or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:4]}"


class Reporter:
    """Reports the workers of one process. `database` returns that of the installation, None while
    MongoDB is away.
    """

    def __init__(
        self,
        worker_id: str | None,
        *,
        database: Callable[[], Database | None],
        workers: Callable[[], Mapping[str, Worker]],
        lags: Callable[[], Mapping[str, FoldLag]],
        watches: Callable[[], Iterable[Watch]],
        failing: Callable[[], Mapping[str, datetime]],
        own: str,
    ) -> None:
        self._worker_id = name_of_worker(worker_id)
        self._database = database
        self._workers = workers
        self._lags = lags
        self._watches = watches
        self._failing = failing
        self._own = own
        self._started_at = datetime.now(UTC)
        self._prepared: Database = None
        self._catalogs: dict[str, list[list[int]]] = {}
        """By tenant: how far the catalog was taken, also after its worker has failed."""

    async def work(self) -> None:
        """Endless."""
        try:
            while True:
                await asyncio.sleep(REPORT_SECONDS)
                try:
                    await self.report()
                except Exception as error:  # noqa: BLE001  # no report is worth the projector
                    _log.info("nothing was reported: %s", error)
        finally:
            await self._leave()

    async def report(self) -> None:
        """Reports once. Raises `UnavailableError`."""
        if (database := self._database()) is None:
            return
        store = ReportStore(database)
        if self._prepared is not database:
            await store.create_indexes()
            self._prepared = database
        await store.save(self._worker_id, self._fields())

    async def _leave(self) -> None:
        """A process that ends in order is not away."""
        if (database := self._database()) is not None:
            with suppress(UnavailableError, TimeoutError):
                await asyncio.wait_for(ReportStore(database).leave(self._worker_id), 2)

    def _fields(self) -> dict[str, dict[str, Any]]:
        workers, lags = self._workers(), self._lags()
        self._catalogs = {name: taken for name, taken in self._catalogs.items() if name in lags}
        return {name: self._of(name, workers.get(name), lag) for name, lag in lags.items()}

    def _of(self, name: str, worker: Worker | None, lag: FoldLag) -> dict[str, Any]:
        partitions = sorted(worker.partitions) if worker is not None else []
        return {
            "started_at": self._started_at,
            "edition": worker.progress.edition if worker is not None else None,
            "partitions": partitions,
            "active_runs": worker.active_runs if worker is not None else 0,
            "backlog_runs": worker.backlog_runs if worker is not None else 0,
            "run_topics": worker.progress.run_topics if worker is not None else 0,
            # Without a worker, whoever reads the report counts.
            "lag_records": lag.records if worker is not None else 0,
            "lag_seconds": lag.seconds,
            "stalled_seconds": lag.stalled_seconds,
            "catalog": self._catalog(name, worker),
            "stuck": self._failures(name) + self._stuck(None if name == self._own else name),
        }

    def _failures(self, tenant: str) -> list[dict[str, Any]]:
        """Without the error, which may name servers of the installation."""
        if (since := self._failing().get(tenant)) is None:
            return []
        reason = "the worker of this tenant fails; the projector's log has the error"
        return [{"what": "tenant", "name": "", "reason": reason, "since": since}]

    def _catalog(self, name: str, worker: Worker | None) -> list[list[int]]:
        """How far the partitions of the catalog are taken: needed when nobody works."""
        if worker is not None:
            positions = sorted(worker.progress.catalog.items())
            self._catalogs[name] = [[at.partition, position] for at, (position, _) in positions]
        return self._catalogs.get(name, [])

    def _stuck(self, tenant: str | None) -> list[dict[str, Any]]:
        now = datetime.now(UTC).timestamp()
        return [
            {
                "what": watch.what,
                "name": name,
                "reason": watch.why,
                "since": datetime.fromtimestamp(now - seconds, UTC),
            }
            for watch in self._watches()
            if watch.tenant == tenant
            for name, seconds in watch.stuck_for()
        ][:_STUCK_MAX]
