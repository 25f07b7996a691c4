"""The client without `async`, for scripts and notebooks. It needs the base dependencies only.

    from runfold.sync import Runfold

    with Runfold("127.0.0.1:9092") as runfold:
        with runfold.run(agent_id="support", session_id="s-1") as run:
            run.publish(UserMessage(message="Where is my parcel?"))

The verbs are those of `runfold.Runfold`, with the same parameters. Each call blocks the calling
thread until it has its result, also in a thread whose event loop is running, as in a notebook.
Threads may share all objects.

Most verbs are one line: `_verb` takes the parameters and the docstring of the asynchronous method.
A method is written out if its result is asynchronous itself: a run, an iterator or a task.
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
)
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from runfold.client import memories, run, runfold, sessions
from runfold.client.appender import Position
from runfold.client.background import KeptConnection, background
from runfold.client.envelope import Envelope, ResponseEnvelope
from runfold.client.runfold import LogOptions, RunOptions
from runfold_projections.admission import Admitted
from runfold_projections.providers import Encoded, Lossy
from runfold_schemas.catalog import Life
from runfold_schemas.data import Data
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Message, Provider

AnswerT = TypeVar("AnswerT")
ChunkT = TypeVar("ChunkT")
ItemT = TypeVar("ItemT")
ParametersT = ParamSpec("ParametersT")
TargetT = TypeVar("TargetT")

_BATCH: Final = 256
"""How many events of a history the background loop reads before it hands them over."""


def _wait(work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    return background().call(work)


def _verb(
    method: Callable[Concatenate[Any, ParametersT], Coroutine[Any, Any, AnswerT]],
) -> Callable[Concatenate[Any, ParametersT], AnswerT]:
    """The asynchronous method as one that blocks."""

    @wraps(method)
    def call(self: Any, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs) -> AnswerT:
        return _wait(method(self._target, *args, **kwargs))

    return call


class _Face(Generic[TargetT]):
    """Blocking calls of an asynchronous object, which stays in the background loop."""

    def __init__(self, target: TargetT) -> None:
        self._target = target


class Sessions(_Face[sessions.Sessions]):
    """The verbs of `runfold.Sessions`. Get them from `Runfold.sessions`."""

    create = _verb(sessions.Sessions.create)
    view = _verb(sessions.Sessions.view)
    app_state = _verb(sessions.Sessions.app_state)
    user_state = _verb(sessions.Sessions.user_state)
    append = _verb(sessions.Sessions.append)
    append_batch = _verb(sessions.Sessions.append_batch)
    run_id = _verb(sessions.Sessions.run_id)
    update = _verb(sessions.Sessions.update)
    end = _verb(sessions.Sessions.end)
    delete = _verb(sessions.Sessions.delete)
    list = _verb(sessions.Sessions.list)


class Memories(_Face[memories.Memories]):
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
    change_all = _verb(memories.Memories.change_all)


class Run(_Face[run.Run]):
    """One run, to publish to and to read back. Get it from `Runfold.open_run`, `Runfold.run` or
    `Runfold.get_run`.
    """

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
    publish_batch = _verb(run.Run.publish_batch)
    flush = _verb(run.Run.flush)
    start = _verb(run.Run.start)
    pause = _verb(run.Run.pause)
    resume = _verb(run.Run.resume)
    complete = _verb(run.Run.complete)
    fail = _verb(run.Run.fail)
    cancel = _verb(run.Run.cancel)
    faults = _verb(run.Run.faults)
    repair = _verb(run.Run.repair)
    record = _verb(run.Run.record)

    @wraps(run.Run.label)
    def label(self, **labels: str) -> Position:
        return _wait(self._target.label(**labels))

    def send(
        self, data: Data | AnyEvent, *, late: bool = False, **envelope: Unpack[Envelope]
    ) -> Future[Position]:
        """As `publish`, but returns once the event is on its way. The future has its position;
        `flush` waits for all of them.
        """
        return _wait(_sent(self._target.send(data, late=late, **envelope)))

    def history(self, *, first_offset: int = 0, end: int | None = None) -> Generator[Admitted, None, None]:
        """The records of the run's log with their outcomes, read from Kafka."""
        return _iterate(self._target.history(first_offset=first_offset, end=end), batch=_BATCH)

    def events(self) -> Generator[AnyEvent, None, None]:
        """The accepted and late events, in order, read from Kafka."""
        return _iterate(self._target.events(), batch=_BATCH)

    @overload
    def ledger(self) -> list[Message]: ...

    @overload
    def ledger(self, format: Provider, *, lossy: Lossy = "refuse") -> Encoded: ...

    @wraps(run.Run.ledger)
    def ledger(
        self,
        format: Provider | None = None,  # noqa: A002  # as over HTTP
        *,
        lossy: Lossy = "refuse",
    ) -> list[Message] | Encoded:
        if format is None:
            return _wait(self._target.ledger())
        return _wait(self._target.ledger(format, lossy=lossy))

    def record_stream(
        self,
        stream: Iterable[ChunkT],
        *,
        provider: Provider | None = None,
        request: Encoded | None = None,
        **envelope: Unpack[ResponseEnvelope],
    ) -> Generator[ChunkT, None, None]:
        """Passes on the chunks of a model's stream unchanged, and publishes their content in the
        background. The stream is read in a thread of its own.

        After the last chunk everything is durable. If the stream breaks off, or the generator is
        closed early, what arrived is published and marked as unfinished. Takes what `record` takes.
        """
        chunks = self._target.record_stream(stream, provider=provider, request=request, **envelope)
        return _iterate(chunks, batch=1)


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

    def __enter__(self) -> Self:
        _wait(self._connection.open())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. A later call connects again; runs that were opened before stay
        closed.
        """
        _wait(self._connection.close())

    @property
    def sessions(self) -> Sessions:
        """The verbs of sessions, which read from the log alone."""
        return Sessions(self._client().sessions)

    @property
    def memories(self) -> Memories:
        """The verbs of memories and banks, which read from the log alone."""
        return Memories(self._client().memories)

    @contextmanager
    def run(self, *, agent_id: str, **options: Unpack[RunOptions]) -> Iterator[Run]:
        """A run for the length of the block. Takes and raises what `open_run` does.

        Leaving the block completes the run. An exception that leaves the block fails the run with
        the error.
        """
        block = self._client().run(agent_id=agent_id, **options)
        opened = Run(_wait(block.__aenter__()))
        try:
            yield opened
        except BaseException as error:
            _wait(block.__aexit__(type(error), error, error.__traceback__))
            raise
        _wait(block.__aexit__(None, None, None))

    @wraps(runfold.Runfold.open_run)
    def open_run(self, *, agent_id: str, **options: Unpack[RunOptions]) -> Run:
        return Run(_wait(self._client().open_run(agent_id=agent_id, **options)))

    @wraps(runfold.Runfold.get_run)
    def get_run(self, run_id: str, *, turn_id: str | None = None) -> Run:
        return Run(_wait(self._client().get_run(run_id, turn_id=turn_id)))

    def session_runs(self, session_id: str) -> list[Run]:
        """The runs of a session, in the order of their opening. Reads the whole catalog."""
        return [Run(opened) for opened in _wait(self._client().session_runs(session_id))]

    def runs(self) -> list[Run]:
        """All runs, in the order of their opening. Reads the whole catalog."""
        return [Run(opened) for opened in _wait(self._client().runs())]

    def history(self, *, session_id: str | None = None) -> Generator[tuple[Run, Admitted], None, None]:
        """The log of every run, or of a session's runs, one run after the other in the order of
        their opening.
        """
        for opened, admitted in _iterate(self._client().history(session_id=session_id), batch=_BATCH):
            yield Run(opened), admitted

    def _client(self) -> runfold.Runfold:
        return self._connection.call(_itself)


async def _itself(client: runfold.Runfold) -> runfold.Runfold:
    return client


class _SentFuture(Future[Position]):
    """The position of an event that was sent. `Run.flush` raises its error, unless somebody has
    asked the future for it.
    """

    def __init__(self, task: asyncio.Task[Position]) -> None:
        super().__init__()
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


async def _sent(send: Coroutine[Any, Any, asyncio.Task[Position]]) -> Future[Position]:
    return _SentFuture(await send)


def _iterate(items: AsyncIterator[ItemT], *, batch: int) -> Generator[ItemT, None, None]:
    """The items of an asynchronous iterator, which is read in the background loop."""
    loop = background()
    try:
        while True:
            taken, error = loop.call(_take(items, batch))
            yield from taken
            if error is not None:
                raise error
            if len(taken) < batch:
                return
    finally:
        if isinstance(items, AsyncGenerator):
            loop.finish(items.aclose())


async def _take(items: AsyncIterator[ItemT], count: int) -> tuple[list[ItemT], BaseException | None]:
    """The next items, at most `count`, and the error that came after them."""
    taken: list[ItemT] = []
    try:
        async for item in items:
            taken.append(item)
            if len(taken) == count:
                break
    except BaseException as error:  # noqa: BLE001  # the caller raises it
        return taken, error
    return taken, None
