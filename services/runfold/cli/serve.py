"""`runfold serve`: runs one of the services in this process."""

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


async def serve(name: str, settings: Settings) -> None:
    """Runs the service of that name until the process is told to stop."""
    configure_logging(settings.log_level)
    if name != "ingest":
        await _check_mongo(settings)
    # Only this service is imported: a projector needs no HTTP routes, and the routes no FastStream.
    service = import_module(_MODULES[name])
    (spare_imports if name in _TAKE_BODIES else collect_rarely)()
    await service.run(settings)


async def _check_mongo(settings: Settings) -> None:
    """Raises `ConfigurationError` if MongoDB refuses the connection. If MongoDB is down, nothing is
    raised: the service waits for it.
    """
    connect = import_module("runfold.store.database").connect
    with suppress(UnavailableError):
        async with connect(settings.mongo, settings.database):
            return
