"""One connection to Kafka for all readers that ask for ends and for the newest records."""

import asyncio
import contextlib
from contextlib import AsyncExitStack
from typing import Self

from runfold.log.driver import kafka_errors
from runfold.log.ends import LogEnds
from runfold.log.leaders import Leaders
from runfold.log.partition_counts import read_partitions
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold_schemas.errors import RunfoldError
from runfold_schemas.topics import PARTITIONS_DEFAULT, Partition, Topics


class ConnectedEnds:
    """Use it as an async context manager. It connects to Kafka on first use, or uses the client of
    `leaders`.
    """

    def __init__(
        self,
        settings: LogSettings,
        *,
        timeout_seconds: float,
        leaders: Leaders | None = None,
        segments: SegmentBook | None = None,
    ) -> None:
        self.names = settings.topics
        """The names of the topics. `topics` also knows their number of partitions."""
        self._settings = settings
        self._timeout_seconds = timeout_seconds
        self._leaders = leaders
        self._segments = segments
        self._connecting: asyncio.Task[LogEnds] | None = None
        self._stack = AsyncExitStack()
        self._ends: LogEnds | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, RunfoldError):
                await self._connecting
        await self._stack.aclose()

    async def get(self) -> LogEnds:
        """Raises `UnavailableError`."""
        if self._ends is None:
            if self._connecting is None:
                self._connecting = asyncio.create_task(self._connect())
            # Shielded, because a reader may be less patient than the connection takes.
            return await asyncio.shield(self._connecting)
        return self._ends

    async def topics(self) -> Topics:
        """The topics with their number of partitions, which is read from Kafka if it is unknown.
        Raises `UnavailableError`, `ConfigurationError`.
        """
        if self._settings.partitions is None:
            with kafka_errors():
                async with asyncio.timeout(self._timeout_seconds):
                    ends = await self.get()
                    settings = await read_partitions(self._settings, ends.leaders.client)
            if settings.partitions is None:
                # No partition of a topic that does not exist has an end, whatever its number.
                return Topics(settings.prefix, PARTITIONS_DEFAULT)
            self._settings = settings
        return self._settings.topics

    def forget_leader(self, at: Partition) -> None:
        """Asks for the partition's leader again, because the one that is known does not answer."""
        if self._ends is not None:
            self._ends.leaders.forget(at)

    async def _connect(self) -> LogEnds:
        try:
            self._ends = await self._stack.enter_async_context(
                LogEnds.connect(
                    self._settings,
                    timeout_seconds=self._timeout_seconds,
                    leaders=self._leaders,
                    segments=self._segments,
                )
            )
        finally:
            self._connecting = None
        return self._ends
