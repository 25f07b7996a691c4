"""Deleting a run that is no session's own. A projector removes its data, and its topic last."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

from runfold.client.connection import LogConnection
from runfold.client.records import outgoing
from runfold.ids import new_event_id
from runfold.log.settings import LogSettings
from runfold.log.shared import SharedRecord, deliver, shared_record
from runfold_projections.state import Forward
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_data, new_event
from runfold_schemas.errors import InvalidIdError, UnavailableError
from runfold_schemas.runs import RunCanceled
from runfold_schemas.sessions import RunDeleted, is_session_run, run_key

_LOOK_SECONDS: Final = 0.05


async def delete_run(connection: LogConnection, life: Life) -> None:
    """Deletes a run, and returns when the catalog says so. Raises `InvalidIdError` for the own run
    of a session, and `UnavailableError`. Archived records go later, by an archiver.
    """
    if is_session_run(life.run_id, life.log_id):
        raise InvalidIdError(
            f"run {life.run_id!r} is the run of session {life.session_id!r}: delete the session",
            name="run_id",
            value=life.run_id,
        )
    if not life.ended:
        await seal(connection, life, reason="it was deleted")
    await deliver(connection.publisher, [deletion_of(connection.settings, life)])
    deadline = time.monotonic() + connection.settings.publish_timeout_seconds
    while not await _is_deleted(connection, life):
        if time.monotonic() > deadline:
            reason = f"run {life.run_id!r} will be deleted, and is still there: is a projector running?"
            raise UnavailableError("The projector", reason=reason)
        await asyncio.sleep(_LOOK_SECONDS)
    await connection.publisher.forget(connection.topics.run(life.run_id, life.log_id))


def deletion_of(settings: LogSettings, life: Life, *, erased: str | None = None) -> SharedRecord:
    """The record that deletes a run. `erased` is the user whose erasure deletes it."""
    deleted = new_data(RunDeleted, log_id=life.log_id, erased=erased)
    event = new_event(deleted, event_id=new_event_id(), run_id=life.run_id, timestamp=datetime.now(UTC))
    return shared_record(settings, Forward(run_key(life.run_id), event))


async def seal(connection: LogConnection, life: Life, *, reason: str) -> None:
    """Ends a run that is about to be deleted: its log refuses conditional appends from then on."""
    canceled = new_event(
        RunCanceled(reason=reason),
        event_id=new_event_id(),
        run_id=life.run_id,
        timestamp=datetime.now(UTC),
    )
    topic = connection.topics.run(life.run_id, life.log_id)
    ack = await connection.publisher.send(topic, outgoing(canceled, source=connection.settings.source))
    await connection.publisher.wait(ack)


async def _is_deleted(connection: LogConnection, life: Life) -> bool:
    current = await connection.catalog.lookup(life.run_id)
    return current is not None and current.log_id == life.log_id and current.deleted
