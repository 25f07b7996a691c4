"""Generation in a service, with the model of the settings: of streams and completed runs too.

async with Generation(settings, runfold=..., memories=..., sessions=...) as generation:
    await generation.generator().generate(...)
    await generation.streams.ingest(...)
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Self

from runfold.client.memories import Memories
from runfold.client.runfold import Runfold
from runfold.client.sessions import Sessions
from runfold.generation.choice import chosen_model
from runfold.generation.completed_runs import CompletedRuns
from runfold.generation.generator import Generator
from runfold.generation.model import MemoryModel
from runfold.generation.streams import IngestStreams
from runfold.generation.trigger_runner import TriggerRunner
from runfold.settings import Settings


class Generation:
    """Use it as an async context manager.

    The callables return the clients of the current connection, and raise `UnavailableError` while
    there is none.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        runfold: Callable[[], Runfold],
        memories: Callable[[], Memories],
        sessions: Callable[[], Sessions],
        model: MemoryModel | None = None,
    ) -> None:
        """`model` replaces the model that the settings name."""
        self._settings = settings
        self._runfold = runfold
        self._memories = memories
        self._sessions = sessions
        self._model = model
        self._generator: Generator | None = None
        self._runner = TriggerRunner(self.generator)
        self.streams = IngestStreams(self._runner)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises `ConfigurationError` if the model that the settings name cannot be used."""
        async with AsyncExitStack() as stack:
            if self._model is None:
                self._model = await stack.enter_async_context(chosen_model(self._settings))
            if self._model is not None:
                await stack.enter_async_context(self._runner)
                await stack.enter_async_context(CompletedRuns(self._settings, self._runner))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    @property
    def model(self) -> MemoryModel | None:
        """The language model, None if the settings name none. It is known inside the block."""
        return self._model

    @property
    def is_busy(self) -> bool:
        """Whether a trigger is at work, or will be due."""
        return self._model is not None and self._runner.is_busy

    def generator(self) -> Generator:
        """The generator of the current connection. Raises `UnavailableError` if there is none."""
        runfold = self._runfold()
        if self._generator is None or self._generator.runfold is not runfold:
            self._generator = Generator(self._memories(), runfold, self._model, sessions=self._sessions())
        return self._generator
