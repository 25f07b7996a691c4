"""Recording what a model answers: the parts of a response, and a stream whose chunks the caller
gets untouched while their content is published in the background.
"""

import asyncio
import hashlib
import logging
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

from runfold.client.appender import Position
from runfold.ids import RepeatableId, new_event_id
from runfold_projections.providers import Recorder, mistaken_provider, provider_of, recorder
from runfold_schemas.data import Data
from runfold_schemas.errors import InvalidEventError, RunfoldError, UnavailableError
from runfold_schemas.events import AnyEvent, ResponseRecorded, ToolCall
from runfold_schemas.messages import Provider

_PARTIAL_SECONDS = 0.25
"""How often a growing text is published, in seconds, for readers that follow the run."""

_log = logging.getLogger(__name__)

ChunkT = TypeVar("ChunkT")

MakeEvent = Callable[..., AnyEvent]
"""Makes an event of data and fields of the envelope."""

Publish = Callable[[Sequence[AnyEvent]], Awaitable[Sequence[Position]]]


class Recorded(list[Position]):
    """The positions of the events of one response, in their order."""

    message_id: str = ""
    """The `message_id` that the events share."""
    calls: list[ToolCall]
    """The calls of tools in the response. Their ids are those that results name, also if the
    provider gave them none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = []


class Recording:
    """One response. Its events get their ids when they are made, so that publishing them again is
    safe.
    """

    def __init__(
        self,
        make_event: MakeEvent,
        publish: Publish,
        *,
        provider: Provider | None = None,
        model: str | None = None,
        tool_names: Mapping[str, str] | None = None,
        repeatable_id: RepeatableId | None = None,
        into: Recorded | None = None,
    ) -> None:
        """`repeatable_id` makes the ids of a response that may be recorded again. Such a response
        is published when it is whole. Raises `InvalidEventError` if `make_event` does.
        """
        self._make_event = make_event
        self._publish = publish
        self._provider = provider
        self._model = model
        self._tool_names = tool_names or {}
        self._repeatable_id = repeatable_id
        self._recorder: Recorder | None = None
        self._unknown: str | None = None
        # The parts of a response that may be recorded again.
        self._parts: list[Data] = []
        self._waiting: list[AnyEvent] = []
        self._publishing: asyncio.Task[None] | None = None
        self._growing: asyncio.TimerHandle | None = None
        self._failure: RunfoldError | None = None
        self.recorded = Recorded() if into is None else into
        self.recorded.message_id = new_event_id()
        # A wrong envelope is the caller's mistake. It is found before the stream begins.
        make_event(ResponseRecorded())

    def events_of(self, response: Any) -> list[AnyEvent]:
        """The events of a whole response. Raises `InvalidEventError` if its provider is unknown, or
        is another one than the caller named.
        """
        if self._provider is not None and (other := mistaken_provider(response, self._provider)):
            raise InvalidEventError(
                f"this is a response of {other}, and not of {self._provider}", field="provider"
            )
        return self._repeatable_events(self._recorder_of(response).response(response))

    async def publish(self, events: Sequence[AnyEvent]) -> Recorded:
        """Appends events of this recording as one batch. Raises what `Run.publish_batch` raises."""
        self._note(events, await self._publish(events))
        return self.recorded

    def take(self, chunk: Any) -> None:
        """Takes the next chunk of a stream. Raises nothing, because the chunk belongs to the
        caller, who goes on.
        """
        try:
            self._add(self._recorder_of(chunk).feed(chunk))
        except InvalidEventError as error:
            self._fault(str(error))
        except Exception:  # noqa: BLE001  # whatever a stream holds, the caller's loop goes on
            _log.exception("a chunk of a stream could not be recorded")
            self._fault(f"a {type(chunk).__name__} could not be recorded")
        if self._repeatable_id is None and self._growing is None:
            self._growing = asyncio.get_running_loop().call_later(_PARTIAL_SECONDS, self._grow)
        if self._waiting:
            self._start_publishing()

    async def end(self, *, finished: bool) -> None:
        """Publishes the rest. Raises what `Run.publish` raises if events remain unpublished."""
        if self._growing is not None:
            self._growing.cancel()
        if self._publishing is not None:
            await self._publishing
        if self._recorder is not None:
            self._add(self._recorder.blocks.end(finished=finished))
        elif self._unknown is not None:
            self._add([ResponseRecorded(finished=False, faults=(self._unknown,))])
        self._waiting += self._repeatable_events(self._parts)
        if self._may_retry():
            await self._publish_waiting()
        if self._failure is not None and self._waiting:
            raise self._failure

    def _add(self, parts: Sequence[Data]) -> None:
        # Most chunks of a stream end no block.
        if not parts:
            return
        if self._repeatable_id is not None:
            self._parts += parts
        else:
            self._waiting += self._events(parts)

    def _grow(self) -> None:
        """Publishes the text that has arrived so far."""
        self._growing = None
        if not self._waiting and self._recorder is not None:
            self._waiting += self._events(self._recorder.blocks.partial())
            self._start_publishing()

    def _start_publishing(self) -> None:
        if self._waiting and self._publishing is None and self._may_retry():
            self._publishing = asyncio.create_task(self._publish_waiting())

    def _repeatable_events(self, parts: Sequence[Data]) -> list[AnyEvent]:
        """The events of the whole response. Their ids depend on its content too, so that another
        response under the same id is a message of its own, and never mixed with the first one.
        """
        end = parts[-1] if parts else None
        if self._repeatable_id is None or not (isinstance(end, ResponseRecorded) and end.finished):
            # A response that broke off counts by itself: the next attempt is whole.
            return self._events(parts)
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part.model_dump_json().encode() + b"\n")
        name = digest.hexdigest()
        self.recorded.message_id = self._repeatable_id(f"{name}/message")
        return self._events(parts, [self._repeatable_id(f"{name}/{index}") for index in range(len(parts))])

    def _recorder_of(self, response: Any) -> Recorder:
        if self._recorder is None:
            self._provider = self._provider or provider_of(response)
            self._recorder = recorder(self._provider, tool_names=self._tool_names)
            self._recorder.blocks.named_model = self._model
        return self._recorder

    def _fault(self, text: str) -> None:
        if self._recorder is None:
            self._unknown = text
        else:
            self._recorder.blocks.fault(text)

    def _events(self, parts: Sequence[Data], ids: Sequence[str] | None = None) -> list[AnyEvent]:
        shared: dict[str, Any] = {"provider": self._provider, "message_id": self.recorded.message_id}
        return [
            self._make_event(part, event_id=event_id, **shared)
            for part, event_id in zip(parts, ids or [new_event_id() for _ in parts], strict=True)
        ]

    def _may_retry(self) -> bool:
        return self._failure is None or isinstance(self._failure, UnavailableError)

    async def _publish_waiting(self) -> None:
        """Publishes what waits, in rounds. After a failure the events go on waiting."""
        self._failure, one_by_one = None, False
        while self._waiting and self._failure is None:
            events = self._waiting[:1] if one_by_one else self._waiting[:]
            try:
                await self.publish(events)
            except InvalidEventError as error:
                if len(events) > 1:
                    # One of them is too large, or all together are.
                    one_by_one = True
                    continue
                if isinstance(events[0].data, ResponseRecorded):
                    self._failure = error
                    break
                self._fault(f"a {events[0].type} could not be recorded: {error}")
            except RunfoldError as error:
                self._failure = error
                break
            del self._waiting[: len(events)]
        self._publishing = None

    def _note(self, events: Sequence[AnyEvent], positions: Sequence[Position]) -> None:
        self.recorded += positions
        self.recorded.calls += [event.data for event in events if isinstance(event.data, ToolCall)]


async def record_stream(
    stream: AsyncIterable[ChunkT] | Iterable[ChunkT], recording: Recording
) -> AsyncGenerator[ChunkT, None]:
    """See `Run.record_stream`."""
    try:
        async for chunk in stream if isinstance(stream, AsyncIterable) else _on_a_thread(stream):
            recording.take(chunk)
            yield chunk
    except Exception as broke:
        try:
            await recording.end(finished=False)
        except RunfoldError as error:
            broke.add_note(f"some of what had arrived is not recorded: {error}")
        raise
    except BaseException:
        # The caller has closed the stream early.
        await recording.end(finished=False)
        raise
    await recording.end(finished=True)


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
