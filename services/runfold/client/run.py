"""One run, to publish to and to read back."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from runfold.blobs.log_blobs import NO_STORE, LogBlobs, fetch_blobs
from runfold.blobs.store import BlobStore
from runfold.client.appender import Appender, Position
from runfold.client.envelope import Envelope, RecordOptions, ResponseEnvelope
from runfold.client.fitting import check_request, fit_messages
from runfold.client.new_run import NewRun
from runfold.client.pending import Pending
from runfold.client.prefixes import (
    AsOfOptions,
    LedgerOptions,
    RunView,
    StateChange,
    as_of,
    changes_of,
    read_prefix,
    split_options,
)
from runfold.client.recording import Recorded, Recording, record_stream
from runfold.client.run_log import Reveal
from runfold.encryption.seal import Seal
from runfold.ids import recording_ids
from runfold.log.catalog_view import CatalogView
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings
from runfold.log.shared import forward
from runfold_projections.admission import Admitted
from runfold_projections.as_of import AsOf
from runfold_projections.budget import Budget
from runfold_projections.endings import has_broken_off
from runfold_projections.fitting import place_messages
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.providers import (
    Encoded,
    check_names,
    check_provider,
    encode,
    validate,
)
from runfold_projections.repair import repair
from runfold_projections.validation import Fault
from runfold_schemas.blobs import reference_in
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_data
from runfold_schemas.data import Data
from runfold_schemas.errors import BlobNotFoundError, InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message, Provider
from runfold_schemas.runs import (
    ForkedFrom,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunPaused,
    RunResumed,
    RunStarted,
)

ChunkT = TypeVar("ChunkT")

Fork = Callable[[Life, AsOf, NewRun], Awaitable["Run"]]
"""Forks the run of a life, as of a place in its log."""


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
        blobs: BlobStore | None = None,
        seal: Seal | None = None,
        reveal: Reveal | None = None,
        fork: "Fork | None" = None,
    ) -> None:
        self._fork = fork
        self._settings = settings
        self._publisher = publisher
        self._blobs = blobs
        self._appender = Appender(
            settings,
            catalog,
            publisher,
            life,
            turn_id=turn_id,
            is_new=is_new,
            forward=self._forward,
            blobs=LogBlobs(blobs, life.log_id) if blobs is not None else None,
            seal=seal,
            reveal=reveal,
        )
        self._pending: Pending[Position] = Pending()
        self.life = life
        self.is_new = is_new
        """Whether this client has just opened the run. False for a run that existed before."""
        self.forked_from: ForkedFrom | None = None
        """Where the run comes from, if `fork` has returned it."""

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

        Raises `InvalidEventError`, `EventTooLargeError`, `RunEndedError`, `UnavailableError`, and
        `RunNotFoundError` for a run that was deleted. Raises `QuarantinedError` if the run's log
        does not exist, for example because Kafka lost it.

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
    async def ledger(self, **options: Unpack[AsOfOptions]) -> list[Message]: ...

    @overload
    async def ledger(
        self,
        format: Provider,  # as over HTTP
        *,
        fit: Budget | None = None,
        **options: Unpack[LedgerOptions],
    ) -> Encoded: ...

    async def ledger(
        self,
        format: Provider | None = None,  # noqa: A002  # as over HTTP
        *,
        fit: Budget | None = None,
        **options: Unpack[LedgerOptions],
    ) -> list[Message] | Encoded:
        """The transcript to hand to a model provider, rebuilt from the log. With `format`, the
        request of that provider. `as_of_offset` and the like show it as it was.

        With `fit`, a request that is too long lacks messages of its beginning, or has a `Summary`
        of the run instead of them. `Encoded.fitted` has the messages that wait for a summary.

        Raises `InexpressibleError` for a part that the provider has no form for, unless `lossy` is
        "drop". A request has the bytes of blobs, as many as the provider takes; messages have
        references to blobs. Raises `BudgetExceededError` if the last messages alone exceed the
        budget. Raises `InvalidEventError` for an unknown format, for `fit` without a format, and
        for a place that the run does not have.
        """
        place, encoding = split_options(options)
        check_request(format, fit, encoding)
        log = await self._entries(place)
        if format is None:
            return build_messages_from_log(log)
        fitted = await fit_messages(place_messages(log), fit, format, encoding) if fit else None
        messages = fitted.messages if fitted else build_messages_from_log(log)
        if "blobs" not in encoding and (
            fetched := await self._fetch_blobs(messages, format, encoding.get("maker"))
        ):
            encoding["blobs"] = fetched
        return replace(encode(messages, format, **encoding), fitted=fitted)

    async def view(self, **options: Unpack[AsOfOptions]) -> RunView:
        """The run's record and its own state, as they are now or were at an earlier moment. Raises
        `InvalidEventError` for a place that the run does not have.
        """
        return (await read_prefix(self._appender.log, as_of(options))).view(self.run_id)

    async def state_changes(self, key: str, **options: Unpack[AsOfOptions]) -> list[StateChange]:
        """The events of this run that set a key of state, the first one first. For a shared key,
        the changes by other runs are missing.
        """
        return changes_of(await read_prefix(self._appender.log, as_of(options)), key)

    async def faults(
        self,
        provider: Provider,
        *,
        thinking: bool = False,
        model: str | None = None,
        maker: str | None = None,
        **options: Unpack[AsOfOptions],
    ) -> list[Fault]:
        """All reasons for which the provider would refuse the run's ledger, as it is now or was at
        an earlier moment.

        `thinking` says whether the request asks the model to think. `model` and `maker` name the
        model that gets the request. Without a model, a finished answer at the end is no fault,
        because it waits for the user. Raises `InvalidEventError` for an unknown provider, and for a
        place that the run does not have.
        """
        check_provider(provider)
        log = await self._entries(as_of(options))
        messages = build_messages_from_log(log)
        blobs = await self._fetch_blobs(messages, provider, maker)
        return validate(
            messages,
            provider,
            thinking=thinking,
            model=model,
            maker=maker,
            blobs=blobs,
            broken_off=has_broken_off(log),
        )

    async def read_blob(self, reference: str) -> bytes:
        """The bytes that a `blob:` URL in an event or a message of this run refers to.

        Raises `BlobNotFoundError`, and `InvalidEventError` for any other URL.
        """
        blob = reference_in(reference)
        if blob is None:
            raise InvalidEventError(f"{reference!r:.100} is not a URL of a blob", field="url")
        if self._blobs is None:
            raise BlobNotFoundError(blob.sha256, reason=NO_STORE)
        return await self._blobs.get(self.life.log_id, blob)

    async def repair(self) -> list[Position]:
        """Appends the events after which every provider accepts the ledger, also if the run has
        ended. Appends nothing if the ledger is right.
        """
        return await self.publish_batch(repair(await self._entries()), late=True)

    async def fork(
        self,
        *,
        at: int | None = None,
        before_turn: str | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        repair: bool = True,
    ) -> "Run":
        """A new run of the same agent that begins with copies of this run's events: up to the
        offset `at`, which it includes, or before the first event of `before_turn`, or all of them.

        The copies have no effects beyond the fork: they change no memory and no shared state, and
        the tokens that they used count for this run alone. The fork is running, belongs to no
        session but `session_id`, and has the labels of this run with `labels` merged over them.
        Calls without a result get one that says that they were interrupted, so every provider
        accepts the ledger; without `repair`, they stay open for you to answer.

        With `run_id`, the call is repeatable: if that run is this fork already, it is returned.

        Raises `InvalidEventError` for a place that the run does not have, `InvalidIdError`,
        `RunConflictError`, `BlobNotFoundError` if attachments would have to be copied and no blob
        store is configured, and `UnavailableError`.
        """
        assert self._fork is not None
        if at is not None and before_turn is not None:
            raise InvalidEventError("only one of at and before_turn can be given", field="before_turn")
        place = AsOf(offset=at, before_turn=before_turn)
        return await self._fork(self.life, place, NewRun(run_id, session_id, labels or {}, repair))

    # Record what a model answers.

    async def record(self, response: Any, **options: Unpack[RecordOptions]) -> Recorded:
        """Publishes a model's response, an object of its SDK or decoded JSON, and returns when it
        is durable.

        Everything in the response is kept: an unknown part as it is, and a wrong part with a fault
        on the last event.

        Two calls record two messages. With the same `recording_id`, the second call of the same run
        counts for nothing if the response is the same, also after a crash. Another response is
        another message.

        Raises what `publish_batch` raises. Raises `InvalidEventError` if the response is not one of
        `provider`, or shows no provider.
        """
        recording = self._recording(options)
        return await recording.publish(recording.events_of(response))

    def record_stream(
        self,
        stream: AsyncIterable[ChunkT] | Iterable[ChunkT],
        *,
        into: Recorded | None = None,
        **options: Unpack[RecordOptions],
    ) -> AsyncGenerator[ChunkT, None]:
        """Yields the chunks of a model's stream untouched, and publishes their content in the
        background. `into` gets what `record` would return.

        All of the stream is durable when it has ended. If the stream breaks off or is closed early,
        the chunks that arrived are published and marked as unfinished. A chunk that cannot be
        recorded is a fault on the last event. If Kafka is away, events wait until the end of the
        stream, which then raises `UnavailableError`. With `recording_id`, everything is published
        at the end, so that a second attempt never mixes with the first. Takes what `record` takes.
        """
        return record_stream(stream, self._recording(options, into=into))

    def _recording(self, options: RecordOptions, *, into: Recorded | None = None) -> Recording:
        check_names(options, RecordOptions)
        if options.get("provider") is not None:
            check_provider(options["provider"])
        request, recording_id = options.get("request"), options.get("recording_id")
        envelope = {name: options[name] for name in ResponseEnvelope.__annotations__ if name in options}  # type: ignore[literal-required]
        return Recording(
            partial(self.event, **envelope),
            partial(self.publish_batch, late=options.get("late", False)),
            provider=options.get("provider"),
            model=options.get("model"),
            tool_names=request.tool_names if request else None,
            repeatable_id=None if recording_id is None else recording_ids(self.run_id, recording_id),
            into=into,
        )

    async def _fetch_blobs(
        self, messages: Sequence[Message], provider: Provider, maker: str | None
    ) -> dict[str, bytes | str]:
        return await fetch_blobs(self._blobs, self.life.log_id, messages, provider, maker)

    async def _entries(self, place: AsOf | None = None) -> list[tuple[int, AnyEvent]]:
        """The events that count with their offsets, by which amendments name them."""
        if place is not None and place != AsOf():
            return (await read_prefix(self._appender.log, place)).entries()
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
