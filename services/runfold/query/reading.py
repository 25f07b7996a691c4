"""All connections of the query service, and the readers built on them."""

from contextlib import AsyncExitStack
from typing import Self

from runfold.embeddings import embedder_of
from runfold.query.catalog import RunCatalog
from runfold.query.checkpoints import Checkpoints
from runfold.query.live import LiveRuns
from runfold.query.memories import StoredMemories
from runfold.query.runs import RunReader
from runfold.query.session_runs import SessionRuns
from runfold.query.sessions import StoredSessions
from runfold.query.shared import SharedReader
from runfold.query.similarity import StoredSimilarity
from runfold.query.stored_runs import StoredRuns
from runfold.settings import Settings


class Reading:
    """Use it as an async context manager. It starts without Kafka and without MongoDB. A read that
    needs a server that does not answer fails as retriable, and works again when the server is back.
    """

    def __init__(self, settings: Settings) -> None:
        log = settings.log("runfold/query")
        self.stored_runs = StoredRuns(settings)
        self.runs = RunReader(
            self.stored_runs,
            catalog := RunCatalog(log, timeout_seconds=settings.wait_timeout_seconds),
            log,
            wait_timeout_seconds=settings.wait_timeout_seconds,
        )
        self.checkpoints = Checkpoints()
        self.sessions = SessionRuns(self.stored_runs, self.runs)
        self.shared = SharedReader(self.stored_runs, log, wait_timeout_seconds=settings.wait_timeout_seconds)
        self.stored_sessions = StoredSessions(self.shared, self.runs)
        self.stored_memories = StoredMemories(self.shared)
        self.similarity = StoredSimilarity(self.shared, lambda: embedder_of(settings))
        self.live = LiveRuns(log, self.runs)
        self._connections = (self.stored_runs, catalog, self.shared, self.similarity, self.live)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for connection in self._connections:
            await self._stack.enter_async_context(connection)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def check_ready(self) -> None:
        """Raises `UnavailableError` while MongoDB does not answer, since nearly every read needs
        it.
        """
        await self.stored_runs.look()
