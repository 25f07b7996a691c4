"""The client without `async`, for scripts and notebooks. It needs the base dependencies only.

    from runfold.sync import Runfold

    with Runfold("127.0.0.1:9092") as runfold:
        with runfold.run(agent_id="support", session_id="s-1") as run:
            run.publish(UserMessage(message="Where is my parcel?"))

The verbs are those of `runfold.Runfold`, with the same parameters. Each call blocks the calling
thread until it has its result, also in a thread whose event loop is running, as in a notebook.
Threads may share all objects.

A client, its sessions and memories, and its runs share one connection, which stays open while any
of them is in use.

Most verbs are one line: `_verb` takes the parameters and the docstring of the asynchronous method.
A method is written out if its result is asynchronous itself (a run, an iterator or a task), or if
it takes an iterable, which is read in the caller's thread.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from runfold.client import memories, run, runfold, sessions
from runfold.client.appender import Position
from runfold.client.background import KeptConnection, background
from runfold.client.background_reading import BackgroundReading
from runfold.client.envelope import Envelope, RecordOptions
from runfold.client.new_run import ForkOptions
from runfold.client.prefixes import AsOfOptions, LedgerOptions
from runfold.client.recording import Recorded
from runfold.client.runfold import LogOptions, RunOptions
from runfold_projections.admission import Admitted
from runfold_projections.budget import Budget
from runfold_projections.providers import Encoded
from runfold_schemas.catalog import Life
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message, Provider
from runfold_schemas.runs import ForkedFrom

AnswerT = TypeVar("AnswerT")
ChunkT = TypeVar("ChunkT")
ParametersT = ParamSpec("ParametersT")
TargetT = TypeVar("TargetT")


def _verb(
    method: Callable[Concatenate[Any, ParametersT], Coroutine[Any, Any, AnswerT]],
) -> Callable[Concatenate[Any, ParametersT], AnswerT]:
    """The asynchronous method as one that blocks."""

    @wraps(method)
    def call(self: Any, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs) -> AnswerT:
        answer: AnswerT = self._call(lambda target: method(target, *args, **kwargs))
        return answer

    return call


class _ClientVerbs(Generic[TargetT]):
    """Blocking calls of a part of the asynchronous client. Each call connects if necessary."""

    def __init__(
        self, connection: KeptConnection[runfold.Runfold], part: Callable[[runfold.Runfold], TargetT]
    ) -> None:
        self._connection = connection
        self._part = part

    def _call(self, use: Callable[[TargetT], Coroutine[Any, Any, AnswerT]]) -> AnswerT:
        return self._connection.call(lambda client: use(self._part(client)))


class Sessions(_ClientVerbs[sessions.Sessions]):
    """The verbs of `runfold.Sessions`. Get them from `Runfold.sessions`."""

    create = _verb(sessions.Sessions.create)
    view = _verb(sessions.Sessions.view)
    app_state = _verb(sessions.Sessions.app_state)
    user_state = _verb(sessions.Sessions.user_state)
    append = _verb(sessions.Sessions.append)
    delete_app_state = _verb(sessions.Sessions.delete_app_state)
    delete_user_state = _verb(sessions.Sessions.delete_user_state)
    update = _verb(sessions.Sessions.update)
    end = _verb(sessions.Sessions.end)
    delete = _verb(sessions.Sessions.delete)
    list = _verb(sessions.Sessions.list)

    @wraps(sessions.Sessions.append_batch)
    def append_batch(self, session_id: str, batch: Iterable[Data | AnyEvent]) -> Sequence[Position]:
        events = tuple(batch)
        return self._call(lambda target: target.append_batch(session_id, events))


class Memories(_ClientVerbs[memories.Memories]):
    """The verbs of `runfold.Memories`. Get them from `Runfold.memories`."""

    create_bank = _verb(memories.Memories.create_bank)
    bank = _verb(memories.Memories.bank)
    banks = _verb(memories.Memories.banks)
    update_bank = _verb(memories.Memories.update_bank)
    delete_bank = _verb(memories.Memories.delete_bank)
    create = _verb(memories.Memories.create)
    get = _verb(memories.Memories.get)
    list = _verb(memories.Memories.list)
    update = _verb(memories.Memories.update)
    delete = _verb(memories.Memories.delete)
    rollback = _verb(memories.Memories.rollback)
    purge = _verb(memories.Memories.purge)
    nearest = _verb(memories.Memories.nearest)
    revisions = _verb(memories.Memories.revisions)
    revision = _verb(memories.Memories.revision)


class Run:
    """One run, to publish to and to read back. Get it from `Runfold.open_run`, `Runfold.run` or
    `Runfold.get_run`.

    A fork does not take it along: in the child, every verb raises `RuntimeError`.
    """

    def __init__(self, connection: KeptConnection[runfold.Runfold], target: run.Run) -> None:
        self._connection = connection  # which is closed when nobody has it any more
        self._loop = background()
        self._target = target

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._target.run_id

    @property
    def life(self) -> Life:
        """The run's entry in the catalog."""
        return self._target.life

    @property
    def is_new(self) -> bool:
        """Whether this call opened the run, and did not continue it."""
        return self._target.is_new

    @property
    def forked_from(self) -> ForkedFrom | None:
        """Where the run comes from, if `fork` has returned it."""
        return self._target.forked_from

    @property
    def ended(self) -> bool:
        """Whether this client knows that the run has ended."""
        return self._target.ended

    @property
    def turn_id(self) -> str | None:
        """The turn of events that are published without one of their own."""
        return self._target.turn_id

    @turn_id.setter
    def turn_id(self, turn_id: str | None) -> None:
        self._target.turn_id = turn_id

    @wraps(run.Run.event)
    def event(self, data: Data, **envelope: Unpack[Envelope]) -> AnyEvent:
        return self._target.event(data, **envelope)

    publish = _verb(run.Run.publish)
    flush = _verb(run.Run.flush)
    start = _verb(run.Run.start)
    pause = _verb(run.Run.pause)
    resume = _verb(run.Run.resume)
    complete = _verb(run.Run.complete)
    fail = _verb(run.Run.fail)
    cancel = _verb(run.Run.cancel)
    faults = _verb(run.Run.faults)
    read_blob = _verb(run.Run.read_blob)
    repair = _verb(run.Run.repair)
    view = _verb(run.Run.view)
    state_changes = _verb(run.Run.state_changes)
    record = _verb(run.Run.record)

    @wraps(run.Run.fork)
    def fork(self, **options: Unpack[ForkOptions]) -> "Run":
        return Run(self._connection, self._call(lambda target: target.fork(**options)))

    @wraps(run.Run.publish_batch)
    def publish_batch(self, batch: Iterable[Data | AnyEvent], *, late: bool = False) -> list[Position]:
        events = tuple(batch)
        return self._call(lambda target: target.publish_batch(events, late=late))

    @wraps(run.Run.label)
    def label(self, **labels: str) -> Position:
        return self._call(lambda target: target.label(**labels))

    def send(
        self, data: Data | AnyEvent, *, late: bool = False, **envelope: Unpack[Envelope]
    ) -> Future[Position]:
        """As `publish`, but returns once the event is on its way. The future has its position and
        cannot be cancelled; `flush` waits for all of them.
        """

        async def send(target: run.Run) -> Future[Position]:
            return _SentFuture(self, await target.send(data, late=late, **envelope))

        return self._call(send)

    def history(self, *, first_offset: int = 0, end: int | None = None) -> Generator[Admitted, None, None]:
        """The records of the run's log with their outcomes, read from Kafka."""
        return BackgroundReading(self._target.history(first_offset=first_offset, end=end), self._loop).all()

    def events(self) -> Generator[AnyEvent, None, None]:
        """The accepted and late events, in order, read from Kafka."""
        return BackgroundReading(self._target.events(), self._loop).all()

    @overload
    def ledger(self, **options: Unpack[AsOfOptions]) -> list[Message]: ...

    @overload
    def ledger(
        self,
        format: Provider,  # as over HTTP
        *,
        fit: Budget | None = None,
        **options: Unpack[LedgerOptions],
    ) -> Encoded: ...

    @wraps(run.Run.ledger)
    def ledger(
        self,
        format: Provider | None = None,  # noqa: A002  # as over HTTP
        *,
        fit: Budget | None = None,
        **options: Unpack[LedgerOptions],
    ) -> list[Message] | Encoded:
        ledger: Any = run.Run.ledger  # whose overloads do not have all of these together
        answer: list[Message] | Encoded = self._call(
            lambda target: ledger(target, format, fit=fit, **options)
        )
        return answer

    def record_stream(
        self,
        stream: Iterable[ChunkT],
        *,
        into: Recorded | None = None,
        **options: Unpack[RecordOptions],
    ) -> Generator[ChunkT, None, None]:
        """Yields the chunks of a model's stream untouched, and publishes their content in the
        background. The stream is read in the thread that reads the chunks.

        After the last chunk everything is durable. If the stream breaks off, or the generator is
        closed early, what arrived is published and marked as unfinished. Takes what `record` takes.
        """
        handed: _HandedOver[ChunkT] = _HandedOver()
        recorded = self._target.record_stream(handed, into=into, **options)
        return self._recorded(stream, handed, recorded)

    def _recorded(
        self,
        stream: Iterable[ChunkT],
        handed: "_HandedOver[ChunkT]",
        recorded: AsyncGenerator[ChunkT, None],
    ) -> Generator[ChunkT, None, None]:
        reading = BackgroundReading(recorded, self._loop)
        try:
            for chunk in stream:
                handed.next = (chunk,)
                yield from reading.next()
            reading.next()  # there is none, so the recording ends
        finally:
            reading.close()

    def _call(self, use: Callable[[run.Run], Coroutine[Any, Any, AnswerT]]) -> AnswerT:
        return self._loop.call(use(self._target))


class Runfold:
    """A connection to Kafka. It connects with the first call, and serves a whole process and any
    number of runs and threads. Leaving its `with` block, or `close`, closes it; so does the end of
    the program.

    Args:
        kafka: `bootstrap.servers`: host:port, several separated by commas.
        prefix: the common prefix of all topics.
        options: see `LogOptions`.
    """

    def __init__(
        self, kafka: str = "127.0.0.1:9092", *, prefix: str = "runfold", **options: Unpack[LogOptions]
    ) -> None:
        connect = partial(runfold.Runfold, kafka, prefix=prefix, **options)
        connect()  # which checks the options
        self._connection = KeptConnection(connect)
        self._sessions = Sessions(self._connection, lambda client: client.sessions)
        self._memories = Memories(self._connection, lambda client: client.memories)

    def __enter__(self) -> Self:
        self._connection.call_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. A later call connects again; runs that were opened before stay
        closed.
        """
        self._connection.call_close()

    @property
    def sessions(self) -> Sessions:
        """The verbs of sessions, which read from the log alone."""
        return self._sessions

    @property
    def memories(self) -> Memories:
        """The verbs of memories and banks, which read from the log alone."""
        return self._memories

    @contextmanager
    def run(self, *, agent_id: str, **options: Unpack[RunOptions]) -> Iterator[Run]:
        """A run for the length of the block. Takes and raises what `open_run` does.

        Leaving the block completes the run. An exception that leaves the block fails the run with
        the error.
        """

        async def enter(client: runfold.Runfold) -> tuple[AbstractAsyncContextManager[run.Run], run.Run]:
            block = client.run(agent_id=agent_id, **options)
            return block, await block.__aenter__()

        block, target = self._connection.call(enter)
        opened = Run(self._connection, target)
        try:
            yield opened
        except BaseException as error:
            raised = error
            opened._call(lambda _: block.__aexit__(type(raised), raised, raised.__traceback__))  # noqa: SLF001
            raise
        opened._call(lambda _: block.__aexit__(None, None, None))  # noqa: SLF001

    @wraps(runfold.Runfold.open_run)
    def open_run(self, *, agent_id: str, **options: Unpack[RunOptions]) -> Run:
        target = self._connection.call(lambda client: client.open_run(agent_id=agent_id, **options))
        return Run(self._connection, target)

    @wraps(runfold.Runfold.get_run)
    def get_run(self, run_id: str, *, turn_id: str | None = None) -> Run:
        target = self._connection.call(lambda client: client.get_run(run_id, turn_id=turn_id))
        return Run(self._connection, target)

    @wraps(runfold.Runfold.delete_run)
    def delete_run(self, run_id: str) -> None:
        self._connection.call(lambda client: client.delete_run(run_id))

    def session_runs(self, session_id: str) -> Generator[Run, None, None]:
        """The runs of a session, in the order of their opening. Reads the whole catalog first, and
        holds the session's runs alone.
        """
        yield from _runs(self._connection, lambda client: client.session_runs(session_id))

    def runs(self) -> Generator[Run, None, None]:
        """All runs, in the order of the catalog, while the catalog is read:
        `runfold.Runfold.runs` has the details.
        """
        yield from _runs(self._connection, runfold.Runfold.runs)

    def history(self, *, session_id: str | None = None) -> Generator[tuple[Run, Admitted], None, None]:
        """The log of every run, or of a session's runs, one run after the other, in the order of
        `runs` or `session_runs`.
        """

        async def history(client: runfold.Runfold) -> AsyncIterator[tuple[run.Run, Admitted]]:
            return client.history(session_id=session_id)

        reading = BackgroundReading(self._connection.call(history), background())
        for target, admitted in reading.all():
            yield Run(self._connection, target), admitted


def _runs(
    connection: KeptConnection[runfold.Runfold],
    runs_of: Callable[[runfold.Runfold], AsyncIterator[run.Run]],
) -> Generator[Run, None, None]:
    async def runs(client: runfold.Runfold) -> AsyncIterator[run.Run]:
        return runs_of(client)

    for target in BackgroundReading(connection.call(runs), background()).all():
        yield Run(connection, target)


class _SentFuture(Future[Position]):
    """The position of an event that was sent. `Run.flush` raises its error, unless somebody has
    asked the future for it.
    """

    def __init__(self, run: Run, task: asyncio.Task[Position]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # nobody can take the event back
        self._run = run  # whose connection stays open until the event is durable
        self._task = task
        task.add_done_callback(self._copy)

    def result(self, timeout: float | None = None) -> Position:
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        if not self._task.cancelled():
            self._task.exception()  # from here on the task's error counts as seen
        return error

    def _copy(self, task: asyncio.Task[Position]) -> None:
        # `task.exception()` would count as having seen it.
        error = asyncio.CancelledError() if task.cancelled() else task._exception  # noqa: SLF001
        if error is None:
            self.set_result(task.result())
        else:
            self.set_exception(error)


class _HandedOver(Generic[ChunkT]):
    """A stream whose next chunk the caller's thread puts here before the recording asks for it."""

    def __init__(self) -> None:
        self.next: tuple[ChunkT, ...] = ()

    def __aiter__(self) -> AsyncIterator[ChunkT]:
        return self

    async def __anext__(self) -> ChunkT:
        if not self.next:
            raise StopAsyncIteration
        [chunk], self.next = self.next, ()
        return chunk
