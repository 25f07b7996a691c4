"""Recording what a model answers: the parts of a response, and a stream whose chunks the caller
gets untouched while their content is published in the background.
"""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

from runfold.ids import new_event_id
from runfold_projections.providers import Recorder, provider_of, recorder
from runfold_schemas.data import Data
from runfold_schemas.messages import Provider

_PARTIAL_SECONDS = 0.25
"""How often a growing text is published, in seconds, for readers that follow the run."""

ChunkT = TypeVar("ChunkT")

Publish = Callable[[Sequence[Data], Provider, str], Awaitable[object]]
"""Publishes parts of a response: the parts, the provider, and the message id of the response."""


def parts_of(
    response: Any, *, provider: Provider | None, tool_names: Mapping[str, str] | None
) -> tuple[Sequence[Data], Provider, str]:
    """The parts of a whole response, its provider, and its message id. See `Run.record`."""
    named = provider or provider_of(response)
    recording = recorder(named, tool_names=tool_names)
    parts = recording.response(response)
    return parts, named, recording.blocks.message_id or new_event_id()


async def record_stream(
    stream: AsyncIterable[ChunkT] | Iterable[ChunkT],
    publish: Publish,
    *,
    provider: Provider | None,
    tool_names: Mapping[str, str],
) -> AsyncGenerator[ChunkT, None]:
    """See `Run.record_stream`."""
    recording: _Recording | None = None
    finished = False
    try:
        async for chunk in stream if isinstance(stream, AsyncIterable) else _on_a_thread(stream):
            if recording is None:
                named = provider or provider_of(chunk)
                recording = _Recording(named, recorder(named, tool_names=tool_names), publish)
            recording.take(chunk)
            yield chunk
        finished = True
    finally:
        if recording is not None:
            await recording.end(finished=finished)


class _Recording:
    """One response that is arriving. A background task publishes the parts that have arrived; parts
    that arrive meanwhile wait for its next round.
    """

    def __init__(self, provider: Provider, recorder: Recorder, publish: Publish) -> None:
        self._provider = provider
        self._recorder = recorder
        self._publish = publish
        self._fallback_id = new_event_id()
        self._waiting: list[Data] = []
        self._publishing: asyncio.Task[None] | None = None
        self._looked_at = time.monotonic()

    def take(self, chunk: Any) -> None:
        self._waiting += self._recorder.feed(chunk)
        if not self._waiting and time.monotonic() - self._looked_at > _PARTIAL_SECONDS:
            self._waiting += self._recorder.blocks.partial()
            self._looked_at = time.monotonic()
        if self._waiting and self._publishing is None:
            self._publishing = asyncio.create_task(self._publish_waiting())

    async def end(self, *, finished: bool) -> None:
        if self._publishing is not None:
            await self._publishing
        self._waiting += self._recorder.blocks.end(finished=finished)
        await self._publish_waiting()

    async def _publish_waiting(self) -> None:
        while self._waiting:
            parts, self._waiting = self._waiting, []
            await self._publish(parts, self._provider, self._recorder.blocks.message_id or self._fallback_id)
        self._publishing = None


async def _on_a_thread(stream: Iterable[ChunkT]) -> AsyncIterator[ChunkT]:
    """The chunks of a synchronous stream, which blocks its thread while the model thinks."""
    chunks = iter(stream)
    while next_chunk := await asyncio.to_thread(_next, chunks):
        yield next_chunk[0]


def _next(chunks: Iterator[ChunkT]) -> tuple[ChunkT, ...]:
    """The next chunk alone, or nothing at the end: StopIteration cannot leave a thread."""
    for chunk in chunks:
        return (chunk,)
    return ()
