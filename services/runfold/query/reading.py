"""All connections of the query service, and the readers built on them."""

from contextlib import AsyncExitStack
from typing import Self

from runfold.client.connection import blob_store_of
from runfold.embeddings import embedder_of
from runfold.encryption.sealing import Sealing
from runfold.log.leaders import Leaders
from runfold.prices import PriceTable
from runfold.query.cache_room import CacheRoom
from runfold.query.catalog import RunCatalog
from runfold.query.checkpoints import Checkpoints
from runfold.query.events import Unsigned, unsigned_in
from runfold.query.history import History
from runfold.query.live import LiveRuns
from runfold.query.log_ends import ConnectedEnds
from runfold.query.memories import StoredMemories
from runfold.query.places import Places
from runfold.query.request_blobs import RequestBlobs
from runfold.query.runs import RunReader
from runfold.query.session_runs import SessionRuns
from runfold.query.sessions import StoredSessions
from runfold.query.shared import SharedReader
from runfold.query.similarity import StoredSimilarity
from runfold.query.stored_runs import StoredRuns
from runfold.query.waiting_readers import WaitingReaders
from runfold.settings import Settings


class Reading:
    """Use it as an async context manager. It starts without Kafka and without MongoDB. A read that
    needs a server that does not answer fails as retriable, and works again when the server is back.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        beside: "Reading | None" = None,
        leaders: Leaders | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        """`beside` is that of another tenant, whose connection to MongoDB and embedder this one
        uses. With `leaders`, it uses their client for Kafka, and `sealing` is connected already.
        """
        self._log = log = settings.log("runfold/query")
        other = None if beside is None else beside.stored_runs
        self.prices: PriceTable | None = settings.price_table() if beside is None else beside.prices
        timeout_seconds = settings.wait_timeout_seconds
        self.stored_runs: StoredRuns = StoredRuns(settings, beside=other, leaders=leaders, sealing=sealing)
        segments = self.stored_runs.segment_book
        self.log_ends = log_ends = ConnectedEnds(
            log, timeout_seconds=timeout_seconds, leaders=leaders, segments=segments
        )
        waiting = WaitingReaders()
        self.cache_room: CacheRoom = CacheRoom() if beside is None else beside.cache_room
        self.runs = RunReader(
            self.stored_runs,
            catalog := RunCatalog(log, timeout_seconds=timeout_seconds, leaders=leaders, segments=segments),
            log,
            log_ends,
            wait_timeout_seconds=timeout_seconds,
            room=self.cache_room,
        )
        self.checkpoints = Checkpoints(self.cache_room)
        self.blobs = RequestBlobs(blob_store_of(log))
        self.sessions = SessionRuns(self.stored_runs, self.runs)
        self.shared = SharedReader(self.stored_runs, log_ends, waiting, wait_timeout_seconds=timeout_seconds)
        self.stored_sessions = StoredSessions(self.shared, self.runs)
        self.stored_memories = StoredMemories(self.shared)
        self.similarity: StoredSimilarity = StoredSimilarity(
            self.shared,
            lambda: embedder_of(settings),
            beside=None if beside is None else beside.similarity,
            room=self.cache_room,
        )
        self.places: Places = Places(settings.followers_max) if beside is None else beside.places
        self.live = LiveRuns(
            log,
            self.runs,
            self.places,
            stored_runs=self.stored_runs,
            leaders=leaders,
            segments=segments,
        )
        self._connections = (self.stored_runs, waiting, log_ends, catalog, self.similarity, self.live)
        self._stack = AsyncExitStack()

    def unsigned_in(self, history: History) -> Unsigned:
        """Says of a record of this run whether no key of effects has signed it, and one should."""
        return unsigned_in(self._log.effect_keys, self._log.topics.run(history.run_id, history.log_id))

    async def __aenter__(self) -> Self:
        for connection in self._connections:
            await self._stack.enter_async_context(connection)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def check_ready(self) -> list[str]:
        """What does not work although most reads do. Raises `UnavailableError` while MongoDB does
        not answer, since nearly every read needs it.
        """
        await self.stored_runs.look()
        return self.stored_runs.degradation
