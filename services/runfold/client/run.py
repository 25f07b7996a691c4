"""One run, to publish to and to read back."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from runfold.client.appender import Appender, Position
from runfold.client.envelope import Envelope, ResponseEnvelope
from runfold.client.pending import Pending
from runfold.client.recording import parts_of, record_stream
from runfold.log.catalog import CatalogView
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings
from runfold.log.shared import forward
from runfold_projections.admission import Admitted
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.providers import Encoded, Lossy, encode, validate
from runfold_projections.repair import repair
from runfold_projections.validation import Fault
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_data
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message, Provider
from runfold_schemas.runs import (
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunPaused,
    RunResumed,
    RunStarted,
)

ChunkT = TypeVar("ChunkT")


class Run:
    """One run, to publish to and to read back. `Runfold.run`, `Runfold.open_run` and
    `Runfold.get_run` return one.

    Every verb may raise `UnavailableError`: Kafka did not answer, and the same call may succeed
    later.
    """

    def __init__(
        self,
        settings: LogSettings,
        catalog: CatalogView,
        publisher: Publisher,
        life: Life,
        *,
        turn_id: str | None = None,
        is_new: bool = False,
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._appender = Appender(
            settings, catalog, publisher, life, turn_id=turn_id, is_new=is_new, forward=self._forward
        )
        self._pending: Pending[Position] = Pending()
        self.life = life
        self.is_new = is_new
        """Whether this client has just opened the run. False for a run that existed before."""

    @property
    def run_id(self) -> str:
        return self.life.run_id

    @property
    def turn_id(self) -> str | None:
        """The turn of events that are published without one of their own."""
        return self._appender.turn_id

    @turn_id.setter
    def turn_id(self, turn_id: str | None) -> None:
        self._appender.turn_id = turn_id

    @property
    def ended(self) -> bool:
        """Whether this client knows that the run has ended."""
        return self._appender.ended

    def event(self, data: Data, **envelope: Unpack[Envelope]) -> AnyEvent:
        """The event of this run that carries `data`, not yet published. Raises
        `InvalidEventError`.
        """
        return self._appender.event(data, **envelope)

    # Publish.

    async def publish(
        self, data: Data | AnyEvent, *, late: bool = False, **envelope: Unpack[Envelope]
    ) -> Position:
        """Appends one event and returns when it is durable.

        `late` marks an event that belongs to the run although the run has ended.

        Raises `InvalidEventError`, `EventTooLargeError`, `RunEndedError`, and `UnavailableError`.
        After `UnavailableError` it is safe to publish the same event, or the same `event_id`,
        again. Raises `RejectedError` if another event came before `expected_offset`, or if another
        client has ended the run.
        """
        return await self._appender.append(data, late=late, **envelope)

    async def send(
        self, data: Data | AnyEvent, *, late: bool = False, **envelope: Unpack[Envelope]
    ) -> asyncio.Task[Position]:
        """As `publish`, but returns when the event is on its way. Await the task for its position,
        or `flush` for all events that were sent.

        If you await a task that failed, `flush` does not raise its error again.
        """
        return self._pending.start(_only(await self._appender.post(data, late=late, **envelope)))

    async def publish_batch(self, batch: Iterable[Data | AnyEvent], *, late: bool = False) -> list[Position]:
        """Appends several events as one record batch: all of them or none, next to each other.

        Raises what `publish` raises. An `InvalidEventError` has the `index` of its event.
        """
        return await self._appender.append_batch(batch, late=late)

    async def flush(self) -> None:
        """Waits until everything that was sent is durable. Raises the first error of a `send` whose
        task nobody has awaited.
        """
        await self._pending.flush()

    async def start(self) -> Position:
        """Starts a pending run."""
        return await self.publish(RunStarted())

    async def pause(self, reason: str | None = None) -> Position:
        return await self.publish(RunPaused(reason=reason))

    async def resume(self) -> Position:
        return await self.publish(RunResumed())

    async def label(self, **labels: str) -> Position:
        """Adds labels to the run, or replaces labels of the same keys."""
        return await self.publish(new_data(RunLabeled, labels=labels))

    async def complete(self) -> Position:
        return await self._end(RunCompleted())

    async def fail(self, error: str) -> Position:
        return await self._end(RunFailed(error=error))

    async def cancel(self, reason: str | None = None) -> Position:
        return await self._end(RunCanceled(reason=reason))

    # Read back.

    def history(self, *, first_offset: int = 0, end: int | None = None) -> AsyncGenerator[Admitted, None]:
        """The records of the run's log in order, each with its outcome, read from Kafka: from
        `first_offset` to `end` (exclusive; by default the end of the log as it is now).
        """
        return self._appender.log.history(first_offset=first_offset, end=end)

    async def events(self) -> AsyncGenerator[AnyEvent, None]:
        """The events that count (accepted events and late events) in order, read from Kafka."""
        async with aclosing(self._appender.log.entries()) as entries:
            async for _, event in entries:
                yield event

    @overload
    async def ledger(self) -> list[Message]: ...

    @overload
    async def ledger(self, format: Provider, *, lossy: Lossy = "refuse") -> Encoded: ...

    async def ledger(
        self,
        format: Provider | None = None,  # noqa: A002  # as over HTTP
        *,
        lossy: Lossy = "refuse",
    ) -> list[Message] | Encoded:
        """The transcript to hand to a model provider, rebuilt from the log. With `format`, the
        request of that provider.

        Raises `InexpressibleError` for a part that the provider has no form for, unless `lossy` is
        "drop".
        """
        messages = build_messages_from_log(await self._entries())
        return messages if format is None else encode(messages, format, lossy=lossy)

    async def faults(self, provider: Provider, *, thinking: bool = False) -> list[Fault]:
        """All reasons for which the provider would refuse the run's ledger. `thinking` says whether
        the request asks the model to think.
        """
        return validate(await self.ledger(), provider, thinking=thinking)

    async def repair(self) -> list[Position]:
        """Appends the events after which every provider accepts the ledger, also if the run has
        ended. Appends nothing if the ledger is right.
        """
        return await self.publish_batch(repair(await self._entries()), late=True)

    # Record what a model answers.

    async def record(
        self,
        response: Any,
        *,
        provider: Provider | None = None,
        request: Encoded | None = None,
        **envelope: Unpack[ResponseEnvelope],
    ) -> list[Position]:
        """Publishes a model's response, an object of its SDK or decoded JSON, and returns when it
        is durable.

        `request` is the result of `ledger(format)`; it is needed if tools were renamed there.
        `provider` is needed only if the response does not show it. Everything in the response is
        kept: an unknown part as it is, and a wrong part with a fault on the last event.
        """
        return await self._publish_parts(
            *parts_of(response, provider=provider, tool_names=request.tool_names if request else None),
            **envelope,
        )

    def record_stream(
        self,
        stream: AsyncIterable[ChunkT] | Iterable[ChunkT],
        *,
        provider: Provider | None = None,
        request: Encoded | None = None,
        **envelope: Unpack[ResponseEnvelope],
    ) -> AsyncGenerator[ChunkT, None]:
        """Yields the chunks of a model's stream untouched, and publishes their content in the
        background.

        All of the stream is durable when it has ended. If the stream breaks off or is closed early,
        the chunks that arrived are published and marked as unfinished. Takes what `record` takes.
        """
        tool_names = request.tool_names if request else {}
        publish = partial(self._publish_parts, **envelope)
        return record_stream(stream, publish, provider=provider, tool_names=tool_names)

    async def _publish_parts(
        self,
        parts: Sequence[Data],
        provider: Provider,
        message_id: str,
        **envelope: Unpack[ResponseEnvelope],
    ) -> list[Position]:
        return await self.publish_batch(
            [self.event(data, provider=provider, message_id=message_id, **envelope) for data in parts]
        )

    async def _entries(self) -> list[tuple[int, AnyEvent]]:
        """The events that count with their offsets, by which amendments name them."""
        return [entry async for entry in self._appender.log.entries()]

    async def _end(self, data: RunCompleted | RunFailed | RunCanceled) -> Position:
        await self.flush()
        return await self.publish(data)

    async def _forward(self, accepted: Sequence[AnyEvent]) -> None:
        """Forwards what the events change of shared state."""
        life = self.life
        await forward(self._publisher, self._settings, accepted, app=life.agent_id, user=life.user_id)


async def _only(posted: Coroutine[Any, Any, list[Position]]) -> Position:
    [position] = await posted
    return position
