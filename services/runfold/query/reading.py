"""What the query routes read with: all connections of the service, and what is built on them."""

from contextlib import AsyncExitStack
from typing import Self

from runfold.embeddings import embedder_of
from runfold.query.checkpoints import Checkpoints
from runfold.query.decided import DecidedReader
from runfold.query.live import LiveRuns
from runfold.query.lives import Lives
from runfold.query.memories import StoredMemories
from runfold.query.runs import RunReader
from runfold.query.session_runs import SessionRuns
from runfold.query.sessions import StoredSessions
from runfold.query.similarity import StoredSimilarity
from runfold.query.snapshots import Snapshots
from runfold.settings import Settings


class Reading:
    """Use it as an async context manager. Neither Kafka nor MongoDB need be there: what needs one
    that is away fails as retriable, and works again when it is back.
    """

    def __init__(self, settings: Settings) -> None:
        log = settings.log("runfold/query")
        self.snapshots = Snapshots(settings)
        self.runs = RunReader(
            self.snapshots,
            lives := Lives(log, timeout_seconds=settings.wait_timeout_seconds),
            log,
            wait_timeout_seconds=settings.wait_timeout_seconds,
        )
        self.checkpoints = Checkpoints()
        self.sessions = SessionRuns(self.snapshots, self.runs)
        self.decided = decided = DecidedReader(
            self.snapshots, log, wait_timeout_seconds=settings.wait_timeout_seconds
        )
        self.stored_sessions = StoredSessions(decided, self.runs)
        self.stored_memories = StoredMemories(decided)
        self.similarity = StoredSimilarity(decided, lambda: embedder_of(settings))
        self.live = LiveRuns(log, self.runs)
        self._parts = (self.snapshots, lives, decided, self.similarity, self.live)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for part in self._parts:
            await self._stack.enter_async_context(part)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def check_ready(self) -> None:
        """Raises `UnavailableError` while MongoDB, which nearly every answer comes from, does not
        answer.
        """
        await self.snapshots.look()
