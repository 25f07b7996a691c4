"""The generation of the projections that is read, looked up once a second so that a rebuild's switch is followed."""

import asyncio
import contextlib
import logging
from typing import NamedTuple, Self

from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.generations import Generations
from runfold.store.pages import PageStore
from runfold.store.runs import RunState, RunStore
from runfold_schemas.errors import UnavailableError

_LOOK_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Generation(NamedTuple):
    name: str
    runs: RunStore
    pages: PageStore


class Snapshots:
    """What is in MongoDB. Use it as an async context manager: entering waits for one attempt to reach MongoDB and goes on
    if that failed; the attempts go on in the background.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database: Database = None
        self._generation: Generation | None = None
        self._tried = asyncio.Event()
        self._watching: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        await self._tried.wait()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching

    async def current(self) -> Generation | None:
        """The generation that is read; None where nothing was ever projected. Raises `UnavailableError`."""
        if self._generation is None:
            await self.look()
        return self._generation

    async def look(self) -> None:
        """Looks now where the pointer points. Raises `UnavailableError`."""
        if self._database is None:
            raise UnavailableError("MongoDB", reason="it has not answered since this service started")
        name = await Generations(self._database).current()
        if name is not None and (self._generation is None or self._generation.name != name):
            _log.info("reading generation %s", name)
            self._generation = Generation(
                name, RunStore(self._database, name), PageStore(self._database, name)
            )

    async def left(self, generation: Generation | None) -> bool:
        """Whether another generation is read by now. For who found nothing: it may have read one that is gone."""
        await self.look()
        return self._generation is not generation

    async def state(self, run_id: str) -> RunState | None:
        """The saved state of a run. Raises `UnavailableError`."""
        generation = await self.current()
        state = await generation.runs.get(run_id) if generation else None
        if state is None and await self.left(generation):
            return await self.state(run_id)
        return state

    async def _watch(self) -> None:
        while True:
            try:
                async with connect(self._settings.mongo, self._settings.database) as database:
                    self._database = database
                    await self._keep_looking()
            except UnavailableError as error:
                _log.warning("%s; trying again in %s s", error, _LOOK_SECONDS)
            self._tried.set()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _keep_looking(self) -> None:
        """Endless. The driver finds its way back to MongoDB by itself, so only the first connection is repeated."""
        while True:
            with contextlib.suppress(UnavailableError):
                await self.look()
            self._tried.set()
            await asyncio.sleep(_LOOK_SECONDS)
