"""The runs with data of a user: runs that were opened for them, runs of their sessions, forks of
these runs that nobody has announced yet, and logs of generations about them.
"""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from runfold.client.connection import LogConnection
from runfold.erasure.traces import Traces, names_user
from runfold.log.leaders import Leaders
from runfold.log.reader import LogGoneError, read
from runfold.store.edition import Edition
from runfold_schemas.catalog import Life
from runfold_schemas.codec import decode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import GenerationRequested, MemoriesGenerated, is_generation_log
from runfold_schemas.runs import RunLabeled, RunOpened
from runfold_schemas.sessions import is_session_run
from runfold_schemas.topics import RunTopic

_AT_ONCE: Final = 8


@dataclass
class UserRuns:
    """The lives that are not deleted yet. The own runs of sessions are not among them."""

    runs: dict[str, Life] = field(default_factory=dict)
    generation_logs: dict[str, Life] = field(default_factory=dict)
    fork_topics: set[RunTopic] = field(default_factory=set)
    """Of forks that nobody announced, and whose run id belongs to another life. Their topics alone
    are deleted, because a deletion in the log would name the id of the other life.
    """

    @property
    def all(self) -> list[Life]:
        return [*self.runs.values(), *self.generation_logs.values()]


async def find_runs(
    connection: LogConnection,
    stores: Edition,
    traces: Traces,
    *,
    user: str,
    topics: Iterable[RunTopic],
) -> UserRuns:
    """Reads the catalog, the logs of generations, and the beginnings of those `topics` that the
    catalog does not have. Raises `UnavailableError`.
    """
    found, logs = UserRuns(), list[Life]()
    sessions = traces.own_session_ids(user)
    erased = {run.log_id for run in traces.erased_runs}
    unannounced = {run.log_id: run for run in topics if run.log_id not in erased}
    async with aclosing(connection.catalog.lives()) as lives:
        async for life in lives:
            unannounced.pop(life.log_id, None)
            if is_session_run(life.run_id, life.log_id):
                continue
            if life.user_id == user or (life.session_id is not None and life.session_id in sessions):
                found.runs[life.run_id] = life
            elif is_generation_log(life.run_id):
                logs.append(life)
    # The life of a run that its opener did not announce has no user.
    for life in await stores.runs.of_user(user):
        if not is_session_run(life.run_id, life.log_id):
            found.runs.setdefault(life.run_id, life)
    logs_of_user = {*erased, *(life.log_id for life in found.runs.values())}
    logs_of_user |= {session.log_id for session in traces.all_sessions}
    for run in unannounced.values():
        if not is_session_run(*run) and (fork := await _fork(connection, run)) is not None:
            life, source = fork
            if life.user_id == user or life.session_id in sessions or source in logs_of_user:
                if await is_of_another_log(connection, run):
                    found.fork_topics.add(run)
                else:
                    found.runs.setdefault(life.run_id, life)
    run_ids = {*found.runs, *(session.run_id for session in traces.all_sessions)}
    about = await _about(connection, logs, user=user, session_ids=sessions, run_ids=run_ids)
    found.generation_logs = {life.run_id: life for life in about}
    return found


async def is_of_another_log(connection: LogConnection, run: RunTopic) -> bool:
    """Whether the catalog has the run id for another log. Then this log lost the id."""
    life = await connection.catalog.lookup(run.run_id)
    return life is not None and life.log_id != run.log_id


async def _fork(connection: LogConnection, run: RunTopic) -> tuple[Life, str] | None:
    """The life of a fork that is not in the catalog, and the log of its source. Its client is at
    work, or has died.
    """
    life = Life(run_id=run.run_id, log_id=run.log_id, agent_id="")
    try:
        async with aclosing(connection.log_of(life).history(end=1)) as history:
            async for first in history:
                opened = first.event.data if first.event is not None else None
                if isinstance(opened, RunOpened) and opened.forked_from is not None:
                    return _life_of(run, opened), opened.forked_from.log_id
    except LogGoneError:
        pass
    return None


def _life_of(run: RunTopic, opened: RunOpened) -> Life:
    return Life(
        run_id=run.run_id,
        log_id=run.log_id,
        agent_id=opened.agent_id,
        session_id=opened.session_id,
        user_id=opened.user_id,
    )


async def _about(
    connection: LogConnection,
    logs: Iterable[Life],
    *,
    user: str,
    session_ids: Collection[str],
    run_ids: Collection[str],
) -> list[Life]:
    """Those of these logs of generations that have something about the user."""
    slots, sealing = asyncio.Semaphore(_AT_ONCE), connection.sealing

    async def is_about(leaders: Leaders, life: Life) -> bool:
        topic = connection.topics.run(life.run_id, life.log_id)
        try:
            async with slots, aclosing(read(connection.settings, topic, leaders=leaders)) as fetches:
                async for stored in fetches:
                    records = await sealing.reveal(stored) if sealing is not None else stored
                    for record in records:
                        try:
                            event = decode(record.value)
                        except UndecodableError:
                            continue
                        if _is_about(event, user=user, session_ids=session_ids, run_ids=run_ids):
                            return True
        except LogGoneError:
            pass
        return False

    lives = list(logs)
    async with Leaders.connect(
        connection.settings,
        timeout_seconds=connection.settings.publish_timeout_seconds,
        segments=connection.catalog.segments,
    ) as leaders:
        answers = await asyncio.gather(*(is_about(leaders, life) for life in lives))
    return [life for life, answer in zip(lives, answers, strict=True) if answer]


def _is_about(event: AnyEvent, *, user: str, session_ids: Collection[str], run_ids: Collection[str]) -> bool:
    match event.data:
        case GenerationRequested(scope=scope, options=options):
            session = options.get("session")
            session_id = session.get("session_id") if isinstance(session, dict) else session
            return names_user(scope, user) or session_id in session_ids or options.get("run_id") in run_ids
        case MemoriesGenerated() as generated:
            created = (change.memory.scope for change in generated.created)
            updated = (change.memory.scope for change in generated.updated)
            return any(names_user(scope, user) for scope in (*created, *updated))
        case RunLabeled(metadata={"stream": {"scope": dict() as scope}}):
            return names_user(scope, user)  # the settings of a stream have its scope
        case _:
            return False
