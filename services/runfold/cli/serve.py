"""`runfold serve`: runs one of the services in this process."""

import logging
from contextlib import suppress
from importlib import import_module
from typing import Any

from runfold.cli.garbage import collect_rarely, spare_imports, uncollected_imports
from runfold.cli.workers import serve_workers
from runfold.http.settings import check_exposure
from runfold.log.ends import LogEnds
from runfold.settings import Settings
from runfold.telemetry import spans
from runfold.telemetry.log_lines import configure_logging
from runfold_schemas.errors import UnavailableError

_MODULES = {
    "ingest": "runfold.ingest.app",
    "projector": "runfold.projector.service",
    "query": "runfold.query.app",
    "api": "runfold.api.app",
    "tracer": "runfold.tracer.service",
    "archiver": "runfold.archiver.service",
}
_LOGIN_SECONDS = 5.0

_TAKE_BODIES = frozenset({"ingest", "api"})

_WITHOUT_MONGO = frozenset({"ingest", "archiver"})

_log = logging.getLogger(__name__)


async def serve(name: str, settings: Settings, **options: Any) -> None:
    """Runs the service of that name until the process is told to stop. `options` are its own."""
    check_exposure(settings.http())
    configure_logging(settings.log_level, levels=settings.log_levels, log_format=settings.log_format)
    if name == "projector" and settings.workers > 1:
        await serve_workers(settings)
        return
    if name != "tracer":  # its endpoint is for runs
        spans.start(name)
    if settings.kafka_options:
        await _check_kafka(settings)
    if name not in _WITHOUT_MONGO:
        await _check_mongo(settings)
    await _check_archive(settings)
    # Only this service is imported: a projector needs no HTTP routes, and the routes no FastStream.
    with uncollected_imports():
        service = import_module(_MODULES[name])
    (spare_imports if name in _TAKE_BODIES else collect_rarely)()
    await service.run(settings, **options)


async def _check_kafka(settings: Settings) -> None:
    """Raises `ConfigurationError` if Kafka refuses the login. If Kafka is down, nothing is raised:
    the service waits for it.
    """
    with suppress(UnavailableError):
        async with LogEnds.connect(settings.log(), timeout_seconds=_LOGIN_SECONDS):
            return


async def _check_archive(settings: Settings) -> None:
    """Raises `ConfigurationError` if the libraries of the archive are not installed. If the archive
    cannot be read, only archived logs cannot.
    """
    if settings.archive_url is None:
        return
    opening = import_module("runfold.archive.opening")
    try:
        await opening.opened(settings.archive_url, settings.prefix).check()
    except UnavailableError as error:
        _log.warning("archived logs cannot be read: %s", error)


async def _check_mongo(settings: Settings) -> None:
    """Raises `ConfigurationError` if MongoDB refuses the connection. If MongoDB is down, nothing is
    raised: the service waits for it.
    """
    connect = import_module("runfold.store.database").connect
    with suppress(UnavailableError):
        async with connect(settings.mongo, settings.database):
            return
