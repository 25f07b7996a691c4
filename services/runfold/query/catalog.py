"""Which log belongs to a run, read from the catalog in Kafka. It is needed for a run that is not
projected yet, and while MongoDB does not answer.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Self

from runfold.log.catalog import CatalogView
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Life
from runfold_schemas.errors import RunNotFoundError, UnavailableError


class RunCatalog:
    """Connects on first use, so a service that never reads the log does not depend on Kafka."""

    def __init__(self, settings: LogSettings, *, timeout_seconds: float) -> None:
        self._settings = settings
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

    async def _connected(self) -> CatalogView:
        async with self._connecting:
            if self._view is None:
                self._view = await self._stack.enter_async_context(CatalogView.connect(self._settings))
            return self._view
