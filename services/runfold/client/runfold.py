"""What agents import: open a run, publish its events, read it back. Base dependencies only.

    async with Runfold("127.0.0.1:9092") as runfold:
        async with runfold.run(agent_id="support", session_id="s-1") as run:
            await run.publish(UserMessage(message="Where is my parcel?"))

Leaving the block completes the run; an exception fails it with the error.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Self

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


class Runfold:
    """A connection to the log. Use it as an async context manager; one serves a whole process and
    any number of runs.

    Args:
        kafka: `bootstrap.servers`, host:port, several by comma.
        prefix: the topics' common prefix; one prefix is one Runfold.
        options: the other fields of `LogSettings`.
    """

    def __init__(self, kafka: str = "127.0.0.1:9092", *, prefix: str = "runfold", **options: Any) -> None:
        self.connection = LogConnection(LogSettings(kafka=kafka, prefix=prefix, **options))

    @classmethod
    def of(cls, settings: LogSettings) -> Self:
        """A connection with settings that are there already, as the services have them."""
        return cls(**dict(settings))

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.connection.__aexit__(*exc_info)

    @property
    def sessions(self) -> Sessions:
        """Sessions, read from the log alone, as this client reads everything."""
        return Sessions(self.connection, LogSessionReader(self.connection))

    @property
    def memories(self) -> Memories:
        """Memories, read from the log alone likewise: without similarity, which needs the
        services.
        """
        return Memories(self.connection, LogMemoryReader(self.connection))

    @asynccontextmanager
    async def run(self, *, agent_id: str, **options: Any) -> AsyncIterator[Run]:
        """A run for the length of the block: completed when it is left, failed with the error when
        an exception leaves it.

        Takes what `open_run` takes.
        """
        run = await self.open_run(agent_id=agent_id, **options)
        try:
            yield run
            await run.flush()
        except BaseException as error:
            await _fail(run, error)
            raise
        if not run.ended:
            # All else was published, so a refusal means that somebody else has ended the run.
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
        """Opens a run, or takes up the run of that id: opening twice is the same run. It starts
        now, or at `started_at`.

        Raises `RunConflictError` where the id belongs to another agent or session,
        `InvalidIdError`, `InvalidEventError`, `UnavailableError`.
        """
        for name, given in (("agent_id", agent_id), ("run_id", run_id)):
            if given is not None:
                check_id(given, name=name)
        if session_id is not None:
            check_session_id(session_id)
        standing = await self.connection.catalog.lookup(run_id) if run_id is not None else None
        if standing is None:
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
            # Only a given id can have been opened by somebody else meanwhile.
            standing = await self._first_life(opened) if run_id is not None else opened
            if standing is opened:
                return self.connection.run_of(opened, turn_id=turn_id, is_new=True)
        _check_owner(standing, agent_id=agent_id, session_id=session_id)
        return self.connection.run_of(standing, turn_id=turn_id)

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
        await self.connection.catalog.follow_all()
        lives = sorted(
            (life for life in self._standing_lives() if life.session_id == session_id),
            key=lambda life: life.log_id,
        )
        return [self.connection.run_of(life) for life in lives]

    async def runs(self) -> list[Run]:
        """All runs, in the order of their opening. Reads the whole catalog."""
        await self.connection.catalog.follow_all()
        return [
            self.connection.run_of(life)
            for life in sorted(self._standing_lives(), key=lambda life: life.log_id)
        ]

    async def history(self, *, session_id: str | None = None) -> AsyncIterator[tuple[Run, Admitted]]:
        """The log of every run, or of a session's runs, one run after the other in the order of
        their opening.
        """
        for run in await (self.runs() if session_id is None else self.session_runs(session_id)):
            async for admitted in run.history():
                yield run, admitted

    def _standing_lives(self) -> Iterator[Life]:
        return (life for life in self.connection.catalog.lives() if not life.deleted)

    async def _first_life(self, opened: Life) -> Life:
        """The life that stands, which is the first in the catalog's order; `opened` goes if it is
        another one.
        """
        standing = await self.connection.catalog.lookup(opened.run_id)
        if standing is None or standing.log_id == opened.log_id:
            return opened
        lost = self.connection.topics.run(opened.run_id, opened.log_id)
        await self.connection.delete_topic(lost)
        return standing

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


def _check_owner(life: Life, *, agent_id: str, session_id: str | None) -> None:
    if life.deleted:
        raise InvalidIdError(
            f"run {life.run_id!r} was deleted, and its id is not used again: choose another one",
            name="run_id",
            value=life.run_id,
        )
    if life.agent_id != agent_id or session_id not in (None, life.session_id):
        raise RunConflictError(life.run_id, agent_id=life.agent_id, session_id=life.session_id)


async def _fail(run: Run, error: BaseException) -> None:
    """The error that left the block is the one to raise, also where the run cannot be told of
    it.
    """
    try:
        await run.flush()
    except RunfoldError as failure:
        error.add_note(f"an event of run {run.run_id!r} was not published: {failure}")
    if run.ended:
        return
    # Any error can be told: cut as the record would cut it, and without the halves of surrogate
    # pairs.
    told = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX].encode(errors="replace").decode()
    try:
        await run.fail(told)
    except RunfoldError as failure:
        error.add_note(f"run {run.run_id!r} could not be marked as failed: {failure}")
