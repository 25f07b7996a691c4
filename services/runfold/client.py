"""What agents import: open a run, publish its events, read it back. Base dependencies only.

    async with Runfold("127.0.0.1:9092") as runfold:
        async with runfold.run(agent_id="support", session_id="s-1") as run:
            await run.publish(UserMessage(message="Where is my parcel?"))

Leaving the block completes the run; an exception fails it with the error.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from runfold.ids import new_event_id, new_log_id, uuid7
from runfold.log.admin import LogAdmin
from runfold.log.catalog import CatalogView, bell_record, life_record, partition_of
from runfold.log.publisher import Ack, Outgoing, Publisher, record_size
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold_projections.admission import Admission, Admitted
from runfold_projections.ledger import build_messages_from_events
from runfold_schemas.catalog import Life
from runfold_schemas.codec import encode, headers, new_event
from runfold_schemas.errors import (
    EventTooLargeError,
    RejectedError,
    RunConflictError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
)
from runfold_schemas.events import (
    AnyEvent,
    Data,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunOpened,
    RunPaused,
    RunResumed,
    RunStarted,
)
from runfold_schemas.messages import Message
from runfold_schemas.topics import RECORD_BYTES_MAX, Topics, check_id

_ENDINGS = (RunCompleted, RunFailed, RunCanceled)


class Position(NamedTuple):
    """Where an event is: `offset` counts the records of the run's log from 0."""

    run_id: str
    offset: int


class Runfold:
    """A connection to the log. Use it as an async context manager; one serves a whole process and any number of runs.

    Args:
        kafka: `bootstrap.servers`, host:port, several by comma.
        prefix: the topics' common prefix; one prefix is one Runfold.
        options: the other fields of `LogSettings`.
    """

    def __init__(self, kafka: str = "127.0.0.1:9092", *, prefix: str = "runfold", **options: Any) -> None:
        self.settings = LogSettings(kafka=kafka, prefix=prefix, **options)
        self.topics = Topics(prefix)
        self._stack = AsyncExitStack()
        self._publisher: Publisher
        self.admin: LogAdmin
        self.catalog: CatalogView

    @classmethod
    def of(cls, settings: LogSettings) -> Self:
        """A connection with settings that are there already, as the services have them."""
        return cls(**dict(settings))

    async def __aenter__(self) -> Self:
        try:
            self.admin = await self._stack.enter_async_context(LogAdmin.connect(self.settings))
            self._publisher = await self._stack.enter_async_context(Publisher.connect(self.settings))
            self.catalog = await self._stack.enter_async_context(CatalogView.connect(self.settings))
            await self.admin.check_broker()
            await self.admin.create_shared_topics()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def run(self, *, agent_id: str, **options: Any) -> AsyncIterator["Run"]:
        """A run for the length of the block: completed when it is left, failed with the error when an exception leaves it.

        Takes what `open_run` takes.
        """
        run = await self.open_run(agent_id=agent_id, **options)
        try:
            yield run
        except BaseException as error:
            await _fail(run, error)
            raise
        if not run.ended:
            await run.complete()

    async def open_run(
        self,
        *,
        agent_id: str,
        run_id: str | None = None,
        session_id: str | None = None,
        turn_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        pending: bool = False,
        started_at: datetime | None = None,
    ) -> "Run":
        """Opens a run, or takes up the run of that id: opening twice is the same run. It starts now, or at `started_at`.

        Raises `RunConflictError` where the id belongs to another agent or session, `InvalidIdError`, `UnavailableError`.
        """
        check_id(agent_id, name="agent_id")
        if session_id is not None:
            check_id(session_id, name="session_id")
        standing = await self.catalog.lookup(check_id(run_id, name="run_id")) if run_id is not None else None
        if standing is None:
            opened = Life(
                run_id=run_id or str(uuid7()), log_id=new_log_id(), agent_id=agent_id, session_id=session_id
            )
            opening = RunOpened(
                agent_id=agent_id,
                log_id=opened.log_id,
                session_id=session_id,
                status="pending" if pending else "running",
                labels=dict(labels or {}),
            )
            await self._open_log(opened, opening, turn_id=turn_id, started_at=started_at)
            # Only a given id can have been opened by somebody else meanwhile; then the first in the catalog's order stands.
            standing = await self.catalog.lookup(opened.run_id) if run_id is not None else opened
            if standing is None or standing.log_id == opened.log_id:
                return Run(self, self._publisher, opened, turn_id=turn_id, is_new=True)
            lost = self.topics.run(opened.run_id, opened.log_id)
            await self._publisher.forget(lost)
            await self.admin.delete_topics([lost])
        if standing.agent_id != agent_id or (session_id is not None and standing.session_id != session_id):
            raise RunConflictError(
                standing.run_id, agent_id=standing.agent_id, session_id=standing.session_id
            )
        return Run(self, self._publisher, standing, turn_id=turn_id)

    async def get_run(self, run_id: str, *, turn_id: str | None = None) -> "Run":
        """The run of that id, to publish to it or to read it. Raises `RunNotFoundError`, `UnavailableError`."""
        life = await self.catalog.lookup(check_id(run_id, name="run_id"))
        if life is None:
            raise RunNotFoundError(run_id)
        return Run(self, self._publisher, life, turn_id=turn_id)

    async def session_runs(self, session_id: str) -> list["Run"]:
        """The runs of a session, in the order of their opening. Reads the whole catalog."""
        await self.catalog.follow_all()
        lives = sorted(
            (life for life in self.catalog.lives() if life.session_id == session_id),
            key=lambda life: life.log_id,
        )
        return [Run(self, self._publisher, life) for life in lives]

    async def runs(self) -> list["Run"]:
        """All runs, in the order of their opening. Reads the whole catalog."""
        await self.catalog.follow_all()
        return [
            Run(self, self._publisher, life)
            for life in sorted(self.catalog.lives(), key=lambda life: life.log_id)
        ]

    async def history(self, *, session_id: str | None = None) -> AsyncIterator[tuple["Run", Admitted]]:
        """The log of every run, or of a session's runs, one run after the other in the order of their opening."""
        for run in await (self.runs() if session_id is None else self.session_runs(session_id)):
            async for admitted in run.history():
                yield run, admitted

    async def _open_log(
        self, life: Life, opening: RunOpened, *, turn_id: str | None, started_at: datetime | None
    ) -> None:
        topic = self.topics.run(life.run_id, life.log_id)
        event = new_event(
            opening,
            event_id=new_event_id(),
            run_id=life.run_id,
            timestamp=started_at or datetime.now(UTC),
            turn_id=turn_id,
        )
        record = outgoing(event, source=self.settings.source)
        _check_size([record])
        await self.admin.create_run_topic(topic)
        await self._publisher.prime([topic])
        await self._publisher.wait(await self._publisher.send(topic, record))
        announced = await self._publisher.send(
            self.topics.catalog, life_record(life), partition=partition_of(life.run_id)
        )
        await self._publisher.wait(announced)


class Run:
    """One run, to publish to and to read back. Get it from `Runfold.open_run`, `Runfold.run` or `Runfold.get_run`."""

    def __init__(
        self,
        runfold: Runfold,
        publisher: Publisher,
        life: Life,
        *,
        turn_id: str | None = None,
        is_new: bool = False,
    ) -> None:
        self._settings = runfold.settings
        self._catalog = runfold.catalog
        self._catalog_topic = runfold.topics.catalog
        self._publisher = publisher
        self._topic = runfold.topics.run(life.run_id, life.log_id)
        self._pending: set[asyncio.Task[Position]] = set()
        self._awake_since = time.monotonic() if is_new else float("-inf")
        self._ended = life.ended
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
        known = self._catalog.known(self.run_id)
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
        expected_offset: int | None = None,
    ) -> AnyEvent:
        """The event of this run that says `data`, not yet published. Raises `InvalidEventError`."""
        given = {
            "turn_id": turn_id if turn_id is not None else self.turn_id,
            "labels": dict(labels) if labels else None,
            "message_id": message_id,
            "expected_offset": expected_offset,
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

        `envelope` takes what `event` takes. `late` says that the event belongs to the run although that has ended.

        Raises `InvalidEventError`, `EventTooLargeError`, `RunEndedError`, `RejectedError` where `expected_offset` lost, and
        `UnavailableError`; after that one, publishing the same event (or the same `event_id`) again is safe.
        """
        return await (await self._post(data, late=late, **envelope))

    async def send(
        self, data: Data | AnyEvent, *, late: bool = False, **envelope: Any
    ) -> asyncio.Task[Position]:
        """As `publish`, but returns once the event is on its way: await the task, or `flush`, for its position."""
        return self._tracked(await self._post(data, late=late, **envelope))

    async def publish_batch(self, batch: Iterable[Data | AnyEvent], *, late: bool = False) -> list[Position]:
        """Appends several events as one record batch: all or none of them, next to each other."""
        events = [self._checked(data, late=late) for data in batch]
        if not events:
            return []
        records = [outgoing(event, source=self._settings.source) for event in events]
        _check_size(records)
        await self._ring_if_quiet()
        sent_at = time.monotonic()
        ack = await self._publisher.send_batch(self._topic, records)
        first = await self._acknowledged(ack, events, sent_at)
        return [Position(self.run_id, first.offset + index) for index in range(len(events))]

    async def flush(self) -> None:
        """Waits for everything that was sent; raises the first error of it."""
        pending, self._pending = self._pending, set()
        for outcome in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def start(self) -> Position:
        """A pending run runs."""
        return await self.publish(RunStarted())

    async def pause(self, reason: str | None = None) -> Position:
        return await self.publish(RunPaused(reason=reason))

    async def resume(self) -> Position:
        return await self.publish(RunResumed())

    async def label(self, **labels: str) -> Position:
        """Adds labels to the run, or replaces those it has."""
        return await self.publish(RunLabeled(labels=labels))

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

    async def events(self) -> AsyncIterator[AnyEvent]:
        """The events that count (accepted ones, and late ones), in order, read from Kafka."""
        async for admitted in self.history():
            if admitted.counts and admitted.event is not None:
                yield admitted.event

    async def ledger(self) -> list[Message]:
        """The transcript to hand to a model provider, rebuilt from the log."""
        return build_messages_from_events([event async for event in self.events()])

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
        _check_size([record])
        await self._ring_if_quiet()
        sent_at = time.monotonic()
        ack = await self._publisher.send(self._topic, record)
        return self._acknowledged(ack, [event], sent_at)

    def _tracked(self, acknowledged: Coroutine[Any, Any, Position]) -> asyncio.Task[Position]:
        task = asyncio.create_task(acknowledged)
        self._pending.add(task)
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: asyncio.Task[Position]) -> None:
        # A failure stays for `flush` to raise; reading the exception keeps asyncio from reporting it a second time.
        if task.cancelled() or task.exception() is None:
            self._pending.discard(task)

    async def _acknowledged(self, ack: Ack, events: list[AnyEvent], sent_at: float) -> Position:
        position = Position(self.run_id, (await self._publisher.wait(ack)).offset)
        if time.monotonic() - self._awake_since > self._settings.park_seconds / 2:
            # The acknowledgement took so long that the run may have been parked before the record was appended.
            await self._ring()
        else:
            self._awake_since = max(self._awake_since, sent_at)
        await self._check_outcomes(events, first_offset=position.offset)
        self._ended = self._ended or any(isinstance(event.data, _ENDINGS) for event in events)
        return position

    async def _check_outcomes(self, events: list[AnyEvent], *, first_offset: int) -> None:
        """An acknowledgement right after `expected_offset` means accepted; otherwise the log is asked."""
        if all(
            event.expected_offset in (None, first_offset + index - 1) for index, event in enumerate(events)
        ):
            return
        async for admitted in self.history(first_offset=first_offset, end=first_offset + len(events)):
            if admitted.outcome == "rejected":
                raise RejectedError(self.run_id, offset=admitted.record.offset, reason=admitted.reason)

    async def _ring_if_quiet(self) -> None:
        if time.monotonic() - self._awake_since > self._settings.park_seconds / 2:
            await self._ring()

    async def _ring(self) -> None:
        self._awake_since = time.monotonic()
        await self._publisher.send(
            self._catalog_topic, bell_record(self.run_id), partition=partition_of(self.run_id)
        )


async def _fail(run: Run, error: BaseException) -> None:
    """The error that left the block is the one to raise, also where the run cannot be told of it."""
    if run.ended:
        return
    try:
        await run.fail(f"{type(error).__name__}: {error}")
    except RunfoldError as failure:
        error.add_note(f"run {run.run_id!r} could not be marked as failed: {failure}")


def outgoing(event: AnyEvent, *, source: str) -> Outgoing:
    """The record that carries an event; the key lets consumers of many topics group by run."""
    return Outgoing(key=event.run_id.encode(), value=encode(event), headers=headers(event, source=source))


def _check_size(records: list[Outgoing]) -> None:
    size = sum(map(record_size, records))
    if size > RECORD_BYTES_MAX:
        raise EventTooLargeError(size=size, limit=RECORD_BYTES_MAX)
