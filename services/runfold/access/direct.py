"""Sessions and memories for a process that uses Kafka and MongoDB directly: `runfold[server]`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from runfold.client.appender import Position
from runfold.client.memories import Memories
from runfold.client.runfold import Runfold
from runfold.client.sessions import Sessions
from runfold.generation.choice import chosen_model
from runfold.generation.generator import Generator
from runfold.generation.options import ChangedMemory, GenerationOptions, Source, StreamContent
from runfold.generation.streams import IngestStreams
from runfold.generation.trigger_runner import TriggerRunner
from runfold.generation.triggers import TriggerRule
from runfold.generation.verbs import MemoryBackend
from runfold.query.reading import Reading
from runfold.settings import Settings


@asynccontextmanager
async def direct_sessions(settings: Settings) -> AsyncIterator[Sessions]:
    """The verbs of sessions, connected for the length of the block. Raises `UnavailableError`,
    `ConfigurationError`.
    """
    async with AsyncExitStack() as stack:
        runfold = await stack.enter_async_context(Runfold.of(settings.log("runfold/sessions").of_visitor()))
        reading = await stack.enter_async_context(Reading(settings))
        yield Sessions(runfold.connection, reading.stored_sessions)


@asynccontextmanager
async def direct_memories(settings: Settings) -> AsyncIterator[MemoryBackend]:
    """The verbs of memories and of their generation, connected for the length of the block. During
    the block this process also runs triggers when they are due, as the API does. Generation from
    completed runs is left to the API. Raises `UnavailableError`, `ConfigurationError`.
    """
    async with AsyncExitStack() as stack:
        runfold = await stack.enter_async_context(Runfold.of(settings.log("runfold/memories").of_visitor()))
        reading = await stack.enter_async_context(Reading(settings))
        model = await stack.enter_async_context(chosen_model(settings))
        memories = Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity)
        sessions = Sessions(runfold.connection, reading.stored_sessions)
        generator = Generator(memories, runfold, model, sessions=sessions)
        runner = TriggerRunner(lambda: generator)
        if model is not None:
            await stack.enter_async_context(runner)
        yield MemoryBackend(memories, _DirectGeneration(generator, IngestStreams(runner)))


class _DirectGeneration:
    """`GenerationVerbs` of a generator and its streams."""

    def __init__(self, generator: Generator, streams: IngestStreams) -> None:
        self._generator = generator
        self._streams = streams

    async def generate(
        self,
        bank_id: str,
        scope: Mapping[str, str] | None,
        source: Source,
        options: GenerationOptions | None = None,
    ) -> Sequence[ChangedMemory]:
        return await self._generator.generate(bank_id, scope, source, options)

    async def ingest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        stream_id: str,
        contents: Sequence[StreamContent],
        *,
        rule: TriggerRule | None = None,
        options: GenerationOptions | None = None,
        force_flush: bool = False,
    ) -> Position | None:
        return await self._streams.ingest(
            bank_id, scope, stream_id, contents, rule=rule, options=options, force_flush=force_flush
        )
