"""Appending to sessions, with the shared state that this changes.

A session that was appended to stays open here, so the next append reads nothing. The session is
looked up anew after a while, because another process may have let it expire.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from runfold.client.appender import Appender, Position
from runfold.client.connection import LogConnection
from runfold.client.envelope import Envelope, event_of, naming_index
from runfold.client.session import SessionReader, existing, has_expired
from runfold.client.session_state import naming_state_key
from runfold.log.reader import LogGoneError
from runfold.log.settings import LogSettings
from runfold.log.shared import SharedRecord, deliver, records_to_forward
from runfold_projections.session import SessionRecord, life_of
from runfold_projections.state import FORWARD_BYTES_MAX, without_temporary
from runfold_schemas.data import Data
from runfold_schemas.errors import (
    EventTooLargeError,
    InvalidEventError,
    RejectedError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
    SessionEndedError,
    SessionNotFoundError,
)
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import LIFECYCLE, RunCompleted

_LOOK_UP_SECONDS: Final = 2.0

_OPEN_MAX: Final = 10_000


@dataclass(slots=True)
class OpenSession:
    """A session that can be appended to without a look-up."""

    record: SessionRecord
    appender: Appender
    next_offset: int
    """The end of the log when it was last known, at which the session had not ended."""
    looked_up_at: float
    """By the monotonic clock, in seconds."""


class SessionAppender:
    """Keeps the sessions open that were used last."""

    def __init__(self, connection: LogConnection, reader: SessionReader) -> None:
        self._connection = connection
        self._reader = reader
        self._open: OrderedDict[str, OpenSession] = OrderedDict()

    async def opened(self, session_id: str) -> OpenSession:
        """The session, looked up if it is not open. Raises `SessionNotFoundError`,
        `SessionEndedError`.
        """
        known = self._open.get(session_id)
        if known is not None and self._is_current(known):
            self._open.move_to_end(session_id)
            return known
        return await self.open_as(await existing(self._reader, session_id))

    async def open_as(self, record: SessionRecord) -> OpenSession:
        """Opens the session of a record that was read just now. Raises `SessionEndedError`."""
        known = self._open.get(record.session_id)
        if known is not None and known.appender.run_id == record.run_id:
            return self.keep(record, known.appender, known.next_offset)
        session = await self._reader.view(record, None)
        if session.ended:
            raise SessionEndedError(record.session_id)
        life = await self._connection.catalog.lookup(record.run_id) or life_of(record)
        return self.keep(record, self._connection.appender_of(life), session.next_offset)

    def keep(self, record: SessionRecord, appender: Appender, next_offset: int) -> OpenSession:
        """Keeps the session open: its log ends at `next_offset`."""
        opened = self._open[record.session_id] = OpenSession(record, appender, next_offset, time.monotonic())
        if len(self._open) > _OPEN_MAX:
            self._open.popitem(last=False)
        return opened

    def close(self, session_id: str) -> None:
        self._open.pop(session_id, None)

    async def append(
        self, session_id: str, batch: Sequence[Data | AnyEvent], envelope: Envelope
    ) -> list[Position]:
        """Appends `batch` as one record batch, and returns when it is durable with its changes of
        shared state.
        """
        opened = await self.opened(session_id)
        try:
            return await self._append(opened, _events(opened, batch, envelope))
        except SessionNotFoundError:
            if "expected_offset" in envelope or not all(isinstance(data, Data) for data in batch):
                raise  # the events belong to that life of the session alone
        # Another process has deleted the session, and has perhaps created it anew.
        opened = await self.opened(session_id)
        return await self._append(opened, _events(opened, batch, envelope))

    async def end(self, record: SessionRecord) -> None:
        """Completes the run of the session. Raises `SessionEndedError`, `SessionNotFoundError`."""
        opened = await self.open_as(record)
        try:
            await opened.appender.append(RunCompleted())
        except (RejectedError, RunEndedError, RunNotFoundError) as error:
            raise await self._session_error(opened) from error

    async def _append(self, opened: OpenSession, events: Sequence[AnyEvent]) -> list[Position]:
        if not events:
            return []
        record = opened.record
        shared: list[SharedRecord] = []

        def look(stored: Sequence[AnyEvent]) -> None:
            shared.extend(forwarding(self._connection.settings, stored, app=record.app, user=record.user))

        try:
            with naming_state_key(event.state_delta for event in events):
                if len(events) == 1:
                    positions = [await opened.appender.append(events[0], look=look)]
                else:
                    positions = await opened.appender.append_batch(events, look=look)
            await self._check_not_late(opened, positions)
        except (RunEndedError, RunNotFoundError) as error:
            raise await self._session_error(opened) from error
        except LogGoneError as error:  # the session was deleted behind these events
            found = await self._session_error(opened)
            raise found if isinstance(found, SessionNotFoundError) else error from None
        await deliver(self._connection.publisher, shared)
        return positions

    async def _check_not_late(self, opened: OpenSession, positions: Sequence[Position]) -> None:
        """Raises `RunEndedError` if the session ended before these events. The log accepts events
        after an ending as late events. So if another process has appended since, the log is read
        for an ending.
        """
        first_offset, known = positions[0].offset, opened.next_offset
        opened.next_offset = max(known, first_offset + len(positions))
        if first_offset > known and await opened.appender.log.ended_before(first_offset, not_before=known):
            raise RunEndedError(opened.appender.run_id)

    async def _session_error(self, opened: OpenSession) -> RunfoldError:
        """The error of a session whose run has ended, or is not found. A deletion ends the run
        first. After that, its run is not found.
        """
        session_id = opened.record.session_id
        record = await self._reader.find(session_id)
        if record is not None and record.run_id == opened.record.run_id:
            return SessionEndedError(session_id)
        self.close(session_id)
        return SessionNotFoundError(session_id)

    def _is_current(self, opened: OpenSession) -> bool:
        return (
            not opened.appender.deleted
            and time.monotonic() - opened.looked_up_at < _LOOK_UP_SECONDS
            and not has_expired(opened.record, datetime.now(UTC))
        )


def forwarding(
    settings: LogSettings, events: Sequence[AnyEvent], *, app: str, user: str
) -> list[SharedRecord]:
    """The records of what the events change of shared state. Raises `EventTooLargeError` if one of
    them could not be forwarded.
    """
    records = records_to_forward(settings, events, app=app, user=user)
    for record in records:
        if not record.can_be_forwarded:
            raise EventTooLargeError(size=record.value_bytes, limit=FORWARD_BYTES_MAX)
    return records


def _events(opened: OpenSession, batch: Sequence[Data | AnyEvent], envelope: Envelope) -> list[AnyEvent]:
    if len(batch) == 1:
        return [_event(opened, batch[0], envelope)]
    events: list[AnyEvent] = []
    for index, data in enumerate(batch):
        with naming_index(index):
            events.append(_event(opened, data, envelope))
    return events


def _event(opened: OpenSession, data: Data | AnyEvent, envelope: Envelope) -> AnyEvent:
    """The event as it is stored, without temporary state. Raises `InvalidEventError` for a change
    of the run's status, and `RejectedError` for an event of an earlier life of the session.
    """
    event = event_of(data, opened.appender.run_id, **envelope)
    if event.type in LIFECYCLE:
        message = f"type: {event.type} is not for a session, whose run ends when the session is ended"
        raise InvalidEventError(message, field="type")
    if event.run_id != opened.appender.run_id:
        raise RejectedError(event.run_id, offset=-1, reason="its session was deleted, and created anew since")
    stored = without_temporary(event.state_delta or {})
    if len(stored) == len(event.state_delta or {}):
        return event
    return event.model_copy(update={"state_delta": stored})
