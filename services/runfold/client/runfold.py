"""The client: open runs, publish their events, read them back. It needs the base dependencies only.

    async with Runfold("127.0.0.1:9092") as runfold:
        async with runfold.run(agent_id="support", session_id="s-1") as run:
            await run.publish(UserMessage(message="Where is my parcel?"))

Leaving the block completes the run. An exception that leaves the block fails the run.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from runfold.client.connection import LogConnection
from runfold.client.forking import fork_run
from runfold.client.memories import Memories
from runfold.client.memory_log import LogMemoryReader
from runfold.client.opening import check_owner, first_life
from runfold.client.run import Run
from runfold.client.run_deletion import delete_run
from runfold.client.session_log import LogSessionReader
from runfold.client.sessions import Sessions
from runfold.encryption.subjects import subject_of_life
from runfold.ids import new_event_id, new_log_id, uuid7
from runfold.log.catalog import naming_session
from runfold.log.clients import LogClients
from runfold.log.effect_keys import EffectKeys
from runfold.log.settings import PREFIX_DEFAULT, LogSettings
from runfold.secret_urls import SecretUrl
from runfold_projections.admission import Admitted
from runfold_projections.run import ERROR_LENGTH_MAX
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_data, new_event
from runfold_schemas.errors import (
    RejectedError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
)
from runfold_schemas.runs import RunOpened
from runfold_schemas.topics import check_id, check_session_id

if TYPE_CHECKING:
    from runfold.encryption.sealing import Sealing


class LogOptions(TypedDict, total=False):
    """The settings of a connection besides address and prefix. `LogSettings` has their defaults."""

    create_topics: bool
    """Whether entering creates the shared topics of a prefix that nobody has used yet. By default
    only those of the prefix `runfold`, because another one may be mistyped.
    """
    partitions: int | None
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
    blobs: str | SecretUrl | None
    """The URL of the blob store, for example `s3://bucket/path`. By default large bytes stay in the
    events. A client with a blob store needs the extra `blobs`.
    """
    blob_bytes_min: int
    """The size from which on bytes are stored in the blob store."""
    blob_bytes_max: int
    """The size of the largest blob."""
    archive_url: str | SecretUrl | None
    """The URL of the archive. A client without it cannot read archived runs. It needs the extra
    `archive`.
    """
    effect_keys: str | EffectKeys | None
    """The path of the file with the keys of effects, by which this client shows that its events may
    change memories, banks and shared state. Needed if the projectors have such keys.
    """
    encryption_key: str | None
    """The URL of the key that wraps all others: `file:/path`, `vault://host/v1/transit/keys/name`
    or `aws-kms:ID`. By default events are stored in clear. It needs the package `cryptography`.
    """
    encryption_clear_labels: tuple[str, ...]
    """The keys of labels that stay clear."""
    encryption_cache_seconds: float
    """How long unwrapped keys are used while the server with the key does not answer."""
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
    broker has a setting that Runfold cannot work with, or if nobody has used the prefix yet.
    """

    def __init__(
        self, kafka: str = "127.0.0.1:9092", *, prefix: str = PREFIX_DEFAULT, **options: Unpack[LogOptions]
    ) -> None:
        options.setdefault("create_topics", prefix == PREFIX_DEFAULT)
        self.connection = LogConnection(LogSettings(kafka=kafka, prefix=prefix, **options))
        self._sessions, self._memories = self._verbs()

    @classmethod
    def of(
        cls,
        settings: LogSettings,
        *,
        clients: LogClients | None = None,
        sealing: "Sealing | None" = None,
    ) -> Self:
        """A connection with settings that exist already, for example those of a service, over
        `clients` and with the connected `sealing` if given.
        """
        runfold = cls(**dict(settings))
        runfold.connection = LogConnection(settings, clients=clients, sealing=sealing)
        runfold._sessions, runfold._memories = runfold._verbs()
        return runfold

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        self._sessions, self._memories = self._verbs()
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
            existing = await first_life(self.connection, opened) if run_id is not None else opened
            if existing is opened:
                return self.connection.run_of(opened, turn_id=turn_id, is_new=True)
        check_owner(existing, agent_id=agent_id, session_id=session_id)
        return self.connection.run_of(existing, turn_id=turn_id)

    async def get_run(self, run_id: str, *, turn_id: str | None = None) -> Run:
        """The run of that id, to publish to it or to read it. Raises `RunNotFoundError`,
        `UnavailableError`.
        """
        life = await self.connection.catalog.lookup(check_id(run_id, name="run_id"))
        if life is None or life.deleted:
            raise RunNotFoundError(run_id)
        return self.connection.run_of(life, turn_id=turn_id)

    async def delete_run(self, run_id: str) -> None:
        """Deletes a run with its events, and returns when no client can use it any more. The id is
        not used again.

        Raises `RunNotFoundError`, `UnavailableError`, and `InvalidIdError` for the run that has a
        session's own events: it is deleted with the session. After an `UnavailableError` it is safe
        to call again.
        """
        life = await self.connection.catalog.lookup(check_id(run_id, name="run_id"))
        if life is None or life.deleted:
            raise RunNotFoundError(run_id)
        await delete_run(self.connection, life)

    async def session_runs(self, session_id: str) -> AsyncGenerator[Run, None]:
        """The runs of a session, in the order of their opening. Reads the whole catalog first, and
        holds the session's runs alone.
        """
        async with aclosing(self.connection.catalog.lives(naming_session(session_id))) as lives:
            own = [life async for life in lives if life.session_id == session_id]
        for life in sorted(own, key=lambda life: life.log_id):
            yield self.connection.run_of(life)

    async def runs(self) -> AsyncGenerator[Run, None]:
        """All runs, in the order of the catalog, while the catalog is read.

        The partitions of the catalog come one after the other; a hash of a run's id decides on its
        partition. Within a partition, runs come in the order in which they last changed: by
        their opening, or by their end. A run that is opened or changes meanwhile may be left out,
        or come as it was. Use `contextlib.aclosing` if you may leave the loop early.
        """
        async with aclosing(self.connection.catalog.lives()) as lives:
            async for life in lives:
                yield self.connection.run_of(life)

    async def history(self, *, session_id: str | None = None) -> AsyncGenerator[tuple[Run, Admitted], None]:
        """The log of every run, or of a session's runs, one run after the other, in the order of
        `runs` or `session_runs`.
        """
        runs = self.runs() if session_id is None else self.session_runs(session_id)
        async with aclosing(runs):
            async for run in runs:
                async with aclosing(run.history()) as history:
                    async for admitted in history:
                        yield run, admitted

    def _verbs(self) -> tuple[Sessions, Memories]:
        """The verbs for as long as the connection is entered, because they keep sessions open."""
        connection = self.connection
        connection.fork = partial(fork_run, connection)
        return (
            Sessions(connection, LogSessionReader(connection)),
            Memories(connection, LogMemoryReader(connection)),
        )

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
        stored = await self.connection.sealed(event, subject_of_life(life))
        await self.connection.open_topic(topic, stored)
        await self.connection.announce(life)


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
