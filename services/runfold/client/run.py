"""One run, to publish to and to read back."""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar, overload

from runfold.client.recording import record_stream
from runfold.ids import new_event_id
from runfold.log.catalog import CatalogView, bell_record, partition_of
from runfold.log.publisher import Ack, Outgoing, Publisher, record_size
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.log.shared import forward
from runfold_projections.admission import Admission, Admitted, Outcome
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.providers import Encoded, Lossy, encode, provider_of, recorder, validate
from runfold_projections.repair import repair as mend
from runfold_projections.validation import Fault
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record, decode, headers, new_data, new_event
from runfold_schemas.codec import encode as encode_event
from runfold_schemas.data import Data
from runfold_schemas.errors import (
    EventTooLargeError,
    InvalidEventError,
    RejectedError,
    RunEndedError,
    UndecodableError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message, Provider
from runfold_schemas.runs import (
    ENDINGS,
    LIFECYCLE,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunPaused,
    RunResumed,
    RunStarted,
)
from runfold_schemas.topics import RECORD_BYTES_MAX, Topics

ChunkT = TypeVar("ChunkT")


class Position(NamedTuple):
    """Where an event is: `offset` counts the records of the run's log from 0."""

    run_id: str
    offset: int
    is_duplicate: bool = False
    """The log has the event from before. Only known where the log was asked: where an
    `expected_offset` may have lost.
    """


class Run:
    """One run, to publish to and to read back. Get it from `Runfold.open_run`, `Runfold.run` or
    `Runfold.get_run`.
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
        forwards: bool = True,
    ) -> None:
        """With `forwards`, changes of shared state are told to those who decide them as soon as
        they are durable.
        """
        topics = Topics(settings.prefix)
        self._settings = settings
        self._catalog = catalog
        self._catalog_topic = topics.catalog
        self._publisher = publisher
        self._topic = topics.run(life.run_id, life.log_id)
        self._forwards = forwards
        self._pending: dict[asyncio.Task[Position], None] = {}
        self._awake_since = time.monotonic() if is_new else float("-inf")
        self._ended = life.ended
        # Nobody else has ended the run before this offset: up to it the log is ours, or was read.
        self._known_offset = 1 if is_new else 0
        self.life = life
        self.turn_id = turn_id
        self.is_new = is_new
        """Whether it was opened here, and not taken up."""

    @property
    def run_id(self) -> str:
        return self.life.run_id

    @property
    def ended(self) -> bool:
        """Whether the run is known here to have ended."""
        known = self._catalog.peek(self.run_id)
        return self._ended or (known is not None and known.log_id == self.life.log_id and known.ended)

    def event(
        self,
        data: Data,
        *,
        event_id: str | None = None,
        timestamp: datetime | None = None,
        turn_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        message_id: str | None = None,
        provider: Provider | None = None,
        expected_offset: int | None = None,
        state_delta: Mapping[str, Any] | None = None,
    ) -> AnyEvent:
        """The event of this run that says `data`, not yet published. Raises `InvalidEventError`."""
        given = {
            "turn_id": turn_id if turn_id is not None else self.turn_id,
            "labels": dict(labels) if labels else None,
            "message_id": message_id,
            "provider": provider,
            "expected_offset": expected_offset,
            "state_delta": state_delta,
        }
        return new_event(
            data,
            event_id=event_id or new_event_id(),
            run_id=self.run_id,
            timestamp=timestamp or datetime.now(UTC),
            **{name: value for name, value in given.items() if value is not None},
        )

    async def publish(self, data: Data | AnyEvent, *, late: bool = False, **envelope: Any) -> Position:
        """Appends one event and returns once it is durable.

        `envelope` takes what `event` takes. `late` says that the event belongs to the run although
        that has ended.

        Raises `InvalidEventError`, `EventTooLargeError`, `RunEndedError`, `RejectedError` where
        `expected_offset` lost or somebody else has ended the run, and `UnavailableError`; after
        that one, publishing the same event (or the same `event_id`) again is safe.
        """
        return await (await self._post(data, late=late, **envelope))

    async def send(
        self, data: Data | AnyEvent, *, late: bool = False, **envelope: Any
    ) -> asyncio.Task[Position]:
        """As `publish`, but returns once the event is on its way: await the task, or `flush`, for
        its position.
        """
        return self._tracked(await self._post(data, late=late, **envelope))

    async def publish_batch(self, batch: Iterable[Data | AnyEvent], *, late: bool = False) -> list[Position]:
        """Appends several events as one record batch: all or none of them, next to each other.

        Raises what `publish` does; an `InvalidEventError` has the event's `index`.
        """
        events: list[AnyEvent] = []
        records: list[Outgoing] = []
        for index, data in enumerate(batch):
            with _at(index):
                events.append(self._checked(data, late=late))
                records.append(outgoing(events[-1], source=self._settings.source))
        if not events:
            return []
        _check_expectations(events)
        check_size(records)
        await self._ring_if_quiet()
        sent_at = time.monotonic()
        ack = await self._publisher.send_batch(self._topic, records)
        first = await self._acknowledged(ack, events, sent_at)
        return [Position(self.run_id, first.offset + index) for index in range(len(events))]

    async def flush(self) -> None:
        """Waits for everything that was sent; raises the first error of it that nobody who awaited
        the task was told.
        """
        pending = list(self._pending)
        if pending:
            await asyncio.wait(pending)
        for task in pending:
            self._pending.pop(task, None)
        errors = [error for task in pending if _has_untold_error(task) and (error := task.exception())]
        if errors:
            raise errors[0]

    async def start(self) -> Position:
        """A pending run runs."""
        return await self.publish(RunStarted())

    async def pause(self, reason: str | None = None) -> Position:
        return await self.publish(RunPaused(reason=reason))

    async def resume(self) -> Position:
        return await self.publish(RunResumed())

    async def label(self, **labels: str) -> Position:
        """Adds labels to the run, or replaces those it has."""
        return await self.publish(new_data(RunLabeled, labels=labels))

    async def complete(self) -> Position:
        return await self._end(RunCompleted())

    async def fail(self, error: str) -> Position:
        return await self._end(RunFailed(error=error))

    async def cancel(self, reason: str | None = None) -> Position:
        return await self._end(RunCanceled(reason=reason))

    async def history(self, *, first_offset: int = 0, end: int | None = None) -> AsyncIterator[Admitted]:
        """What the log holds of this run, record by record with its outcome, read from Kafka."""
        admission = Admission(self.run_id)
        async for records in read(self._settings, self._topic, end=end):
            for record in records:
                admitted = admission.admit(record)
                if record.offset >= first_offset:
                    yield admitted

    async def ended_before(self, offset: int, *, not_before: int = 0) -> bool:
        """Whether the log had ended before `offset`; it is known that it had not before
        `not_before`.
        """
        async for records in read(self._settings, self._topic, first_offset=not_before, end=offset):
            if any(_may_end(record) for record in records):
                break
        else:
            return False
        async for admitted in self.history(end=offset):
            if admitted.counts and admitted.event is not None and admitted.event.type in ENDINGS:
                return True
        return False

    async def events(self) -> AsyncIterator[AnyEvent]:
        """The events that count (accepted ones, and late ones), in order, read from Kafka."""
        async for admitted in self.history():
            if admitted.counts and admitted.event is not None:
                yield admitted.event

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
        """The transcript to hand to a model provider, rebuilt from the log; with `format`, as its
        request.

        Raises `InexpressibleError` for a part that the provider has no form for, unless `lossy` is
        "drop".
        """
        messages = build_messages_from_log(await self._log())
        return messages if format is None else encode(messages, format, lossy=lossy)

    async def faults(self, provider: Provider, *, thinking: bool = False) -> list[Fault]:
        """Everything for which the provider would refuse the run's ledger; `thinking` says whether
        it is asked to think.
        """
        return validate(await self.ledger(), provider, thinking=thinking)

    async def repair(self) -> list[Position]:
        """Appends what makes every provider accept the ledger, also to a run that has ended.
        Nothing if it is right.
        """
        return await self.publish_batch(mend(await self._log()), late=True)

    async def _log(self) -> list[tuple[int, AnyEvent]]:
        """The events that count with their offsets, by which amendments name them."""
        return [
            (one.record.offset, one.event)
            async for one in self.history()
            if one.counts and one.event is not None
        ]

    async def record(
        self,
        response: Any,
        *,
        provider: Provider | None = None,
        request: Encoded | None = None,
        **envelope: Any,
    ) -> list[Position]:
        """Publishes a model's response, as its SDK or decoded JSON gives it, and returns once that
        is durable.

        `request` is what `ledger(format)` gave, where it renamed tools. `provider` need be named
        only where the response does not show it. `envelope` takes what `event` takes. Whatever the
        response holds is kept: what is unknown as it is, what is wrong with a fault on its last
        event.
        """
        named = provider or provider_of(response)
        recording = recorder(named, tool_names=request.tool_names if request else None)
        said = recording.response(response)
        return await self._publish_said(
            said, named, recording.blocks.message_id or new_event_id(), **envelope
        )

    def record_stream(
        self,
        stream: AsyncIterable[ChunkT] | Iterable[ChunkT],
        *,
        provider: Provider | None = None,
        request: Encoded | None = None,
        **envelope: Any,
    ) -> AsyncGenerator[ChunkT, None]:
        """Hands on the chunks of a model's stream untouched, and publishes what they say in the
        background.

        When the stream has ended, all of it is durable. A stream that breaks off, or that is closed
        early, leaves what arrived, marked unfinished. Takes what `record` takes.
        """
        tool_names = request.tool_names if request else {}
        publish = partial(self._publish_said, **envelope)
        return record_stream(stream, publish, provider=provider, tool_names=tool_names)

    async def _publish_said(
        self, said: Sequence[Data], provider: Provider, message_id: str, **envelope: Any
    ) -> list[Position]:
        return await self.publish_batch(
            [self.event(data, provider=provider, message_id=message_id, **envelope) for data in said]
        )

    def _checked(self, data: Data | AnyEvent, *, late: bool, **envelope: Any) -> AnyEvent:
        if self.ended and not late:
            raise RunEndedError(self.run_id)
        return self.event(data, **envelope) if isinstance(data, Data) else data

    async def _end(self, data: RunCompleted | RunFailed | RunCanceled) -> Position:
        await self.flush()
        return await self.publish(data)

    async def _post(
        self, data: Data | AnyEvent, *, late: bool, **envelope: Any
    ) -> Coroutine[Any, Any, Position]:
        """Sends one event; the coroutine that comes back waits for its position."""
        event = self._checked(data, late=late, **envelope)
        record = outgoing(event, source=self._settings.source)
        check_size([record])
        await self._ring_if_quiet()
        sent_at = time.monotonic()
        ack = await self._publisher.send(self._topic, record)
        return self._acknowledged(ack, [event], sent_at)

    def _tracked(self, acknowledged: Coroutine[Any, Any, Position]) -> asyncio.Task[Position]:
        task = asyncio.create_task(acknowledged)
        self._pending[task] = None
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: asyncio.Task[Position]) -> None:
        # A failure stays for `flush` to raise, unless somebody awaits the task meanwhile.
        if not _has_untold_error(task):
            self._pending.pop(task, None)

    async def _acknowledged(self, ack: Ack, events: list[AnyEvent], sent_at: float) -> Position:
        position = Position(self.run_id, (await self._publisher.wait(ack)).offset)
        if time.monotonic() - self._awake_since > self._settings.park_seconds / 2:
            # The acknowledgement took so long that the run may have been parked before the record
            # was appended.
            await self._ring()
        else:
            self._awake_since = max(self._awake_since, sent_at)
        outcomes = await self._outcomes(events, first_offset=position.offset)
        if self._forwards:
            accepted = [one for one, outcome in zip(events, outcomes, strict=True) if outcome == "accepted"]
            life = self.life
            await forward(self._publisher, self._settings, accepted, app=life.agent_id, user=life.user_id)
        self._ended = self._ended or any(event.type in ENDINGS for event in events)
        return position._replace(is_duplicate=outcomes[0] == "duplicate")

    async def _outcomes(self, events: list[AnyEvent], *, first_offset: int) -> list[Outcome]:
        """What has become of the events: asked of the log where it may have refused one, else as it
        is known here.
        """
        end = first_offset + len(events)
        is_known = first_offset == self._known_offset
        if is_known:
            self._known_offset = end
        # Nothing is between an event and the offset before it.
        is_expected = events[0].expected_offset in (None, first_offset - 1)
        if is_expected and not _may_be_refused(events, ended=self._ended or not is_known):
            return ["late" if self.ended else "accepted"] * len(events)
        outcomes: list[Outcome] = []
        async for admitted in self.history(end=end):
            if admitted.record.offset >= first_offset:
                outcomes.append(admitted.outcome)
            if admitted.event is not None and admitted.counts and admitted.event.type in ENDINGS:
                self._ended = True
            if admitted.outcome == "rejected" and admitted.record.offset >= first_offset:
                raise RejectedError(self.run_id, offset=admitted.record.offset, reason=admitted.reason)
        self._known_offset = max(self._known_offset, end)
        return outcomes

    async def _ring_if_quiet(self) -> None:
        if time.monotonic() - self._awake_since > self._settings.park_seconds / 2:
            await self._ring()

    async def _ring(self) -> None:
        self._awake_since = time.monotonic()
        await self._publisher.send(
            self._catalog_topic, bell_record(self.run_id), partition=partition_of(self.run_id)
        )


def outgoing(event: AnyEvent, *, source: str) -> Outgoing:
    """The record that carries an event; the key lets consumers of many topics group by run."""
    return Outgoing(
        key=event.run_id.encode(), value=encode_event(event), headers=headers(event, source=source)
    )


def _may_end(record: Record) -> bool:
    try:
        return decode(record.value).type in ENDINGS
    except UndecodableError:
        return False


@contextmanager
def _at(index: int) -> Iterator[None]:
    try:
        yield
    except InvalidEventError as error:
        raise InvalidEventError(str(error), field=error.field, index=index) from error


def _check_expectations(events: Sequence[AnyEvent]) -> None:
    """The log decides on each event by itself, so a batch with expectations could be split."""
    for index, event in enumerate(events):
        if event.expected_offset is not None and len(events) > 1:
            raise InvalidEventError(
                "expected_offset: it is for an event that is published alone",
                field="expected_offset",
                index=index,
            )


def _may_be_refused(events: Sequence[AnyEvent], *, ended: bool) -> bool:
    """Whether one of the events opens a run again, or comes to one that may have ended (`ended`),
    or been answered, before.
    """
    for event in events:
        # Of two answers to one trigger both have the same id, and each creates other memories.
        if event.type == "run_opened" or (ended and event.type in (*LIFECYCLE, "memories_generated")):
            return True
        ended = ended or event.type in ENDINGS
    return False


def _has_untold_error(task: asyncio.Task[Position]) -> bool:
    # asyncio's own note for "exception was never retrieved"; asking for the exception would count
    # as being told.
    return task.done() and task._log_traceback  # noqa: SLF001


def check_size(records: list[Outgoing]) -> None:
    size = sum(map(record_size, records))
    if size > RECORD_BYTES_MAX:
        raise EventTooLargeError(size=size, limit=RECORD_BYTES_MAX)
