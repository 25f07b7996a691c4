"""`runfold serve`: one of the services in this process."""

from importlib import import_module

from runfold.settings import Settings
from runfold.web import configure_logging

_MODULES = {
    "ingest": "runfold.ingest.app",
    "projector": "runfold.projector.service",
    "query": "runfold.query.app",
    "api": "runfold.api",
}


async def serve(part: str, settings: Settings) -> None:
    """Runs the service named `part` until the process is told to stop."""
    configure_logging(settings.log_level)
    # Only what is served is imported: a projector does not load the HTTP routes, nor they FastStream.
    await import_module(_MODULES[part]).run(settings)
