"""`runfold serve archiver`: moves logs of runs from topics to the archive.

    catalog --group--> runs with topics --ended, or quiet--> sealed --> archived --> topic deleted

It needs Kafka and the archive, and no MongoDB. One process works on each partition of the catalog:
the member of the consumer group that owns the partition. A process that lost a partition without
knowing so does no harm: the archive refuses its commits, and all else can be done twice.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Final, NoReturn, Self

from runfold.archive.archive import Archive
from runfold.archive.opening import opened
from runfold.archiver.compacting import Compacting
from runfold.archiver.rounds import Rounds
from runfold.archiver.steps import Steps
from runfold.http.app import new_app, serve
from runfold.identity.authenticator import authenticator_of, ready_when_known
from runfold.log.admin import LogAdmin
from runfold.log.archived_logs import ARCHIVE
from runfold.log.catalog_group import catalog_group
from runfold.log.driver import kafka_errors
from runfold.log.leaders import Leaders
from runfold.settings import Settings
from runfold.telemetry import outages
from runfold_schemas.errors import ConfigurationError, RunfoldError, UnavailableError

_GROUP: Final = "archiver"

_ARCHIVE: Final = "The archive"

_RETRY_SECONDS: Final = 2.0

_LOOK_SECONDS: Final = 1.0

_NAMED_MAX: Final = 10
"""The number of runs that readiness names."""

_log = logging.getLogger(__name__)


async def run(settings: Settings) -> None:
    """Archives until the process is asked to stop."""
    archiver = Archiver(settings)
    authenticator = authenticator_of(settings)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with authenticator or nullcontext(), archiver:
            yield

    app = new_app(
        "Runfold archiver",
        ready=ready_when_known(authenticator, archiver.check_ready),
        authenticate=authenticator,
        tenant=settings.prefix,
        lifespan=lifespan,
    )
    await serve(app, settings.http())


class Archiver:
    """Use it as an async context manager."""

    def __init__(self, settings: Settings) -> None:
        """Raises `ConfigurationError` if no archive is configured."""
        if settings.archive_url is None:
            raise ConfigurationError("the archiver needs an archive: set RUNFOLD_ARCHIVE_URL")
        self._settings: Final = settings
        self._archive: Final[Archive] = opened(settings.archive_url, settings.prefix)
        self._failure: RunfoldError | None = UnavailableError("Kafka", reason="not connected yet")
        self._rounds: Rounds | None = None
        self._working: asyncio.Task[NoReturn]

    async def __aenter__(self) -> Self:
        self._working = asyncio.create_task(self._work_forever())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._working.cancel()
        await asyncio.gather(self._working, return_exceptions=True)

    async def check_ready(self) -> list[str]:
        """Raises what keeps the archiver from working. Returns why runs are not archived."""
        if self._failure is not None:
            raise self._failure
        if self._rounds is None:
            return []
        failed = [
            f"run {run.run_id!r} is not archived: {run.failure}" for run in self._rounds.failed()[:_NAMED_MAX]
        ]
        files = filter(None, (self._rounds.clearing.failure, self._rounds.compacting.failure))
        return [*failed, *self._rounds.fenced.values(), *files]

    async def _work_forever(self) -> NoReturn:
        while True:
            try:
                await self._connect()
            except* RunfoldError as group:
                error = group.exceptions[0]
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                _log.warning("%s", error)
                self._failure = error if isinstance(error, RunfoldError) else None
            except* Exception as group:  # noqa: BLE001  # after any error, a later attempt may succeed
                _log.error("no runs are archived after an unexpected error", exc_info=group)
                self._failure = UnavailableError("The archiver", reason=type(group.exceptions[0]).__name__)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _connect(self) -> NoReturn:
        settings = self._settings
        async with LogAdmin.connect(settings.log()) as admin:
            await admin.check_broker()
            log = await admin.create_shared_topics()
        async with Steps.connect(log, self._archive) as steps, Leaders.connect(log) as leaders:
            compacting = Compacting(self._archive, files_min=settings.archive_compact_files)
            self._rounds = rounds = Rounds(settings, log, steps, leaders, compacting)
            with kafka_errors():
                async with (
                    catalog_group(
                        log,
                        _GROUP,
                        member_id=settings.worker_id,
                        session_timeout_seconds=settings.session_timeout_seconds,
                        on_assigned=rounds.take_partitions,
                        on_records=rounds.take_records,
                    ) as failed,
                    asyncio.TaskGroup() as tasks,
                ):
                    tasks.create_task(self._work_repeatedly(rounds))
                    tasks.create_task(rounds.remove_files())
                    # The owner of one partition compacts, so that two archivers do not.
                    tasks.create_task(compacting.compact_repeatedly(is_due=lambda: rounds.owns(0)))
                    await failed
        raise AssertionError("the group ends with an error only")

    async def _work_repeatedly(self, rounds: Rounds) -> NoReturn:
        await rounds.read_partitions()
        self._failure = None
        while True:
            try:
                is_busy = await rounds.round()
            except UnavailableError as error:
                if error.server != ARCHIVE:
                    raise
                # Kafka answers, so what is known of it stays.
                outages.failed(_ARCHIVE, error.reason)
                self._failure, is_busy, rounds.archive_failed = error, False, True
            else:
                self._failure, rounds.archive_failed = None, False
            await asyncio.sleep(0 if is_busy else _LOOK_SECONDS)
