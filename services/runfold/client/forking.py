"""Forks: new runs that begin with the events of another run, up to a place.

    read the source up to a fixed end --> create the fork's topic --> copy in batches --> repair
                                                      --> announce the fork in the catalog

Nobody sees a fork before it is complete, because it is announced at the end. If the process dies
before, the sweep of the projectors deletes the topic.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from runfold.blobs.log_blobs import NO_STORE
from runfold.client.connection import LogConnection
from runfold.client.new_run import NewRun
from runfold.client.opening import check_owner, first_life
from runfold.client.prefixes import PrefixLimit, read_prefix
from runfold.client.run import Run
from runfold.client.run_deletion import deletion_of, seal
from runfold.client.run_log import missing_log
from runfold.client.session_log import LogSessionReader
from runfold.encryption.subjects import subject_of_life
from runfold.ids import new_event_id, new_log_id, uuid7
from runfold.log.reader import LogGoneError
from runfold.log.shared import deliver
from runfold.token_notes import note_bytes
from runfold_projections.as_of import AsOf
from runfold_projections.blobs import digests_in
from runfold_projections.forks import copies_of
from runfold_projections.repair import repair
from runfold_projections.run import RunRecord, fold, merged_labels
from runfold_schemas.catalog import Life
from runfold_schemas.codec import encode_unchecked, new_data, new_event
from runfold_schemas.data import Data
from runfold_schemas.errors import (
    BlobNotFoundError,
    InvalidEventError,
    InvalidIdError,
    RunConflictError,
    RunNotFoundError,
    UnavailableError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import is_generation_log
from runfold_schemas.runs import ForkedFrom, RunOpened
from runfold_schemas.topics import check_id, check_session_id

_LIMIT: Final = PrefixLimit(records=50_000, bytes=64_000_000)
"""The longest part of a source that is forked, which is held in memory. 50,000 events of 600 bytes
take some 400 MB.
"""

_BATCH_EVENTS: Final = 500

_BATCH_BYTES: Final = 512 * 1024
"""The events of a batch before they are sealed, which makes them a half longer."""


async def fork_run(connection: LogConnection, source: Life, place: AsOf, new: NewRun) -> Run:
    """The fork of a run's events up to `place`; if the run `new.run_id` is this fork already, that
    run. Raises as `Run.fork`.
    """
    _check_ids(source, new)
    async with connection.forking:
        if new.run_id is not None and (existing := await connection.catalog.lookup(new.run_id)) is not None:
            return await _existing(connection, source, place, existing, new)
        return await _Forking(connection, source, new).fork(place)


class _Forking:
    """One fork."""

    def __init__(self, connection: LogConnection, source: Life, new: NewRun) -> None:
        self._connection = connection
        self._source = source
        self._new = new

    async def fork(self, place: AsOf) -> Run:
        connection, source, new = self._connection, self._source, self._new
        try:
            prefix = await read_prefix(connection.log_of(source), place, offset_name="at", limit=_LIMIT)
        except LogGoneError:
            raise missing_log(source.run_id) from None
        user_id, session_id = await self._owner()
        life = Life(
            run_id=new.run_id or str(uuid7()),
            log_id=new_log_id(),
            agent_id=source.agent_id,
            session_id=session_id,
            user_id=user_id,
        )
        copies = await asyncio.to_thread(copies_of, prefix.records, life.run_id)
        origin = ForkedFrom(
            run_id=source.run_id, log_id=source.log_id, offset=max(prefix.end - 1, 0), events=len(copies)
        )
        labels = fold(RunRecord(run_id=source.run_id), prefix.records).labels
        opening = new_data(
            RunOpened,
            agent_id=life.agent_id,
            log_id=life.log_id,
            session_id=life.session_id,
            user_id=life.user_id,
            labels=merged_labels(labels, new.labels),
            forked_from=origin,
        )
        topic = connection.topics.run(life.run_id, life.log_id)
        try:
            await self._fill(life, topic, opening, copies)
        except BaseException:
            with suppress(UnavailableError):
                await self._discard(life, topic)
            raise
        await connection.announce(life)
        await self._check_source(life)
        first = await first_life(connection, life) if new.run_id is not None else life
        if first is life:
            return _run_of(connection, life, origin, is_new=True)
        if connection.blobs is not None:
            await connection.blobs.delete_logs([life.log_id])
        return await _existing(connection, source, place, first, new)

    async def _is_source_deleted(self) -> bool:
        source = self._source
        current = await self._connection.catalog.lookup(source.run_id)
        return current is not None and (current.log_id != source.log_id or current.deleted)

    async def _check_source(self, life: Life) -> None:
        """Raises `RunNotFoundError` if the source was deleted meanwhile, and deletes the fork."""
        connection, source = self._connection, self._source
        if not await self._is_source_deleted():
            return
        await seal(connection, life, reason="its source was deleted")
        await deliver(connection.publisher, [deletion_of(connection.settings, life)])
        raise RunNotFoundError(source.run_id)

    async def _owner(self) -> tuple[str | None, str | None]:
        """The user of the source, or of its session, and the session of the fork. So the fork is
        deleted when the user is erased. The session of a source may be created later, and only then
        have a user: then the fork is of the same session, unless the caller names another.
        """
        source, session_id = self._source, self._new.session_id
        user = source.user_id
        sessions = LogSessionReader(self._connection)
        if user is None and source.session_id is not None:
            record = await sessions.find(source.session_id)
            user = (record.user or None) if record is not None else None
            if record is None and session_id is None:
                session_id = source.session_id
        if session_id not in (None, source.session_id):
            target = await sessions.find(session_id)
            if user and target is not None and target.user != user:
                raise InvalidEventError(
                    f"session_id: the session {session_id!r} is of another user than run {source.run_id!r}",
                    field="session_id",
                )
        return user, session_id

    async def _fill(self, life: Life, topic: str, opening: RunOpened, copies: Sequence[AnyEvent]) -> None:
        connection = self._connection
        opened = new_event(opening, event_id=new_event_id(), run_id=life.run_id, timestamp=datetime.now(UTC))
        await connection.open_topic(topic, await connection.sealed(opened, subject_of_life(life)))
        # An erasure deletes the source, and then looks for topics. So it finds this one, or the
        # fork finds here that the source is deleted.
        if await self._is_source_deleted():
            raise RunNotFoundError(self._source.run_id)
        # After the topic, so that the sweep finds the blobs if this process dies.
        await self._copy_blobs(life, copies)
        appender = connection.appender_of(life, is_new=True)
        repairs: list[Data] = []
        if self._new.repairs:
            repairs = await asyncio.to_thread(repair, list(enumerate(copies, start=1)))
        for batch in _batches([*copies, *(appender.event(data) for data in repairs)]):
            await appender.append_batch(batch)

    async def _copy_blobs(self, life: Life, copies: Sequence[AnyEvent]) -> None:
        """Copies the blobs that the events refer to. One that is missing stays missing."""
        store = self._connection.blobs
        for sha256 in sorted(set[str]().union(*map(digests_in, copies))):
            if store is None:
                raise BlobNotFoundError(sha256, reason=NO_STORE)
            with suppress(BlobNotFoundError):
                await store.copy(sha256, from_log=self._source.log_id, to_log=life.log_id)

    async def _discard(self, life: Life, topic: str) -> None:
        connection = self._connection
        await connection.delete_topic(topic)
        if connection.blobs is not None:
            await connection.blobs.delete_logs([life.log_id])


async def _existing(connection: LogConnection, source: Life, place: AsOf, existing: Life, new: NewRun) -> Run:
    """The existing run if it is the fork. Raises `RunConflictError`, `InvalidIdError`."""
    check_owner(existing, agent_id=source.agent_id, session_id=new.session_id)
    log = connection.log_of(existing)
    opened = [each.event.data async for each in log.history(end=1) if each.event is not None]
    origin = opened[0].forked_from if opened and isinstance(opened[0], RunOpened) else None
    if origin is None or origin.log_id != source.log_id:
        raise RunConflictError(existing.run_id, agent_id=existing.agent_id, session_id=existing.session_id)
    if place != AsOf():
        prefix = await read_prefix(connection.log_of(source), place, offset_name="at", limit=_LIMIT)
        if max(prefix.end - 1, 0) != origin.offset:
            raise InvalidIdError(
                f"run {existing.run_id!r} is a fork of {source.run_id!r} at offset {origin.offset}:"
                " choose another id for a fork at another place",
                name="run_id",
                value=existing.run_id,
            )
    if await log.end() <= origin.events:
        raise UnavailableError(
            "Runfold",
            reason=f"the fork {existing.run_id} is not complete yet; if it stays so, its client has died:"
            " delete the run, and fork with another id",
        )
    return _run_of(connection, existing, origin)


def _run_of(connection: LogConnection, life: Life, origin: ForkedFrom, *, is_new: bool = False) -> Run:
    run = connection.run_of(life, is_new=is_new)
    run.forked_from = origin
    return run


def _check_ids(source: Life, new: NewRun) -> None:
    if new.session_id is not None:
        check_session_id(new.session_id)
    for run_id in (source.run_id, new.run_id):
        if run_id is not None and is_generation_log(check_id(run_id, name="run_id")):
            raise InvalidIdError(
                f"{run_id!r} is the log of a generation, which cannot be forked",
                name="run_id",
                value=run_id,
            )


def _batches(events: Sequence[AnyEvent]) -> Iterator[list[AnyEvent]]:
    batch: list[AnyEvent] = []
    size = 0
    for event in events:
        added = len(encode_unchecked(event))
        note_bytes(added)
        if batch and (len(batch) == _BATCH_EVENTS or size + added > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += added
    if batch:
        yield batch
