"""Sessions for a process that reaches Kafka and MongoDB itself: `runfold[server]`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from runfold.client import Runfold
from runfold.query.reading import Reading
from runfold.sessions import Sessions
from runfold.settings import Settings


@asynccontextmanager
async def direct_sessions(settings: Settings) -> AsyncIterator[Sessions]:
    """The verbs of sessions, connected for the length of the block. Raises `UnavailableError`, `ConfigurationError`."""
    async with AsyncExitStack() as stack:
        runfold = await stack.enter_async_context(Runfold.of(settings.log("runfold/sessions")))
        reading = await stack.enter_async_context(Reading(settings))
        yield Sessions(runfold, reading.stored_sessions)
