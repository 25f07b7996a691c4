"""`runfold serve`: one of the services in this process."""

from contextlib import suppress
from importlib import import_module

from runfold.cli.garbage import collect_rarely, spare_imports
from runfold.http.app import configure_logging
from runfold.settings import Settings
from runfold_schemas.errors import UnavailableError

_MODULES = {
    "ingest": "runfold.ingest.app",
    "projector": "runfold.projector.service",
    "query": "runfold.query.app",
    "api": "runfold.api.app",
}
_TAKE_BODIES = frozenset({"ingest", "api"})


async def serve(part: str, settings: Settings) -> None:
    """Runs the service named `part` until the process is told to stop."""
    configure_logging(settings.log_level)
    if part != "ingest":
        await _check_mongo(settings)
    # Only what is served is imported: a projector does not load the HTTP routes, nor they
    # FastStream.
    service = import_module(_MODULES[part])
    (spare_imports if part in _TAKE_BODIES else collect_rarely)()
    await service.run(settings)


async def _check_mongo(settings: Settings) -> None:
    """Raises `ConfigurationError` if MongoDB refuses us. One that is away is waited for by the
    service itself.
    """
    connect = import_module("runfold.store.database").connect
    with suppress(UnavailableError):
        async with connect(settings.mongo, settings.database):
            return
