"""`runfold serve`: one of the services in this process."""

from runfold.settings import Settings
from runfold.web import configure_logging


async def serve(part: str, settings: Settings) -> None:
    """Runs the service named `part` until the process is told to stop."""
    configure_logging(settings.log_level)
    # A service imports what it needs when it is started: the projector does not load the HTTP routes, nor they it.
    match part:
        case "projector":
            from runfold.projector.service import run
        case "ingest":
            from runfold.ingest.app import run
        case "query":
            from runfold.query.app import run
        case _:
            from runfold.api import run
    await run(settings)
