"""Which log belongs to a run, read from the catalog in Kafka. It is needed for a run that is not
projected yet, and while MongoDB does not answer.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Self

from runfold.log.catalog_view import CatalogView
from runfold.log.leaders import Leaders
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Life
from runfold_schemas.errors import RunNotFoundError, UnavailableError
from runfold_schemas.topics import Partition


class RunCatalog:
    """Connects on first use, so a service that never reads the log does not depend on Kafka. With
    `leaders`, it uses their client.
    """

    def __init__(
        self,
        settings: LogSettings,
        *,
        timeout_seconds: float,
        leaders: Leaders | None = None,
        segments: SegmentBook | None = None,
    ) -> None:
        self._settings = settings
        self._leaders = leaders
        self._segments = segments
        self._timeout_seconds = timeout_seconds
        self._connecting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._view: CatalogView | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def find(self, run_id: str) -> Life:
        """The current life of the run. Raises `RunNotFoundError`, `UnavailableError`."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                life = await (await self._connected()).lookup(run_id)
        except TimeoutError as error:
            raise UnavailableError("Kafka", reason=f"no answer in {self._timeout_seconds} s") from error
        if life is None or life.deleted:
            raise RunNotFoundError(run_id)
        return life

    async def skipped(self, topic: str) -> frozenset[range]:
        """The offsets that an operator skipped in the topic of a run that was found before."""
        return (await self._connected()).skipped(Partition(topic, 0))

    @property
    def segments(self) -> SegmentBook | None:
        """Where logs of runs lie that were found before. None before the first look-up."""
        return self._view.segments if self._view is not None else None

    async def connected_segments(self) -> SegmentBook:
        """The same, with a view of the catalog to look logs up. Raises `UnavailableError`."""
        return (await self._connected()).segments

    async def _connected(self) -> CatalogView:
        async with self._connecting:
            if self._view is None:
                self._view = await self._stack.enter_async_context(
                    CatalogView.connect(self._settings, leaders=self._leaders, segments=self._segments)
                )
            return self._view
