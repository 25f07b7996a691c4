"""The client: open runs, publish their events, read them back. It needs the base dependencies only.

    async with Runfold("127.0.0.1:9092") as runfold:
        async with runfold.run(agent_id="support", session_id="s-1") as run:
            await run.publish(UserMessage(message="Where is my parcel?"))

Leaving the block completes the run. An exception that leaves the block fails the run.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Self, TypedDict, Unpack

from runfold.client.connection import LogConnection
from runfold.client.memories import Memories
from runfold.client.memory_log import LogMemoryReader
from runfold.client.run import Run
from runfold.client.session_log import LogSessionReader
from runfold.client.sessions import Sessions
from runfold.ids import new_event_id, new_log_id, uuid7
from runfold.log.settings import LogSettings
from runfold_projections.admission import Admitted
from runfold_projections.run import ERROR_LENGTH_MAX
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_data, new_event
from runfold_schemas.errors import (
    InvalidIdError,
    RejectedError,
    RunConflictError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
)
from runfold_schemas.runs import RunOpened
from runfold_schemas.topics import check_id, check_session_id


class LogOptions(TypedDict, total=False):
    """The settings of a connection besides address and prefix. `LogSettings` has their defaults."""

    replication_factor: int
    """Replicas of each new topic."""
    min_insync_replicas: int
    """Replicas that must have a record before it counts as durable."""
    source: str
    """The `ce_source` header of records that this client publishes: a URI reference."""
    publish_timeout_seconds: float
    """How long a publish waits for Kafka before it raises `UnavailableError`."""
    park_seconds: float
    """The shortest park time, in seconds, of any projector on this log."""
    kafka_options: Mapping[str, Any]
    """Options of every aiokafka client: `security_protocol`, `ssl_cafile`, `sasl_mechanism` and so
    on.
    """


class RunOptions(TypedDict, total=False):
    """The options of a run that is opened, besides its agent."""

    run_id: str | None
    """Up to 100 characters. By default a new UUIDv7."""
    session_id: str | None
    """The session that the run belongs to."""
    turn_id: str | None
    """The turn of events that are published without one of their own."""
    labels: Mapping[str, str] | None
    """Labels of the run, up to 64."""
    pending: bool
    """Whether the run waits for `Run.start`. By default it runs at once."""
    started_at: datetime | None
    """By default now."""


class Runfold:
    """A connection to Kafka. Use it as an async context manager. One connection serves a whole
    process and any number of runs.

    Args:
        kafka: `bootstrap.servers`: host:port, several separated by commas.
        prefix: the common prefix of all topics. Installations with different prefixes do not see
            each other.
        options: see `LogOptions`.

    Entering it raises `UnavailableError` if Kafka does not answer, and `ConfigurationError` if the
    broker has a setting that Runfold cannot work with.
    """

    def __init__(
        self, kafka: str = "127.0.0.1:9092", *, prefix: str = "runfold", **options: Unpack[LogOptions]
    ) -> None:
        self.connection = LogConnection(LogSettings(kafka=kafka, prefix=prefix, **options))
        self._sessions, self._memories = _verbs_of(self.connection)

    @classmethod
    def of(cls, settings: LogSettings) -> Self:
        """A connection with settings that exist already, for example those of a service."""
        return cls(**dict(settings))

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        self._sessions, self._memories = _verbs_of(self.connection)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.connection.__aexit__(*exc_info)

    @property
    def sessions(self) -> Sessions:
        """The verbs of sessions. They read from the log alone, as all of this client does."""
        return self._sessions

    @property
    def memories(self) -> Memories:
        """The verbs of memories and banks. They read from the log alone, so `nearest` raises
        `ConfigurationError`.
        """
        return self._memories

    @asynccontextmanager
    async def run(self, *, agent_id: str, **options: Unpack[RunOptions]) -> AsyncIterator[Run]:
        """A run for the length of the block. Takes and raises what `open_run` does.

        Leaving the block completes the run. An exception that leaves the block fails the run with
        the error.
        """
        run = await self.open_run(agent_id=agent_id, **options)
        try:
            yield run
            await run.flush()
        except BaseException as error:
            await _fail(run, error)
            raise
        if not run.ended:
            # Everything else was published, so a refusal means that another client has ended the
            # run.
            with suppress(RejectedError, RunEndedError):
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
    ) -> Run:
        """Opens a run, or returns the run that has this id already. `RunOptions` explains the
        options.

        Raises `InvalidIdError`, `InvalidEventError`, `UnavailableError`, and `RunConflictError` if
        the run of this id belongs to another agent or session.
        """
        for name, id_ in (("agent_id", agent_id), ("run_id", run_id)):
            if id_ is not None:
                check_id(id_, name=name)
        if session_id is not None:
            check_session_id(session_id)
        existing = await self.connection.catalog.lookup(run_id) if run_id is not None else None
        if existing is None:
            opened = Life(
                run_id=run_id or str(uuid7()), log_id=new_log_id(), agent_id=agent_id, session_id=session_id
            )
            opening = new_data(
                RunOpened,
                agent_id=agent_id,
                log_id=opened.log_id,
                session_id=session_id,
                status="pending" if pending else "running",
                labels=labels or {},
            )
            await self._open_log(opened, opening, turn_id=turn_id, started_at=started_at)
            # Another client can only have opened the same run if the caller chose its id.
            existing = await self._first_life(opened) if run_id is not None else opened
            if existing is opened:
                return self.connection.run_of(opened, turn_id=turn_id, is_new=True)
        _check_owner(existing, agent_id=agent_id, session_id=session_id)
        return self.connection.run_of(existing, turn_id=turn_id)

    async def get_run(self, run_id: str, *, turn_id: str | None = None) -> Run:
        """The run of that id, to publish to it or to read it. Raises `RunNotFoundError`,
        `UnavailableError`.
        """
        life = await self.connection.catalog.lookup(check_id(run_id, name="run_id"))
        if life is None or life.deleted:
            raise RunNotFoundError(run_id)
        return self.connection.run_of(life, turn_id=turn_id)

    async def session_runs(self, session_id: str) -> list[Run]:
        """The runs of a session, in the order of their opening. Reads the whole catalog."""
        lives = [life for life in await self._existing_lives() if life.session_id == session_id]
        return [self.connection.run_of(life) for life in lives]

    async def runs(self) -> list[Run]:
        """All runs, in the order of their opening. Reads the whole catalog."""
        return [self.connection.run_of(life) for life in await self._existing_lives()]

    async def history(self, *, session_id: str | None = None) -> AsyncGenerator[tuple[Run, Admitted], None]:
        """The log of every run, or of a session's runs, one run after the other in the order of
        their opening.
        """
        for run in await (self.runs() if session_id is None else self.session_runs(session_id)):
            async with aclosing(run.history()) as history:
                async for admitted in history:
                    yield run, admitted

    async def _existing_lives(self) -> list[Life]:
        """The lives of all runs, in the order of their opening."""
        await self.connection.catalog.follow_all()
        lives = (life for life in self.connection.catalog.lives() if not life.deleted)
        return sorted(lives, key=lambda life: life.log_id)

    async def _first_life(self, opened: Life) -> Life:
        """The life that comes first in the catalog. The topic of `opened` is deleted if another
        life does.
        """
        first = await self.connection.catalog.lookup(opened.run_id)
        if first is None or first.log_id == opened.log_id:
            return opened
        lost = self.connection.topics.run(opened.run_id, opened.log_id)
        await self.connection.delete_topic(lost)
        return first

    async def _open_log(
        self, life: Life, opening: RunOpened, *, turn_id: str | None, started_at: datetime | None
    ) -> None:
        topic = self.connection.topics.run(life.run_id, life.log_id)
        event = new_event(
            opening,
            event_id=new_event_id(),
            run_id=life.run_id,
            timestamp=started_at or datetime.now(UTC),
            turn_id=turn_id,
        )
        await self.connection.open_topic(topic, event)
        await self.connection.announce(life)


def _verbs_of(connection: LogConnection) -> tuple[Sessions, Memories]:
    """The verbs for as long as the connection is entered, because they keep sessions open."""
    return (
        Sessions(connection, LogSessionReader(connection)),
        Memories(connection, LogMemoryReader(connection)),
    )


def _check_owner(life: Life, *, agent_id: str, session_id: str | None) -> None:
    if life.deleted:
        raise InvalidIdError(
            f"run {life.run_id!r} was deleted, and its id is not used again: choose another id",
            name="run_id",
            value=life.run_id,
        )
    if life.agent_id != agent_id or session_id not in (None, life.session_id):
        raise RunConflictError(life.run_id, agent_id=life.agent_id, session_id=life.session_id)


async def _fail(run: Run, error: BaseException) -> None:
    """Fails the run. The caller raises `error` in any case, so failures to do so are notes on
    it.
    """
    try:
        await run.flush()
    except RunfoldError as failure:
        error.add_note(f"an event of run {run.run_id!r} was not published: {failure}")
    if run.ended:
        return
    # Any error can be published: cut to the length of the record's field, and without the halves of
    # surrogate pairs.
    text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX].encode(errors="replace").decode()
    try:
        await run.fail(text)
    except RunfoldError as failure:
        error.add_note(f"run {run.run_id!r} could not be marked as failed: {failure}")
