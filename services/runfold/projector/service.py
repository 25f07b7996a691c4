"""The projector's process: a worker on the current edition, health and metrics.

The pointer moves to another edition when a rebuild has caught up, or when the database was dropped.
Then a worker for the new edition starts at once. The old worker stops before readers stop using the
old edition, so that the new edition includes the last data that they saw there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

from prometheus_client import Counter

from runfold.http.app import new_app, serve
from runfold.identity.authenticator import authenticator_of, ready_when_known
from runfold.projector.blocked import LoopGuard
from runfold.projector.census import Census
from runfold.projector.connection import connect_worker
from runfold.projector.hosting import Ownership, TenantHost
from runfold.projector.measures import STALLED_SECONDS, Measures
from runfold.projector.reporting import Reporter
from runfold.projector.signing import sign_repeatedly
from runfold.projector.stuck import Steps, StuckDetector, Watch
from runfold.projector.worker import Worker
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.editions import POINTER_LOOK_SECONDS, RETIRED_WRITTEN, Editions
from runfold_schemas.errors import ConfigurationError, RunfoldError, UnavailableError

_RETRY_SECONDS = 1.0

_FOLDED = Counter("runfold_folded_records", "Records folded by this projector")

_log = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Projects until the process is asked to stop."""
    projector = Projector(settings)
    authenticator = authenticator_of(settings)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with authenticator or nullcontext():
            yield

    app = new_app(
        "Runfold projector",
        ready=ready_when_known(authenticator, projector.check_ready),
        authenticate=authenticator,
        tenant=settings.prefix,
        lifespan=lifespan,
    )
    tasks = [
        asyncio.create_task(work)
        for work in (
            projector.project(),
            serve(app, settings.http(port=settings.port + 1)),
            projector.host.work(),
            projector.detector.work(),
            projector.measures.work(),
            projector.reporter.work(),
            projector.census.work(),
            LoopGuard().work(),
        )
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure


class StalledError(RunfoldError):
    """Records wait, or may wait, and nothing was folded for a while."""

    def __init__(self, error: RunfoldError | None, *, seconds: float) -> None:
        why = f"; the last error: {error}" if error is not None else ""
        super().__init__(f"records wait, and none was folded for {seconds:.0f} s{why}")


class Projector:
    """Keeps a worker on the current edition, whatever Kafka and MongoDB do meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker: Worker | None = None
        self._folded: dict[Worker, int] = {}
        """The records that each worker has counted."""
        self._failure: str | None = None
        self._last_error: RunfoldError | None = None
        self._has_worked = False
        self._looking = Steps()
        self._owned: Ownership | None = None
        self.host = TenantHost(settings, lambda: self._owned)
        self._mongodb = Watch("mongodb", self._looking.waiting, "it does not answer", server="MongoDB")
        self.detector = StuckDetector(self._watches)
        self._database: Database = None
        self.measures = Measures(settings.prefix, lambda: self._worker, self.host.active)
        self.reporter = Reporter(
            settings.worker_id,
            database=lambda: self._database,
            workers=self._workers,
            lags=lambda: self.measures.lags,
            watches=self._watches,
            failing=self.host.failing,
            own=settings.prefix,
        )
        self.census = Census(settings.prefix, database=lambda: self._database, worker=lambda: self._worker)

    def _workers(self) -> dict[str, Worker]:
        """The workers, by the names of their tenants."""
        own = {self._settings.prefix: self._worker} if self._worker is not None else {}
        return own | self.host.workers_by_name()

    def _watches(self) -> list[Watch]:
        own = self._worker.watches if self._worker else ()
        return [self._mongodb, *own, *self.host.watches()]

    async def check_ready(self) -> list[str]:
        """The reasons why single runs or topics do not work. Raises `UnavailableError` if the
        projector does not work.
        """
        reasons = self.detector.reasons()
        if self._worker is None or not self._worker.partitions:
            missing = UnavailableError("Kafka", reason="this projector owns no partition of the catalog yet")
            raise self._last_error or missing
        if (seconds := self.measures.own.stalled_seconds) > STALLED_SECONDS:
            raise StalledError(self._last_error, seconds=seconds)
        return [*self._worker.quarantine.reasons(), *reasons, *self.host.reasons()]

    async def project(self) -> None:
        """Endless. Raises `ConfigurationError` if it keeps the first worker from starting. Later it
        waits and starts again from the stored state, as after an error of Kafka or MongoDB:
        while a password is replaced, a server may refuse the login for a while.

        It does the same after a defect that cannot be attributed to a run, a key or a record: it
        logs the trace once, and the service is not ready meanwhile.
        """
        while True:
            try:
                async with connect(self._settings.mongo, self._settings.database) as self._database:
                    await self._follow_editions(self._database)
            except* UnavailableError as group:
                _log.warning("%s; trying again in %s s", self._noted(group), _RETRY_SECONDS)
            except* ConfigurationError as group:
                if not self._has_worked:
                    raise
                _log.error("%s; trying again in %s s", self._noted(group), _RETRY_SECONDS)
            except* Exception as group:  # noqa: BLE001  # one run's defect must not end the health of all
                self._log_defect(group)
            self._worker = self._database = None
            await asyncio.sleep(_RETRY_SECONDS)

    def _noted(self, group: BaseExceptionGroup[BaseException]) -> BaseException:
        """The first error of a group, which readiness names from now on."""
        error = _first(group)
        self._last_error = error if isinstance(error, RunfoldError) else None
        return error

    def _log_defect(self, group: BaseExceptionGroup[BaseException]) -> None:
        error = self._noted(group)
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
                pointed = await self._looking.run(editions.current_or_first())
                if pointed != current:
                    if current is not None and working is not None:
                        tasks.create_task(self._retire(editions, current, working))
                    _log.info("projecting edition %s", pointed)
                    current, working = pointed, tasks.create_task(self._work(database, pointed))
                self._report()
                await asyncio.sleep(POINTER_LOOK_SECONDS)

    async def _work(self, database: Database, edition: str) -> None:
        async with connect_worker(self._settings, database, edition) as worker, asyncio.TaskGroup() as tasks:
            self._worker, self._has_worked = worker, True
            tasks.create_task(
                sign_repeatedly(self._settings, database, edition, partitions=lambda: worker.partitions)
            )
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
            if self._worker.is_assigned:
                self._owned = self._worker.topics, frozenset(self._worker.partitions)
            workers = [self._worker, *self.host.workers()]
            self._count_folded(workers)

    def _count_folded(self, workers: Sequence[Worker]) -> None:
        folded = {worker: worker.events for worker in workers}
        _FOLDED.inc(sum(count - self._folded.get(each, 0) for each, count in folded.items()))
        self._folded = folded


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
