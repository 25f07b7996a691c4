"""The projector's process: a worker on the current edition, health and metrics.

The pointer moves to another edition when a rebuild has caught up, or when the database was dropped.
Then a worker for the new edition starts at once. The old worker stops before readers stop using the
old edition, so that the new edition includes the last data that they saw there.
"""

import asyncio
import logging

from prometheus_client import Counter, Gauge

from runfold.http.app import new_app, serve
from runfold.projector.worker import Worker, connect_worker
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.editions import POINTER_LOOK_SECONDS, RETIRED_WRITTEN, Editions
from runfold_schemas.errors import ConfigurationError, UnavailableError

_RETRY_SECONDS = 1.0

_ACTIVE = Gauge("runfold_active_runs", "Runs that this projector tails")
_BACKLOG = Gauge("runfold_backlog_runs", "Runs with records that this projector has not folded yet")
_PARTITIONS = Gauge("runfold_catalog_partitions", "Catalog partitions that this projector owns")
_FOLDED = Counter("runfold_folded_records", "Records folded by this projector")

_log = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Projects until the process is asked to stop."""
    projector = Projector(settings)
    app = new_app("Runfold projector", ready=projector.check_ready)
    projecting = asyncio.create_task(projector.project())
    serving = asyncio.create_task(serve(app, host=settings.host, port=settings.port + 1))
    try:
        await asyncio.wait({projecting, serving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        projecting.cancel()
        serving.cancel()
        await asyncio.gather(projecting, serving, return_exceptions=True)
    if not projecting.cancelled() and (failure := projecting.exception()) is not None:
        raise failure


class Projector:
    """Keeps a worker on the current edition, whatever Kafka and MongoDB do meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker: Worker | None = None
        self._folded = 0
        self._failure: str | None = None

    async def check_ready(self) -> None:
        if self._worker is None or not self._worker.partitions:
            raise UnavailableError("Kafka", reason="this projector owns no partition of the catalog yet")

    async def project(self) -> None:
        """Endless. After an error of Kafka or MongoDB it waits and starts again from the stored
        state. It does the same after a defect, which a single record may cause: it logs the trace
        once, and the service is not ready meanwhile.
        """
        while True:
            try:
                async with connect(self._settings.mongo, self._settings.database) as database:
                    await self._follow_editions(database)
            except* UnavailableError as group:
                _log.warning("%s; trying again in %s s", _first(group), _RETRY_SECONDS)
            except* ConfigurationError:
                raise
            except* Exception as group:  # noqa: BLE001  # one run's defect must not end the health of all
                self._log_defect(group)
            self._worker = None
            await asyncio.sleep(_RETRY_SECONDS)

    def _log_defect(self, group: BaseExceptionGroup[BaseException]) -> None:
        error = _first(group)
        failure = f"{type(error).__name__}: {error}"
        trace = group if failure != self._failure else None
        _log.error("%s; trying again in %s s", failure, _RETRY_SECONDS, exc_info=trace)
        self._failure = failure

    async def _follow_editions(self, database: Database) -> None:
        editions = Editions(database)
        current: str | None = None
        working: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                pointed = await editions.current_or_first()
                if pointed != current:
                    if current is not None and working is not None:
                        tasks.create_task(self._retire(editions, current, working))
                    _log.info("projecting edition %s", pointed)
                    current, working = pointed, tasks.create_task(self._work(database, pointed))
                self._report()
                await asyncio.sleep(POINTER_LOOK_SECONDS)

    async def _work(self, database: Database, edition: str) -> None:
        async with connect_worker(self._settings, database, edition) as worker:
            self._worker = worker
            self._folded = 0
            await worker.work()

    async def _retire(self, editions: Editions, edition: str, working: asyncio.Task[None]) -> None:
        seconds = self._settings.retire_seconds
        await asyncio.sleep(seconds * RETIRED_WRITTEN)
        working.cancel()
        await asyncio.wait([working])
        await asyncio.sleep(seconds * (1 - RETIRED_WRITTEN))
        await editions.drop(edition)

    def _report(self) -> None:
        if self._worker is not None:
            _ACTIVE.set(self._worker.active_runs)
            _BACKLOG.set(self._worker.backlog_runs)
            _PARTITIONS.set(len(self._worker.partitions))
            _FOLDED.inc(self._worker.events - self._folded)
            self._folded = self._worker.events


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
